"""`headway export`: a run's checkpoint as a directory that transformers, PEFT and vLLM load."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError

from headway.core.errors import HeadwayError, ModelError, UserError
from headway.core.storage import is_full, no_room
from headway.models.checkpoint import resolve, verify
from headway.models.export import ExportDtype, copy_tokenizer, write_model
from headway.models.origin import origin
from headway.runtime.model import say_aside
from headway.runtime.staging import check_place, staged
from headway.runtime.trained import RunSoFar, read_run, trained_weights
from headway.telemetry.card import Exported, model_card
from headway.telemetry.journal import journal_path

if TYPE_CHECKING:
    from headway.trainer.trained import TrainedWeights

Form = Literal["merged", "adapter"]
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def export(
    run_dir: Path,
    target: Path,
    *,
    step: int | None = None,
    form: Form = "merged",
    dtype: ExportDtype = "float32",
    base: Path | None = None,
    force: bool = False,
) -> int:
    """Write a checkpoint's model to the directory `target`, whole or not at all, and return its step.

    Args:
        run_dir: the run, finished, stopped or going on.
        target: directory that does not exist or is empty.
        step: which checkpoint; None for the newest.
        form: merged for all weights, adapter for the LoRA factors alone.
        dtype: type of the stored weights.
        base: where the base model is now, if not where the run found it.
        force: replace a model that is in `target`.

    Raises UserError for whatever the user can mend.
    """
    target = Path(os.path.realpath(target.expanduser()))
    journal_path(run_dir)
    _check_apart(run_dir, target)
    check_place(target, force=force)
    run = read_run(run_dir)
    weights = trained_weights(run, step)
    if form == "adapter" and weights.adapter is None:
        raise UserError(
            "--adapter needs a run with LoRA factors, and this one trained all weights (trainer.full)",
            value=str(run_dir),
            remedy="Leave --adapter out",
        )
    base_dir = base_directory(run, base)
    if base_dir.resolve() == target:
        raise UserError(
            "the exported model must not replace its own base model",
            value=str(target),
            remedy="Name another directory",
        )
    facts = exported(run, weights, form, dtype, base_dir)
    write_checked(run, weights, target, base_dir, facts, dtype, form)
    return weights.step


def write_checked(
    run: RunSoFar,
    weights: TrainedWeights,
    target: Path,
    base_dir: Path,
    facts: Exported,
    dtype: ExportDtype,
    form: Form,
) -> None:
    """Fill and place the directory; UserError when the disk is full or weights and base do not fit."""
    card = model_card(facts, run.header, run.metrics, run.evaluations.ended)
    try:
        with staged(target) as staging:
            _check_space(run, weights, staging, dtype, form)
            if form == "adapter":
                weights.write_adapter(staging, facts.load_base, dtype)
                copy_tokenizer(base_dir, staging)
            else:
                full = merge(weights, base_dir)
                write_model(base_dir, full, staging, dtype)
            (staging / "README.md").write_text(card, encoding="utf-8")
    except OSError as error:
        raise _not_written(target, error) from error
    except SafetensorError as error:  # it does not pass on what the system said
        full = no_room(target.parent, _bytes_of(run, weights, dtype, form))
        if full is None:
            raise
        raise _not_written(target, full) from error


def merge(weights: TrainedWeights, base_dir: Path) -> dict[str, Any]:
    """Return all weights of the trained model, float32: those that the run's generator had, to the bit.

    Raises UserError when they do not fit the base model.
    """
    from headway.models.load import load_state

    _, state = load_state(base_dir)
    try:
        return weights.full(state)
    except HeadwayError as error:
        raise UserError(
            f"the checkpoint {weights.path} must fit the base model {base_dir}; {error.rule}",
            value=error.value,
            remedy="The model there is another one than the run began from: name that with --base",
        ) from error


def base_directory(run: RunSoFar, base: Path | None) -> Path:
    """Return where a run's base model is, verified: at `base`, or where the run found it."""
    named = str(base or run.config["model"]["path"])
    try:
        path = resolve(named, progress=say_aside)
        verify(path)
    except ModelError as error:
        raise ModelError(
            f"the base model of the run {run.path} cannot be used: {error.rule}",
            value=error.value,
            remedy="Put it back, or say with --base DIRECTORY where it is now",
            key="model.path",
        ) from error
    return path


def exported(
    run: RunSoFar, weights: TrainedWeights, form: Form, dtype: ExportDtype, base_dir: Path
) -> Exported:
    """Return what the model card says of an export."""
    named = str(run.config["model"]["path"])
    known = origin(named, base_dir)
    full = weights.adapter is None
    return Exported(
        step=weights.step,
        form="full" if full else form,
        dtype=dtype,
        base_model=known.name,
        load_base=known.name if known.is_hub else str(base_dir.absolute()),
        license=known.license,
        note=known.note,
        config=run.config,
    )


def _check_apart(run_dir: Path, target: Path) -> None:
    run = run_dir.resolve()
    if target == run or run in target.parents:
        raise UserError(
            "the directory must not be inside the run", value=str(target), remedy="Name one outside of it"
        )
    if target in run.parents:
        raise UserError(
            "the directory must not hold the run", value=str(target), remedy="Name one of its own"
        )


def _check_space(
    run: RunSoFar, weights: TrainedWeights, staging: Path, dtype: ExportDtype, form: Form
) -> None:
    needed, free = _bytes_of(run, weights, dtype, form), shutil.disk_usage(staging).free
    if needed > free:
        raise UserError(
            f"the model needs {needed >> 20:,} MiB, and the disk has {free >> 20:,} MiB left",
            value=str(staging.parent),
            remedy="Free some space, name a directory elsewhere, or use --dtype bfloat16",
        )


def _bytes_of(run: RunSoFar, weights: TrainedWeights, dtype: ExportDtype, form: Form) -> int:
    """Return what the weights take when they are written."""
    num_params = sum(tensor.numel() for tensor in weights.tensors.values())
    if form == "merged" and run.header.model is not None:
        num_params = run.header.model.num_params
    return num_params * _BYTES[dtype]


def _not_written(target: Path, error: OSError) -> UserError:
    if is_full(error):
        return UserError(
            "the disk was full before the model was written; nothing is left of it",
            value=str(target),
            remedy="Free some space, name a directory elsewhere, or use --dtype bfloat16",
        )
    return UserError(
        f"the model cannot be written: {error.strerror or error}",
        value=str(target),
        remedy="Choose a place that you may write to",
    )
