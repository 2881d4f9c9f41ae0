"""Read a LoRA adapter: a directory as PEFT saves it, or a version that Headway's trainer published.

Invariant: what is returned fits the model it was read for, layer by layer, and is finite.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from headway.core.errors import ModelError
from headway.models.adapter_config import AdapterConfig, linear_layers, read_adapter_config

if TYPE_CHECKING:
    from collections.abc import Generator

    from headway.models.shape import ModelShape

_WEIGHTS = "adapter_model.safetensors"
_MANIFEST = "manifest.json"
_FACTOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<factor>[AB])(?:\.default)?\.weight")
# What a tensor's name may hold that no layer with factors has.
_ELSEWHERE = {
    "lora_embedding_": "it adapts the embedding",
    "embed_tokens": "it is of the embedding",
    "lm_head": "it is of the output layer",
    ".experts.": "it is of an expert",
    "mlp.gate.": "it is of a router",
    "lora_magnitude_vector": "it is of DoRA",
    ".bias": "it is a bias",
}


@dataclass(frozen=True, slots=True)
class Factors:
    """One layer's: y = x W + scaling * (x A^T) B^T."""

    a: torch.Tensor  # f32 [rank, inputs]
    b: torch.Tensor  # f32 [outputs, rank]
    scaling: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter in memory."""

    path: Path  # its directory
    base_model: str  # name or path that it says it was trained on, or an empty string
    factors: Mapping[str, Factors]  # by Hugging Face module name

    @property
    def rank(self) -> int:
        """The largest of its factors."""
        return max(len(each.a) for each in self.factors.values())


def read_adapter(place: Path, shape: ModelShape, *, max_rank: int | None = None) -> Adapter:
    """Read an adapter for a model of this shape.

    Args:
        place: the directory, or the manifest of a published version, which cannot be pruned meanwhile.
        shape: the model's.
        max_rank: largest rank that is taken.

    Raises ModelError for an adapter that is missing, damaged, incomplete, for another model, of a higher
    rank, or more than LoRA on linear layers.
    """
    with _held(place) as directory:
        config = read_adapter_config(directory)
        file = directory / _WEIGHTS
        tensors = _read_tensors(file)
    found = _pair(tensors, file, config, shape)
    layers = linear_layers(shape)
    factors: dict[str, Factors] = {}
    for module, (a, b) in found.items():
        _check_shapes(module, a, b, layers[module], config, file)
        factors[module] = Factors(a.float(), b.float(), config.scaling_of(module))
    adapter = Adapter(directory, config.base_model, factors)
    if max_rank is not None and adapter.rank > max_rank:
        raise ModelError(
            f"the rank of an adapter must be at most {max_rank}: that of {directory} is higher",
            value=adapter.rank,
            key="generator.max_adapter_rank",
            remedy="Raise the limit, or train with a lower rank",
        )
    return adapter


@contextlib.contextmanager
def _held(place: Path) -> Generator[Path]:
    """Yield the adapter's directory; a published version stays until the block is left."""
    place = place.expanduser()
    manifest = place / _MANIFEST if place.is_dir() else place
    if not place.exists():
        raise ModelError(
            "an adapter must be there",
            value=str(place),
            remedy="Name a directory that PEFT's save_pretrained or headway export --adapter wrote",
        )
    with contextlib.ExitStack() as stack:
        if manifest.name == _MANIFEST and manifest.is_file():
            fcntl.flock(stack.enter_context(manifest.open("rb")), fcntl.LOCK_SH)
        yield manifest.parent if manifest.name == _MANIFEST else place


def _read_tensors(file: Path) -> dict[str, torch.Tensor]:
    if not file.is_file():
        raise ModelError(
            f"an adapter must hold its factors in {_WEIGHTS}: {file.parent} has none",
            value=", ".join(sorted(path.name for path in file.parent.iterdir())),
            remedy="Save it with PEFT's safe_serialization: pickled .bin files can run code when loaded"
            if any(file.parent.glob("*.bin"))
            else "Copy or save the adapter again",
        )
    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file} must be a whole safetensors file",
            value=str(error),
            remedy="It was cut off or damaged: copy or save the adapter again",
        ) from error
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                f"the factors in {file} must be finite floating-point numbers",
                value=f"{name}, {tensor.dtype}",
                remedy="Its training diverged, or it was quantised: save an earlier or a plain one",
            )
    return tensors


def _pair(
    tensors: Mapping[str, torch.Tensor], file: Path, config: AdapterConfig, shape: ModelShape
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return A and B of each layer; ModelError unless the layers are those that the config names."""
    layers = linear_layers(shape)
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _FACTOR.fullmatch(name)
        module = match["module"] if match else ""
        why = next((why for part, why in _ELSEWHERE.items() if part in name), "")
        if match is None or module not in layers:
            why = why or ("this model has no such layer" if match else "it is no lora_A or lora_B weight")
            raise ModelError(
                f"an adapter must hold factors of this model's linear layers in its blocks alone, and {file} "
                f"holds more: {why}",
                value=name,
                remedy="Serve it with the model that it was trained on, or merge it there with PEFT",
            )
        if not config.is_target(module):
            raise ModelError(
                f"{file} must hold factors of the layers that adapter_config.json names, and it holds others",
                value=name,
                remedy="Config and factors are of two adapters: copy or save the adapter again",
            )
        parts.setdefault(module, {})[match["factor"]] = tensor
    for module, both in parts.items():
        if len(both) == 1:
            there = next(iter(both))
            raise ModelError(
                f"{file} must hold both factors of a layer, and it holds lora_{there} alone",
                value=module,
                remedy="Copy or save the adapter again",
            )
    # all-linear is also what PEFT makes of it, which may leave layers out.
    wanted = [] if config.targets == ".*" else [module for module in layers if config.is_target(module)]
    if missing := [module for module in wanted if module not in parts]:
        raise ModelError(
            f"{file} must hold factors of every layer that adapter_config.json names; {len(missing)} of "
            f"{len(wanted)} are missing",
            value=missing[0],
            remedy="Serve it with the model that it was trained on, or copy or save the adapter again",
        )
    if not parts:
        raise ModelError(
            f"an adapter must adapt a layer, and {file} holds no factors",
            value=f"target_modules {config.targets}",
            remedy="Save the adapter again with PEFT",
        )
    return {module: (both["A"], both["B"]) for module, both in parts.items()}


def _check_shapes(
    module: str, a: torch.Tensor, b: torch.Tensor, size: tuple[int, int], config: AdapterConfig, file: Path
) -> None:
    outputs, inputs = size
    sizes = tuple(a.shape), tuple(b.shape)
    rank = config.rank_of(module)
    if a.ndim != 2 or b.ndim != 2 or (b.shape[0], a.shape[1]) != (outputs, inputs):
        raise ModelError(
            f"an adapter must be of this model: {module} takes {inputs} values and gives {outputs} here, and "
            f"{file} has A {list(sizes[0])} and B {list(sizes[1])} for it",
            value=config.base_model or None,
            remedy="Serve it with the model that it was trained on",
        )
    if (a.shape[0], b.shape[1]) != (rank, rank):
        raise ModelError(
            f"the factors of {module} in {file} must have the rank {rank} that adapter_config.json gives",
            value=f"A {list(sizes[0])}, B {list(sizes[1])}",
            remedy="Config and factors are of two adapters: copy or save the adapter again",
        )
