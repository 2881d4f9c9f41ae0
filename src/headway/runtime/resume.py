"""`headway resume`: a new life of a run, from its last undamaged checkpoint and its journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.config.compose import Config
from headway.config.load import load_config
from headway.config.stages import Change, change, idle_at_this_stage, value_of
from headway.core.codec import to_plain
from headway.core.errors import RunDirectoryError, UserError
from headway.core.events import RunResumed, SettingChanged
from headway.queue.state import CARRIED
from headway.runtime import directory, snapshots
from headway.runtime.job import checkpoint_dir
from headway.runtime.life import Prepared, live, sweep
from headway.runtime.model import model_directory, say_aside
from headway.runtime.train import run_id, say, scheduler_settings
from headway.telemetry.journal import read_journal, truncate_torn_tail
from headway.telemetry.journal_writer import JournalWriter
from headway.telemetry.metrics import RunMetrics
from headway.trainer.checkpoints import latest_checkpoint, read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headway.queue.state import State
    from headway.telemetry.journal import Journal


@dataclass(frozen=True, slots=True)
class Stage:
    """The settings of the life that begins."""

    config: Config
    began: Config  # the run's, as it began
    changes: list[Change]  # of this resume
    before: Config  # this resume
    idle: list[str]  # lines on settings without effect


def resume(run_dir: Path, overrides: Sequence[str] = ()) -> int:
    """Go on with a run, with `key=value` changes of its settings; return the exit code.

    Raises RunDirectoryError when it is not a run or is still running, JournalError when its journal is
    damaged, ConfigError when a setting may not change or not so.
    """
    with directory.claimed(run_dir):
        return _resume(run_dir, overrides)


def _resume(run_dir: Path, overrides: Sequence[str]) -> int:
    killed = directory.last_life(run_dir)
    path = run_dir / directory.JOURNAL
    truncate_torn_tail(path)
    journal = read_journal(run_dir)
    stage = _stage(run_dir, journal, overrides)
    if killed is not None:
        sweep(stage.began, killed)
        directory.end_life(run_dir)
    scheduler, next_seq, last_s = snapshots.rebuild(run_dir, scheduler_settings(stage.began), journal)
    state = scheduler.state
    if state.phase == "finished" and state.outcome not in CARRIED:
        said = f"the run {run_dir} is complete ({state.outcome}: {state.message})"
        if not overrides:
            say(said)
            return 0
        _check_goes_on(stage, state, last_s, said)
    for line in stage.idle:
        say_aside(line)
    model_dir = model_directory(stage.config)
    checkpoint = latest_checkpoint(checkpoint_dir(run_dir), state.forks)
    step = int(read_checkpoint(checkpoint)["step"]) if checkpoint is not None else 0
    if step < state.contained:
        raise RunDirectoryError(
            f"no checkpoint of {run_dir} is whole, and what its first {state.contained} steps trained is "
            "remembered no longer",
            remedy="Restore one of checkpoints/ from a copy, or begin a new run; checkpoint.keep keeps more.",
        )
    lineage = state.lineage + 1
    metrics = RunMetrics.of(journal)
    say(f"run directory: {run_dir}")
    if step < state.saved_step:
        lost = f"the checkpoint of step {state.saved_step}"
        say(f"warning: {lost} is damaged or gone; going on from step {step}")
    for key, value in stage.changes:
        say(f"{key} = {value!r} from now on (was {value_of(stage.before, key)!r})")
    changes = (SettingChanged(key, to_plain(value), checked=True) for key, value in stage.changes)
    return live(
        Prepared(
            config=stage.config,
            run_dir=run_dir,
            run_id=run_id(run_dir),
            model_dir=model_dir,
            scheduler=scheduler,
            journal=JournalWriter(path, append=True),
            metrics=metrics,
            first=(RunResumed(lineage, step, last_s), *changes),
            next_seq=next_seq,
            clock_offset_s=last_s,
            lineage=lineage,
            checkpoint=checkpoint,
            say=say,
        )
    )


def _stage(run_dir: Path, journal: Journal, overrides: Sequence[str]) -> Stage:
    path = run_dir / directory.CONFIG
    began = load_config(path, ())
    if to_plain(began) != journal.header.config:
        raise RunDirectoryError(
            f"{path} is not the config that the run began with",
            remedy="Undo the change; settings change by `headway resume RUN key=value`.",
        )
    earlier = [
        (entry.event.key, entry.event.value)
        for entry in journal.entries()
        if isinstance(entry.event, SettingChanged)
    ]
    before, _ = change(path, earlier, ())
    config, changes = change(path, earlier, overrides)
    idle = idle_at_this_stage(config, path, earlier, overrides)
    return Stage(config, began, changes, before, idle)


def _check_goes_on(stage: Stage, state: State, last_s: float, said: str) -> None:
    """Raise UserError unless the changes lift what a complete run ended by."""
    stop = stage.config.stop
    lifted = {
        "steps": not stop.steps or stop.steps > state.step,
        "wall": not stop.wall_s or stop.wall_s > last_s,
        "target": stop != stage.before.stop,
        "no_signal": bool(stage.changes),
    }
    if not lifted.get(state.outcome, False):
        by = {"steps": "stop.steps", "wall": "stop.wall_s", "target": "stop.target_reward"}.get(state.outcome)
        remedy = f"It goes on with a higher {by}" if by else "Begin a new run"
        raise UserError(f"{said}, and these changes do not let it go on", remedy=remedy)
