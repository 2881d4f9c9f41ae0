"""The outcome of a supervised run: a model directory that `model.path` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.trainer.checkpoints import latest_checkpoint
from headway.weights.atomic import whole_directory

if TYPE_CHECKING:
    from pathlib import Path

MODEL = "model"
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


def write_trained_model(run_dir: Path, model_dir: Path) -> None:
    """Write the newest checkpoint's weights, LoRA factors merged, to RUN/model with the base's tokenizer."""
    import shutil

    from headway.models.load import load_causal_lm
    from headway.models.progress import no_progress_bars

    checkpoint = latest_checkpoint(run_dir / "checkpoints")
    assert checkpoint is not None
    with whole_directory(run_dir / MODEL) as staging, no_progress_bars():
        model: Any
        if (checkpoint / "adapter").is_dir():
            from peft import PeftModel

            model = PeftModel.from_pretrained(load_causal_lm(model_dir), str(checkpoint / "adapter"))
            model.merge_and_unload().save_pretrained(staging)
        else:
            shutil.copytree(checkpoint / "model", staging, dirs_exist_ok=True)
        for name in _FILES:
            if (model_dir / name).is_file():
                shutil.copyfile(model_dir / name, staging / name)
