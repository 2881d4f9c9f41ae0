"""What `headway eval` measures: a config's model, a run's checkpoint, or a model directory.

A subject is a whole config, and the run whose trained weights take the place of its model's, if any.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headway.config.compose import Config
from headway.config.load import load_config
from headway.config.stages import at_this_stage
from headway.core.errors import UserError
from headway.core.events import SettingChanged
from headway.models.fetch import FETCHABLE
from headway.runtime import directory
from headway.runtime.trained import RunSoFar, read_run
from headway.telemetry.journal import JOURNAL_NAME, read_journal

if TYPE_CHECKING:
    from collections.abc import Sequence

Kind = Literal["config", "run", "model"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for; None where it leaves it to the config."""

    target: str
    overrides: tuple[str, ...] = ()
    step: int | None = None
    model: str | None = None  # whose weights are measured, a model or a run, in place of the target's
    env: str | None = None
    num_tasks: int | None = None
    rollouts_per_task: int | None = None
    temperature: float | None = None
    split: Literal["eval", "train"] | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured.

    Attributes:
        config: of the evaluation; model.path is the base model's where `weights` are given.
        name: of the run directory, before it is made unique.
        source: what the weights are of, as it was named.
        run: that they are of, None for a model as it is.
    """

    config: Config
    name: str
    source: str
    run: RunSoFar | None = None


def subject_of(asked: Asked) -> Subject:
    """Return what is asked for.

    Raises UserError for anything that the user can mend.
    """
    kind = kind_of(asked.target)
    if kind == "model" and asked.env is None:
        raise UserError(
            "a model alone says nothing of its tasks",
            value=asked.target,
            remedy="Name an environment with --env NAME, or evaluate CONFIG or RUN with --model",
        )
    source = asked.target if asked.model is None else asked.model
    source_kind = kind if asked.model is None else kind_of(asked.model)
    if source_kind == "config" and asked.model is not None:
        raise UserError(
            "--model takes a model or a run, and this is a config",
            value=asked.model,
            remedy="Name a directory that headway export wrote, a run, or a model's name",
        )
    if asked.step is not None and source_kind != "run":
        raise UserError(
            "--step chooses among the checkpoints of a run, and this is none",
            value=source,
            remedy="Leave --step out, or name a run",
        )
    config = _config(asked, kind)
    name = config.run.name or f"eval-{_stem(asked.target)}"
    if source_kind != "run":
        return Subject(config, name, config.model.path)
    return Subject(config, name, source, read_run(Path(source)))


def kind_of(target: str) -> Kind:
    """Say whether a target is a config, a run or a model; UserError for none of them."""
    path = Path(target).expanduser()
    if path.is_dir():
        return "run" if (path / JOURNAL_NAME).exists() else "model"
    if path.suffix == ".gguf" or target in FETCHABLE:
        return "model"
    if path.is_file():
        return "config"
    raise UserError(
        "there is no config, run or model of this name",
        value=target,
        remedy=f"Name a .toml file, a run's directory, a model's directory, or {' or '.join(FETCHABLE)}",
    )


def _config(asked: Asked, kind: Kind) -> Config:
    """Load the target's config with what the evaluation changes in it."""
    given: list[str] = ["run.name="]
    if kind == "run":
        given.append(f"run.dir={json.dumps(str(Path(asked.target).absolute().parent))}")
    if asked.env is not None:
        given += [f"environment.name={json.dumps(asked.env)}", "environment.args="]
    model = asked.model if asked.model is not None else asked.target if kind == "model" else None
    if model is not None and kind_of(model) == "model":
        given.append(f"model.path={json.dumps(model)}")
    given += asked.overrides
    fixed = ["eval.only=true", *_measure(asked)]
    if kind == "run":
        return _of_run(Path(asked.target), [*given, *fixed])
    return load_config(Path(asked.target) if kind == "config" else None, [*given, *fixed])


def _measure(asked: Asked) -> list[str]:
    """Return the settings of the evaluation that the options give."""
    options = {
        "num_tasks": asked.num_tasks,
        "rollouts_per_task": asked.rollouts_per_task,
        "temperature": asked.temperature,
        "split": None if asked.split is None else json.dumps(asked.split),
    }
    found = [f"eval.{name}={value}" for name, value in options.items() if value is not None]
    if (asked.rollouts_per_task or 1) > 1 and asked.temperature is None:
        found.append("eval.temperature=1.0")  # greedy rollouts of a task are all alike
    if asked.temperature == 0 and asked.rollouts_per_task is None:
        found.append("eval.rollouts_per_task=1")
    return found


def _of_run(run_dir: Path, overrides: Sequence[str]) -> Config:
    journal = read_journal(run_dir)
    earlier = [
        (entry.event.key, entry.event.value)
        for entry in journal.entries()
        if isinstance(entry.event, SettingChanged)
    ]
    return at_this_stage(run_dir / directory.CONFIG, earlier, overrides)


def _stem(target: str) -> str:
    path = Path(target).expanduser().absolute()
    name = path.stem if path.is_file() else path.name
    return "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in name).lstrip(".-")
