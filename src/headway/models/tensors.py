"""The weight files of a checkpoint: which there are, and whether they hold what they must. No torch.

Only headers and sizes are read, and a little of a tied output layer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headway.core.errors import ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from headway.models.shape import ModelShape

_INDEX = "model.safetensors.index.json"
_WEIGHTS = "model.safetensors"
_COMPARED = 32  # pieces of a tied output layer and its embedding, from end to end
_PIECE_BYTES = 1 << 16


def weight_files(path: Path) -> list[Path]:
    """Return the checkpoint's safetensors files; ModelError if there are none or the index lists others."""
    index = path / _INDEX
    if index.is_file():
        try:
            weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError) as error:
            rule = f"{_INDEX} must be valid JSON with a weight_map"
            raise ModelError(rule, value=str(index), remedy="Fetch the model again") from error
        files = [path / name for name in sorted(set(weight_map.values()))]
        if missing := [file.name for file in files if not file.is_file()]:
            rule = (
                f"Every shard that {_INDEX} lists must be there; {len(missing)} of {len(files)} are missing"
            )
            raise ModelError(rule, value=missing[0], remedy="The download stopped early: fetch again")
        return files
    if (path / _WEIGHTS).is_file():
        return [path / _WEIGHTS]
    if any(path.glob("pytorch_model*.bin")):
        rule = "Weights must be safetensors; pickled .bin files can run code when loaded"
        raise ModelError(rule, value=str(path), remedy="Save the model again with safetensors")
    raise ModelError(
        f"A checkpoint must hold {_WEIGHTS} or {_INDEX}",
        value=str(path),
        remedy="Name a directory that save_pretrained wrote, or fetch the model again",
    )


def read_header(file: Path) -> dict[str, dict[str, Any]]:
    """Return the header of a safetensors file: dtype, shape and data offsets by tensor name.

    Raises:
        ModelError: the header is not readable, or the file's length is not what the header says.
    """
    remedy = "The file was cut off or damaged: fetch the model again"
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8:
            rule = f"{file.name} is truncated: its header alone must have {length} bytes"
            raise ModelError(rule, value=f"a file of {size} bytes", remedy=remedy)
        try:
            header: dict[str, dict[str, Any]] = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            end = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            rule = f"{file.name} must begin with a safetensors header"
            raise ModelError(rule, value=str(file), remedy=remedy) from error
    if size != 8 + length + end:
        rule = f"{file.name} is incomplete: it must have {8 + length + end} bytes"
        raise ModelError(rule, value=f"{size} bytes", remedy=remedy)
    return header


def verify_tensors(path: Path, shape: ModelShape) -> None:
    """Raise ModelError unless the weights are exactly the tensors that the shape calls for."""
    found: dict[str, tuple[int, ...]] = {}
    holders: dict[str, Path] = {}
    for file in weight_files(path):
        header = read_header(file)
        found |= {name: tuple(entry["shape"]) for name, entry in header.items()}
        holders |= dict.fromkeys(header, file)
    expected = shape.tensor_shapes()
    remedy = "config.json and weights belong to different models"
    missing = sorted(expected.keys() - found.keys())
    if missing == ["lm_head.weight"]:
        raise ModelError(
            "Without tie_word_embeddings the weights must hold an output layer",
            value="lm_head.weight is missing",
            remedy="Set tie_word_embeddings to true in config.json if the output layer is the embedding",
        )
    if missing:
        rule = f"The weights must hold every tensor that config.json calls for; {len(missing)} are missing"
        raise ModelError(rule, value=missing[0], remedy=remedy)
    for name, wanted in expected.items():
        if found[name] != wanted:
            rule = f"Tensor {name} must have the shape {wanted} that config.json calls for"
            raise ModelError(rule, value=found[name], remedy=remedy)
    if extra := sorted(name for name in found.keys() - expected.keys() if not _is_harmless(name, shape)):
        rule = f"The weights must hold no tensor that config.json does not call for; {len(extra)} are extra"
        raise ModelError(rule, value=extra[0], remedy=remedy)
    if shape.tied and "lm_head.weight" in found:
        _verify_tied(holders)


def _is_harmless(name: str, shape: ModelShape) -> bool:
    """Whether a tensor beyond the parameters changes nothing: a buffer, or a tied output layer's copy."""
    return name.endswith("rotary_emb.inv_freq") or (shape.tied and name == "lm_head.weight")


def _verify_tied(holders: dict[str, Path]) -> None:
    names = ("model.embed_tokens.weight", "lm_head.weight")
    samples: list[tuple[str, int, list[bytes]]] = []
    for name in names:
        file = holders[name]
        entry = read_header(file)[name]
        start, end = entry["data_offsets"]
        with file.open("rb") as stream:
            base = 8 + int.from_bytes(stream.read(8), "little") + start
            last = max(0, end - start - _PIECE_BYTES)
            pieces: list[bytes] = []
            for index in range(_COMPARED):
                stream.seek(base + last * index // (_COMPARED - 1))
                pieces.append(stream.read(min(end - start, _PIECE_BYTES)))
            samples.append((entry["dtype"], end - start, pieces))
    if samples[0] != samples[1]:
        raise ModelError(
            "With tie_word_embeddings the output layer must be the embedding, and the weights hold another",
            value="lm_head.weight differs from model.embed_tokens.weight",
            remedy="Set tie_word_embeddings to false in config.json if the model was trained untied",
        )
