"""Find the checkpoint that a name means, and check that it is whole before anything loads it. No torch.

A checkpoint that `verify` accepts has a supported architecture, every tensor in its expected shape, weight
files of full length, and a tokenizer that fits, with a chat template. Loading one with a tensor missing would
not fail: transformers fills it with random numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

from headway.core.errors import ModelError
from headway.core.near import did_you_mean, nearest
from headway.models import from_gguf
from headway.models.cache import (
    MANIFEST,
    cache_root,
    check_manifest,
    install,
    model_dir,
    sha256,
)
from headway.models.fetch import FETCHABLE, cached, fetch
from headway.models.progress import Progress, silent
from headway.models.shape import ModelShape, read_shape
from headway.models.tensors import verify_tensors

_MOST_SPARE = 0.05  # share of the embedding's rows that no token may have: padding to round numbers
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def resolve(model: str, cache_dir: Path | None = None, progress: Progress = silent) -> Path:
    """Return the checkpoint directory that `model` means, fetching or converting it if need be.

    Args:
        model: in this order of precedence, a directory, a `.gguf` file, a name that `fetch` knows, or a
            Hub id such as `HuggingFaceTB/SmolLM2-135M-Instruct`.
        cache_dir: the cache for fetched and converted models; Hub models use the Hub's own.
        progress: called with one line of text as each part of the work begins.

    Raises:
        ModelError: nothing has this name, or it cannot be had.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.suffix == ".gguf" and path.is_file():
        return _convert_cached(path, cache_dir, progress)
    if model in FETCHABLE:
        return cached(model, cache_dir) or fetch(model, cache_dir, progress)
    if _looks_like_path(model):
        near = did_you_mean(nearest(model, FETCHABLE, cutoff=0.8))
        near += " " * bool(near)
        raise ModelError("A model directory must exist", value=model, remedy=f"{near}{_choices()}")
    return _from_hub(model, progress)


def is_to_fetch(model: str) -> bool:
    """Return whether `resolve` would first have to fetch, make or convert a model, or ask the Hub for it."""
    is_gone = model not in FETCHABLE and _looks_like_path(model) and not Path(model).expanduser().is_file()
    return not is_gone and find(model) is None


def find(model: str, cache_dir: Path | None = None) -> Path | None:
    """Return the directory that `model` means where it is on this machine, whole or not; None elsewhere.

    Nothing is fetched or converted; arguments are those of `resolve`.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.suffix == ".gguf" and path.is_file():
        path = _converted(path, cache_dir)
        return path if path.is_dir() else None
    if model in FETCHABLE:
        path = model_dir(model, cache_dir)
        return path if path.is_dir() else None
    if _looks_like_path(model):
        return None
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES, local_files_only=True))
    except Exception:  # not in the Hub's cache, or no id that it could have
        return None


def verify(path: Path) -> None:
    """Raise ModelError, naming rule, value and remedy, unless `path` holds a whole checkpoint.

    Only headers and sizes of the weight files are read; a cached model's hashes are checked by `fetch`.
    """
    if not path.is_dir():
        raise ModelError("A model directory must exist", value=str(path), remedy=_choices())
    if (path / "adapter_config.json").is_file() and not (path / "config.json").is_file():
        rule = "A checkpoint must hold a whole model, not only a LoRA adapter"
        raise ModelError(rule, value=str(path), remedy="Name the base model, or merge the adapter into it")
    check_manifest(path, hashes=False)
    shape = read_shape(path)
    verify_tensors(path, shape)
    _verify_tokenizer(path, shape)


def _verify_tokenizer(path: Path, shape: ModelShape) -> None:
    remedy = "Copy the tokenizer's files from the original model into the directory"
    file = path / "tokenizer.json"
    if not file.is_file():
        rule = "A checkpoint must hold tokenizer.json (a fast tokenizer)"
        raise ModelError(rule, value=str(path), remedy=remedy)
    try:
        tokenizer = json.loads(file.read_text(encoding="utf-8"))
        ids = [int(token["id"]) for token in tokenizer.get("added_tokens") or []]
        vocab = tokenizer["model"]["vocab"]
        ids += vocab.values() if isinstance(vocab, dict) else [len(vocab) - 1]
        settings_file = path / "tokenizer_config.json"
        settings = json.loads(settings_file.read_text(encoding="utf-8")) if settings_file.is_file() else {}
    except (ValueError, KeyError, TypeError) as error:
        rule = "tokenizer.json and tokenizer_config.json must be readable"
        raise ModelError(rule, value=str(path), remedy=remedy) from error
    if ids and max(ids) >= shape.vocab:
        rule = f"Every token id must be below the model's vocabulary of {shape.vocab}"
        raise ModelError(rule, value=max(ids), remedy="The tokenizer belongs to another model")
    if ids and shape.vocab - max(ids) - 1 > _MOST_SPARE * shape.vocab:
        raise ModelError(
            f"the tokenizer must belong to the model: the embedding has {shape.vocab:,} rows, and the "
            f"tokenizer only {max(ids) + 1:,} tokens, so that the model would sample ids that have no text",
            remedy="Copy the tokenizer's files from the model's own repository",
        )
    if not (path / "chat_template.jinja").is_file() and not settings.get("chat_template"):
        rule = "The tokenizer must have a chat template"
        raise ModelError(
            rule,
            value=str(path),
            remedy="Use an instruction-tuned model, or put a template into chat_template.jinja",
        )


def _convert_cached(file: Path, cache_dir: Path | None, progress: Progress) -> Path:
    target = _converted(file, cache_dir)
    if (target / MANIFEST).exists():
        check_manifest(target, hashes=False)
        return target
    return install(target, str(file.name), lambda staging: from_gguf.convert(file, staging, progress))


def _converted(file: Path, cache_dir: Path | None) -> Path:
    return cache_root(cache_dir) / "models" / f"gguf-{sha256(file)[:16]}"


def _from_hub(model: str, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES, local_files_only=True))
    except Exception:  # not in the Hub's cache, or not a valid id: the next call says which
        progress(f"Downloading {model} from the Hub")
    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        said = f"did not answer: {reason.removeprefix('Got: ')}"
        if getattr(error, "response", None) is not None:
            said = f"refused it: {reason}"
        place = Path(model).expanduser().absolute()
        rule = f"A model must be there: there is no folder {place}, and the Hub {said}"
        raise ModelError(rule, value=model, remedy=_choices()) from error


def _looks_like_path(model: str) -> bool:
    return model.startswith(("/", ".", "~")) or model.count("/") != 1 or Path(model).exists()


def _choices() -> str:
    return f"Name a checkpoint directory, one of {', '.join(FETCHABLE)}, or a Hub id such as org/model"
