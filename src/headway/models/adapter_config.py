"""What adapter_config.json says of a LoRA adapter, and whether it can be served beside its base. No torch.

Served is `y = x W + scaling * (x A^T) B^T` on linear layers of the decoder's blocks. Whatever else PEFT can
put into an adapter is refused here by name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import ModelError

if TYPE_CHECKING:
    from headway.models.shape import ModelShape

ADAPTER_CONFIG = "adapter_config.json"

# What changes the forward pass and is not computed, with what it is called.
_NOT_COMPUTED = {
    "use_dora": "DoRA",
    "lora_bias": "a bias of the factors (lora_bias)",
    "modules_to_save": "whole layers beside the factors (modules_to_save)",
    "trainable_token_indices": "trained embeddings of some tokens (trainable_token_indices)",
    "target_parameters": "experts and other parameters outside of linear layers (target_parameters)",
    "layer_replication": "layers that are used twice (layer_replication)",
    "alora_invocation_tokens": "factors that some tokens switch on (alora_invocation_tokens)",
    "use_qalora": "QA-LoRA",
    "use_bdlora": "block-diagonal factors (use_bdlora)",
    "arrow_config": "a router over adapters (arrow_config)",
    "kasa_config": "KaSA",
    "monteclora_config": "random factors (monteclora_config)",
}
# Ways of making the first factors that take a part out of the base's weights.
_CHANGES_BASE = re.compile(r"pissa.*|olora|corda|loftq|lora_ga")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """The part of adapter_config.json that says how the factors are used."""

    path: Path
    rank: int
    alpha: float
    uses_root: bool  # rslora: alpha / sqrt(rank) in place of alpha / rank
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    targets: str | tuple[str, ...]  # a regular expression, or the ends of names
    exclude: str | tuple[str, ...]
    layers: tuple[int, ...] | None  # blocks that have factors, None for all
    base_model: str

    def rank_of(self, module: str) -> int:
        """Return the rank of a layer's factors."""
        return self.rank_pattern.get(_pattern_of(self.rank_pattern, module), self.rank)

    def scaling_of(self, module: str) -> float:
        """Return what B @ A is multiplied by."""
        alpha = self.alpha_pattern.get(_pattern_of(self.alpha_pattern, module), self.alpha)
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.uses_root else rank)

    def is_target(self, module: str) -> bool:
        """Say whether a layer has factors, as PEFT decides it; `all-linear` takes what it is asked for."""
        if self.layers is not None:
            index = re.search(r"\.layers\.(\d+)\.", module)
            if index is None or int(index[1]) not in self.layers:
                return False
        return _is_named(self.targets, module) and not _is_named(self.exclude, module)


def linear_layers(shape: ModelShape) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of each layer that can have factors, by its Hugging Face module name."""
    return {
        name.removesuffix(".weight"): (size[0], size[1])
        for name, size in shape.tensor_shapes().items()
        if name.endswith("_proj.weight") and ".experts." not in name
    }


def read_adapter_config(directory: Path) -> AdapterConfig:
    """Read adapter_config.json of a directory.

    Raises ModelError when it is not there or not readable, is no LoRA adapter, or calls for what is not
    computed.
    """
    file = directory / ADAPTER_CONFIG
    plain = _read_object(file)
    kind = plain.get("peft_type")
    if kind != "LORA":
        raise ModelError(
            f"an adapter must be LoRA: peft_type in {file} is another",
            value=kind,
            remedy="Train a LoRA adapter, or merge this one into its base with PEFT and load that model",
        )
    _refuse_what_is_not_computed(plain, file)
    try:
        rank = int(plain["r"])
        layers = plain.get("layers_to_transform")
        config = AdapterConfig(
            directory,
            rank,
            float(plain["lora_alpha"]),
            bool(plain.get("use_rslora")),
            {str(key): int(value) for key, value in (plain.get("rank_pattern") or {}).items()},
            {str(key): float(value) for key, value in (plain.get("alpha_pattern") or {}).items()},
            _names(plain["target_modules"]),
            _names(plain.get("exclude_modules") or ()),
            None if layers is None else (layers,) if isinstance(layers, int) else tuple(map(int, layers)),
            str(plain.get("base_model_name_or_path") or ""),
        )
        for pattern in (config.targets, config.exclude):
            if isinstance(pattern, str):
                re.compile(pattern)
        if min(rank, *config.rank_pattern.values(), 1 << 30) < 1:
            raise ValueError(f"rank {rank}")
    except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
        raise ModelError(
            f"{file} must give r, lora_alpha and target_modules as PEFT writes them",
            value=f"{type(error).__name__}: {error}",
            remedy="Save the adapter again with PEFT",
        ) from error
    return config


def _read_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise ModelError(
            f"an adapter must be a directory with {ADAPTER_CONFIG}",
            value=str(file.parent),
            remedy="Name a directory that PEFT's save_pretrained or headway export --adapter wrote",
        )
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(plain, dict):
            raise ValueError(f"it holds a {type(plain).__name__}")
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file} must be readable and hold a JSON object",
            value=str(error),
            remedy="Copy or save the adapter again",
        ) from error
    return cast("dict[str, Any]", plain)


def _refuse_what_is_not_computed(plain: Mapping[str, Any], file: Path) -> None:
    for name, what in _NOT_COMPUTED.items():
        if plain.get(name):
            raise ModelError(
                f"an adapter must be plain LoRA on linear layers: {file} asks for {what}, "
                "which is not computed",
                value=plain[name],
                remedy="Merge it into its base with PEFT and load that model, or train without",
            )
    bias = plain.get("bias") or "none"
    if bias != "none":
        raise ModelError(
            f"an adapter must not train biases: bias in {file}",
            value=bias,
            remedy='Merge it into its base with PEFT and load that model, or train with bias = "none"',
        )
    first = plain.get("init_lora_weights")
    if isinstance(first, str) and _CHANGES_BASE.fullmatch(first.lower()):
        raise ModelError(
            f"an adapter must go with its base's own weights: init_lora_weights in {file} took a part of "
            "them into the factors",
            value=first,
            remedy="Save it with PEFT's path_initial_model_for_weight_conversion, for plain LoRA",
        )


def _names(value: Any) -> str | tuple[str, ...]:
    if value == "all-linear":
        return ".*"
    if not value:
        return ()
    return value if isinstance(value, str) else tuple(sorted(map(str, value)))


def _is_named(names: str | tuple[str, ...], module: str) -> bool:
    """PEFT's rule: a string is a regular expression of the whole name, a list has names or their ends."""
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _pattern_of(patterns: Mapping[str, Any], module: str) -> str:
    """Return the key of a rank or alpha pattern that a layer falls under, as PEFT finds it."""
    return next((key for key in patterns if re.match(rf"(.*\.)?({key})$", module)), module)
