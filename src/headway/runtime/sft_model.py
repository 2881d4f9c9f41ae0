"""The outcome of a supervised run: a model directory that `model.path` takes, as `headway export` makes."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from headway.core.errors import HeadwayError
from headway.core.storage import disk_full, is_full, no_room
from headway.models.export import write_model
from headway.models.load import model_facts
from headway.models.origin import origin
from headway.runtime.export import merge
from headway.runtime.job import checkpoint_dir
from headway.runtime.staging import staged
from headway.trainer.checkpoints import checkpoint_path

if TYPE_CHECKING:
    from pathlib import Path

    from headway.config.compose import SftConfig

MODEL = "model"
_PARAMETER_BYTES = 4  # float32


def write_trained_model(run_dir: Path, step: int, model_dir: Path, config: SftConfig) -> None:
    """Write a checkpoint's model, LoRA factors merged in, to RUN/model, whole or not at all.

    Raises DiskFullError when there is no room for it, HeadwayError when it cannot be written otherwise; the
    checkpoint is there all the same.
    """
    from headway.trainer.trained import read_trained

    weights = read_trained(checkpoint_path(checkpoint_dir(run_dir), step))
    try:
        with staged(run_dir / MODEL) as staging:
            write_model(model_dir, merge(weights, model_dir), staging)
            (staging / "README.md").write_text(_card(run_dir, step, model_dir, config), encoding="utf-8")
    except (OSError, SafetensorError) as error:  # safetensors does not pass on what the system said
        num_bytes = model_facts(model_dir).num_params * _PARAMETER_BYTES
        full = error if is_full(error) else no_room(run_dir, num_bytes)
        if full is not None:
            raise disk_full(run_dir / MODEL, num_bytes, full) from error
        said = getattr(error, "strerror", None) or error
        rule = f"the model must be written to {run_dir / MODEL}: {said}"
        remedy = f"Mend that, then `headway resume {shlex.quote(str(run_dir))}` writes it"
        raise HeadwayError(rule, remedy=remedy) from error


def _card(run_dir: Path, step: int, model_dir: Path, config: SftConfig) -> str:
    """Return README.md: what the model was made from."""
    known = origin(config.model.path, model_dir)
    licence = f"license: {known.license}\n" if known.license else ""
    how = (
        "all weights"
        if config.trainer.full
        else f"LoRA factors of rank {config.trainer.lora_rank}, merged in"
    )
    data = config.sft.data.replace("\\", "/").rpartition("/")[2]
    return (
        f"---\nbase_model: {json.dumps(known.name)}\n{licence}library_name: transformers\n"
        f"tags: [headway, sft]\n---\n\n# {run_dir.name}, step {step}\n\n"
        f"{known.name} after supervised training with Headway: {how}, {step} steps on `{data}`.\n"
    )
