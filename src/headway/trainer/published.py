"""Writing the version that a trainer has arrived at, for replicas to take up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safetensors import SafetensorError

from headway.core.storage import disk_full, is_full, no_room
from headway.trainer.update import tensor_bytes
from headway.weights.manifest import read_manifest
from headway.weights.publish import version_name, write_adapter, write_full

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from headway.trainer.policy import TrainedPolicy
    from headway.trainer.settings import TrainerSettings


def write_version(
    directory: Path, lineage: int, number: int, policy: TrainedPolicy, settings: TrainerSettings
) -> tuple[str, int]:
    """Write a policy's weights, whole or not at all; return (manifest, bytes).

    Raises DiskFullError when there is no room for them.
    """
    tensors = policy.published()
    try:
        path = _write(directory, lineage, number, tensors, policy, settings)
    except (OSError, SafetensorError) as error:
        needed = tensor_bytes(tensors)
        full = error if is_full(error) else no_room(directory, needed)
        if full is None:
            raise
        raise disk_full(directory / version_name(lineage, number), needed, full) from error
    return str(path), read_manifest(path).num_bytes


def _write(
    directory: Path,
    lineage: int,
    number: int,
    tensors: Mapping[str, Tensor],
    policy: TrainedPolicy,
    settings: TrainerSettings,
) -> Path:
    if settings.full:
        return write_full(directory, lineage, number, tensors)
    rank, alpha = settings.lora_rank, settings.lora_alpha
    return write_adapter(
        directory, lineage, number, tensors, rank=rank, alpha=alpha, base_model=policy.base_model_name
    )
