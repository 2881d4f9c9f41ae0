"""Publish a policy version: a directory of its own with safetensors and a manifest.

The directory may be shared memory or the run directory. Invariant: what has a version's name is complete
(see `atomic`). The newest `keep` versions stay; an older one that a reader holds stays until the first
publication after the reader is done. Readers and the writer share one machine: the hold is an flock.
"""

from __future__ import annotations

import fcntl
import json
from typing import TYPE_CHECKING

from safetensors.torch import save_file

from headway.core.errors import HeadwayError
from headway.weights.atomic import PARTIAL, remove_directory, whole_directory
from headway.weights.manifest import FORMAT, MANIFEST, Manifest, file_facts, write_manifest
from headway.weights.names import lora_name, parse_lora

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Literal

    from torch import Tensor

ADAPTER = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
FULL = "model.safetensors"
KEEP = 3  # versions


def version_name(lineage: int, number: int) -> str:
    """Return the directory name of a version; names sort in the order of publication."""
    return f"{lineage:04d}-{number:08d}"


def write_adapter(
    directory: Path,
    lineage: int,
    number: int,
    tensors: Mapping[str, Tensor],
    *,
    rank: int,
    alpha: float,
    base_model: str = "",
    keep: int = KEEP,
) -> Path:
    """Publish LoRA factors and return the manifest's path.

    Args:
        directory: where versions live.
        lineage: of the version.
        number: of the version.
        tensors: A [rank, in] and B [out, rank] of each changed linear layer, under PEFT names.
        rank: of the factors.
        alpha: LoRA's alpha; the scaling is alpha / rank.
        base_model: name or path of the base, for other programs that load the directory.
        keep: versions that stay.
    """
    names = {name: parse_lora(name) for name in tensors}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model or None,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.parameter.split(".")[-2] for name in names.values()}),
        "inference_mode": True,
    }
    renamed = {lora_name(*names[name]): tensor for name, tensor in tensors.items()}
    return _write(
        directory, lineage, number, "adapter", renamed, alpha / rank, keep, json.dumps(config, indent=1)
    )


def write_full(
    directory: Path, lineage: int, number: int, tensors: Mapping[str, Tensor], *, keep: int = KEEP
) -> Path:
    """Publish full weights under Hugging Face names, tied ones once, and return the manifest's path."""
    return _write(directory, lineage, number, "full", tensors, 1.0, keep, None)


def prune(directory: Path, keep: int) -> None:
    """Remove all but the newest `keep` versions, and those that a reader holds."""
    versions = sorted(path for path in directory.iterdir() if not path.name.startswith(PARTIAL))
    for version in versions[: max(0, len(versions) - keep)]:
        with (version / MANIFEST).open("rb") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            remove_directory(version)


def _write(
    directory: Path,
    lineage: int,
    number: int,
    kind: Literal["adapter", "full"],
    tensors: Mapping[str, Tensor],
    scaling: float,
    keep: int,
    adapter_config: str | None,
) -> Path:
    if not tensors or keep < 1:
        raise HeadwayError("a version must hold tensors, and at least one version must be kept")
    target = directory / version_name(lineage, number)
    with whole_directory(target) as staging:
        weights = staging / (ADAPTER if kind == "adapter" else FULL)
        contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, weights, metadata={"format": "pt"})
        files = [file_facts(weights)]
        if adapter_config is not None:
            (staging / ADAPTER_CONFIG).write_text(adapter_config, encoding="utf-8")
            files.append(file_facts(staging / ADAPTER_CONFIG))
        write_manifest(staging, Manifest(FORMAT, kind, lineage, number, scaling, tuple(files)))
    prune(directory, keep)
    return target / MANIFEST
