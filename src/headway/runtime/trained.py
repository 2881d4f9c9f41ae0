"""What a run has made so far: its journal read once, and a checkpoint of its surviving branch.

The run may be going on meanwhile, and drop the checkpoint that was just chosen: then the next newest is.
"""

from __future__ import annotations

import contextlib
import copy
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import HeadwayError, UserError
from headway.core.events import RunResumed, SettingChanged
from headway.core.notes import RolledBackTo
from headway.runtime.job import checkpoint_dir
from headway.telemetry.evaluations import Evaluations
from headway.telemetry.header import JournalHeader
from headway.telemetry.journal import read_journal
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Entry
from headway.trainer.checkpoints import checkpoint_path, read_checkpoint, survives

if TYPE_CHECKING:
    from headway.trainer.trained import TrainedWeights

_TRIES = 5  # of a checkpoint that a running run drops while it is read


@dataclass(slots=True)
class RunSoFar:
    """A run as its journal tells it.

    Attributes:
        path: its directory.
        header: of its journal.
        config: its settings by now, plain.
        metrics: of the whole run.
        evaluations: of the whole run.
        forks: `forks[l]` is the step at which lineage l + 1 left l.
    """

    path: Path
    header: JournalHeader
    config: dict[str, Any]
    metrics: RunMetrics
    evaluations: Evaluations
    forks: list[int] = field(default_factory=list[int])

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.metrics.outcome != "unfinished"


def read_run(path: Path) -> RunSoFar:
    """Read a run's journal.

    Raises RunDirectoryError when there is none, JournalError when it is damaged.
    """
    journal = read_journal(path)
    run = RunSoFar(
        path,
        journal.header,
        copy.deepcopy(journal.header.config),
        RunMetrics(journal.header),
        Evaluations(),
    )
    for record in journal:
        run.metrics.feed(record)
        if not isinstance(record, Entry):
            continue
        run.evaluations.feed(record)
        match record.event:
            case RunResumed(lineage=lineage, step=step):
                run.forks += [step] * (lineage - len(run.forks))
            case SettingChanged(key=key, value=value):
                section, _, name = key.partition(".")
                run.config[section][name] = value
            case _:
                pass
        run.forks += [note.step for note in record.notes if isinstance(note, RolledBackTo)]
    return run


def trained_weights(run: RunSoFar, step: int | None = None) -> TrainedWeights:
    """Read the trained weights of the newest checkpoint, or of that of a step.

    Raises UserError when there is none, when it is damaged, or when it is not of the surviving branch.
    """
    from headway.trainer.trained import read_trained

    for _ in range(_TRIES):
        path = _choose(run, step)
        try:
            return read_trained(path)
        except HeadwayError as error:
            if not path.is_dir():
                continue
            others = ", ".join(str(other) for other in whole_steps(run))
            raise UserError(
                error.rule,
                value=error.value,
                remedy=f"Choose another with --step: whole are {others}"
                if others
                else "No other checkpoint is whole: go on with the run, or restore one from a copy",
            ) from error
    raise UserError(
        f"the run {run.path} drops its checkpoints faster than they are read",
        remedy="Keep more with checkpoint.keep, or wait for the run's end",
    )


def whole_steps(run: RunSoFar) -> list[int]:
    """Return the steps of the undamaged checkpoints of the surviving branch."""
    found: list[int] = []
    for step in _steps(run.path):
        with contextlib.suppress(HeadwayError):
            record = read_checkpoint(checkpoint_path(checkpoint_dir(run.path), step), hashes=True)
            if survives(step, record["lineage"], run.forks):
                found.append(step)
    return found


def _choose(run: RunSoFar, step: int | None) -> Path:
    steps = [number for number in _steps(run.path) if _may_survive(run, number)]
    if not steps:
        raise UserError(
            f"the run {run.path} has no checkpoint{'' if run.over else ' yet'}",
            remedy="It saves one when it ends, and each checkpoint.every_steps steps"
            if not run.over
            else f"Go on with `headway resume {shlex.quote(str(run.path))}`: a run saves when it ends",
        )
    if step is None:
        return checkpoint_path(checkpoint_dir(run.path), steps[-1])
    if step not in steps:
        raise UserError(
            f"the run {run.path} has no checkpoint of this step",
            value=step,
            remedy=f"There are checkpoints of the steps {', '.join(map(str, steps))}",
        )
    return checkpoint_path(checkpoint_dir(run.path), step)


def _steps(path: Path) -> list[int]:
    """Return the steps that have a checkpoint directory, whole or not."""
    folder = checkpoint_dir(path)
    names = [found.name for found in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d+)", name)))


def _may_survive(run: RunSoFar, step: int) -> bool:
    """Whether a checkpoint is of the surviving branch, or so damaged that it does not say."""
    try:
        record = read_checkpoint(checkpoint_path(checkpoint_dir(run.path), step))
    except HeadwayError:
        return True
    return survives(step, record["lineage"], run.forks)
