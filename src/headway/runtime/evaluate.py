"""`headway eval`: a run that only evaluates, and what it found.

The run is one of the same scheduler and driver as any other, without a trainer: its directory has a journal
and payloads. The trained weights of a run are merged into its base model and lie in the directory, as model/,
until the evaluation is complete: to the bit those that the run's own generator had.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import UserError
from headway.rewards.settings import ShapingSettings
from headway.runtime import directory
from headway.runtime.export import base_directory, exported, write_checked
from headway.runtime.life import EXIT_OK
from headway.runtime.model import model_directory, say_aside
from headway.runtime.subject import Asked, Subject, subject_of
from headway.runtime.train import config_from_anywhere, first_life, say
from headway.runtime.trained import RunSoFar, read_run, trained_weights
from headway.runtime.view import LinesView
from headway.telemetry.evaluation_report import compared, evaluation_results, evaluation_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.telemetry.evaluations import Evaluation
    from headway.telemetry.settings import Choice

_MODEL = "model"


class AsideView(LinesView):
    """Lines on stderr: stdout is for the result."""

    def say(self, line: str) -> None:
        """Print a line."""
        say_aside(line)


def evaluate(
    asked: Asked, *, against: Path | None = None, as_json: bool = False, view: Choice | None = None
) -> int:
    """Evaluate, print the result, and return the exit code.

    Args:
        asked: what is measured, and how.
        against: a run or an evaluation whose newest evaluation it is compared with, task by task.
        as_json: print one JSON object, and everything else on stderr.
        view: in place of `telemetry.view`.

    Raises UserError for anything that the user can mend, before a process is started where possible.
    """
    subject = subject_of(asked)
    other = None if against is None else _comparable(read_run(against), subject, against)
    config = replace(subject.config, shaping=ShapingSettings())  # of training, whatever the split
    model_dir, text, fill = _model(subject, asked.step)
    parent = Path(config.run.dir)
    name = subject.name if config.run.name else directory.free_name(parent, subject.name)
    run_dir = directory.create(parent, name)
    with directory.claimed(run_dir):
        if fill is not None:
            model_dir = run_dir.absolute() / _MODEL
            _fill(fill, model_dir, run_dir)
            config = replace(config, model=replace(config.model, path=str(model_dir)))
        code = first_life(
            config_from_anywhere(config),
            run_dir,
            model_dir,
            view or config.telemetry.view,
            subject=text,
            aside=AsideView() if as_json else None,
        )
    if code != EXIT_OK:
        return code
    if fill is not None:
        _drop_weights(model_dir)
    _tell(run_dir, other, against, as_json=as_json)
    return code


def _model(subject: Subject, step: int | None) -> tuple[Path, str, Callable[[Path], None] | None]:
    """Return the base model, what is measured in words, and what writes merged weights, if there are any."""
    if subject.run is None:
        return model_directory(subject.config), f"{subject.source}, as it is", None
    run, base = subject.run, base_directory(subject.run, None)
    weights = trained_weights(run, step)
    text = f"{subject.source}, step {weights.step}"

    def fill(model_dir: Path) -> None:
        say_aside(f"merging the weights of {text}")
        facts = exported(run, weights, "merged", "float32", base)
        write_checked(run, weights, model_dir, base, facts, "float32", "merged")

    return base, text, fill


def _fill(fill: Callable[[Path], None], model_dir: Path, run_dir: Path) -> None:
    """Write the merged model; the run's directory goes again when that fails."""
    try:
        fill(model_dir)
    except BaseException:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise


def _drop_weights(model_dir: Path) -> None:
    """Keep the tokenizer, which shows the rollouts; the weights are in the run's checkpoint."""
    for file in model_dir.glob("*.safetensors*"):
        file.unlink()


def _comparable(other: RunSoFar, subject: Subject, path: Path) -> Evaluation:
    """Return the newest evaluation of another run; UserError when it is of other tasks."""
    config = subject.config
    if not other.evaluations.ended:
        raise UserError(
            "it has no complete evaluation to compare with",
            value=str(path),
            remedy="Name a run that has evaluated, or what headway eval made",
        )
    theirs = other.config["environment"]
    ours = {"name": config.environment.name, "args": config.environment.args}
    same = all(theirs[key] == json.loads(json.dumps(value)) for key, value in ours.items())
    if config.eval.split == "train":
        same = same and other.config["run"]["seed"] == config.run.seed
    if not same:
        raise UserError(
            "both evaluations must be of the same environment with the same arguments",
            value=f"{theirs['name']} {json.dumps(theirs['args'])}",
            remedy="Give both the same --env and environment.args; for train tasks the same run.seed too",
        )
    return other.evaluations.ended[-1]


def results_of(run: RunSoFar, evaluation: Evaluation) -> dict[str, Any]:
    """Return what an evaluation of a run found, as plain values."""
    settings = run.config["eval"]
    about = {
        "subject": run.header.subject or run.path.name,
        "run_dir": str(run.path),
        "environment": run.config["environment"]["name"],
        "split": settings.get("split", "eval"),
        "temperature": settings["temperature"],
    }
    return evaluation_results(evaluation, run.config["telemetry"]["solved_reward"], about)


def _tell(run_dir: Path, other: Evaluation | None, against: Path | None, *, as_json: bool) -> None:
    run = read_run(run_dir)
    mine = run.evaluations.ended[-1]
    results = results_of(run, mine)
    if other is not None:
        solved = run.config["telemetry"]["solved_reward"]
        results["against"] = {"subject": str(against), "version": other.number} | compared(
            mine, other, solved
        )
    if as_json:
        say(json.dumps(results, indent=2, allow_nan=False))
    else:
        say("\n" + evaluation_text(results).rstrip())
