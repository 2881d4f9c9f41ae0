"""The trained weights of a checkpoint, apart from what a trainer needs to go on from it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.core.errors import HeadwayError
from headway.trainer.checkpoints import read_checkpoint
from headway.weights.merge import fitting, merged

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """What a checkpoint holds of the policy, in memory: the checkpoint may go meanwhile.

    Attributes:
        path: the checkpoint.
        step: optimizer steps in it.
        tensors: LoRA factors under PEFT names, or all weights under Hugging Face names.
        adapter: contents of adapter_config.json, None with full weights.
    """

    path: Path
    step: int
    tensors: dict[str, Tensor]
    adapter: dict[str, Any] | None

    def full(self, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all weights of the model by Hugging Face name, a tied output layer left out.

        Args:
            base: the weights that the run began from; they are not changed.

        Raises HeadwayError when checkpoint and base do not fit.
        """
        if self.adapter is None:
            for name, tensor in self.tensors.items():
                fitting(base, name, tuple(tensor.shape), self.path)
            return {**base, **self.tensors}
        scaling = self.adapter["lora_alpha"] / self.adapter["r"]
        changed = merged(base, self.tensors.keys(), self.tensors.__getitem__, scaling, self.path)
        return {**base, **dict(changed)}

    def write_adapter(self, directory: Path, base: str, dtype: str) -> None:
        """Write the LoRA factors, in a type of torch's, as PEFT loads them; `base` is what it loads below."""
        wanted: torch.dtype = getattr(torch, dtype)
        tensors = {name: tensor.to(wanted).contiguous() for name, tensor in self.tensors.items()}
        save_file(tensors, directory / "adapter_model.safetensors", {"format": "pt"})
        (directory / "adapter_model.safetensors").chmod(0o644)  # safetensors lets nobody else read it
        config = {**(self.adapter or {}), "base_model_name_or_path": base}
        (directory / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read_trained(path: Path) -> TrainedWeights:
    """Read the trained weights of a checkpoint, every file checked against its SHA-256.

    Raises HeadwayError when the checkpoint is gone, incomplete or damaged.
    """
    record = read_checkpoint(path, hashes=True)
    folder = path / ("adapter" if record["kind"] == "lora" else "model")
    tensors: dict[str, Tensor] = {}
    adapter: dict[str, Any] | None = None
    try:
        for file in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(file)
        if record["kind"] == "lora":
            adapter = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, SafetensorError) as error:
        raise HeadwayError(f"checkpoint {path} must be readable: {error}") from error
    return TrainedWeights(path, int(record["step"]), tensors, adapter)
