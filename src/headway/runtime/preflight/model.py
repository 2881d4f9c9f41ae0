"""The model's files: complete, whole, and of a shape that the settings fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.errors import UserError
from headway.generator.memory import room_for
from headway.models.shape import read_shape
from headway.models.tensors import weight_files
from headway.runtime.model import model_directory
from headway.runtime.preflight.findings import Finding, failed, ok

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.generator.settings import GeneratorSettings
    from headway.models.shape import ModelShape
    from headway.runtime.preflight.subject import Subject


def model_files(subject: Subject) -> Iterator[Finding]:
    """Every file is there and of full length, every tensor of the shape that config.json calls for."""
    config = subject.config
    path = subject.model_dir = model_directory(config)
    shape = read_shape(path)
    if config.generator.max_context_tokens > shape.max_context_tokens:
        yield from failed(
            UserError(
                f"the model was made for {shape.max_context_tokens} positions",
                value=config.generator.max_context_tokens,
                remedy="Lower it, or use a model with a longer context",
                key="generator.max_context_tokens",
            )
        )
    if config.generator.numerics == "fast":
        _check_kv_cap(shape, config.generator)
    yield from _lora_targets(subject)
    num_bytes = sum(file.stat().st_size for file in weight_files(path))
    yield ok(
        f"{path.name}: {shape.num_params:,} parameters in {len(shape.tensor_shapes())} tensors, "
        f"{num_bytes / 1e6:,.0f} MB, all there"
    )


def _check_kv_cap(shape: ModelShape, settings: GeneratorSettings) -> None:
    """Raise UserError when generator.kv_cache_mb is too small for one request."""
    room_for(
        kv_bytes_per_token=shape.facts().kv_bytes_per_token(),
        head_dim=shape.head_dim,
        max_context_tokens=settings.max_context_tokens,
        max_running=settings.max_running,
        kv_cache_mb=settings.kv_cache_mb,
    )


def _lora_targets(subject: Subject) -> Iterator[Finding]:
    trainer = subject.config.trainer
    if trainer.full or trainer.lora_targets == "all-linear":
        return
    layers = sorted(read_shape(subject.model_dir).facts().lora_sides)
    for target in trainer.lora_targets.split(","):
        if target.strip() not in layers:
            yield from failed(
                UserError(
                    f"LoRA's targets must be all-linear or some of {', '.join(layers)}",
                    value=target.strip(),
                    remedy="Write names with commas between, such as q_proj,v_proj",
                    key="trainer.lora_targets",
                )
            )
