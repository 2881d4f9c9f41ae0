"""`headway resume`: a new life of a run, from its last undamaged checkpoint and its journal."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.config.compose import Config
from headway.config.load import load_config
from headway.config.scheduler import scheduler_settings
from headway.config.stages import Change, change, idle_at_this_stage, in_words
from headway.core.codec import to_plain
from headway.core.errors import RunDirectoryError, UserError
from headway.core.events import RunResumed, SettingChanged
from headway.core.payload import split_reference
from headway.core.storage import free_bytes, size
from headway.matching.control import Controller
from headway.queue.state import ACTIVE, CARRIED
from headway.runtime import directory, reserve, retention, snapshots
from headway.runtime.edits import check_unedited
from headway.runtime.job import checkpoint_dir, payload_dir
from headway.runtime.life import Prepared, live, sweep
from headway.runtime.model import model_directory, say_aside
from headway.runtime.sinks import with_sinks
from headway.runtime.train import run_id
from headway.runtime.view import open_view, say
from headway.telemetry.journal import read_journal, truncate_torn_tail
from headway.telemetry.journal_writer import JournalWriter
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.tensorboard import require_tensorboard
from headway.trainer.checkpoints import complete_checkpoints, find_checkpoint, read_checkpoint, step_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headway.queue.state import State
    from headway.telemetry.journal import Journal
    from headway.telemetry.settings import Choice


@dataclass(frozen=True, slots=True)
class Stage:
    """The settings of the life that begins."""

    config: Config
    began: Config  # the run's, as it began
    changes: list[Change]  # of this resume
    before: Config  # this resume
    idle: list[str]  # lines on settings without effect
    earlier: list[Change]  # of earlier lives


def resume(run_dir: Path, overrides: Sequence[str] = (), *, view: Choice | None = None) -> int:
    """Go on with a run, with `key=value` changes of its settings; return the exit code.

    `view` takes the place of `telemetry.view`.

    Raises RunDirectoryError when it is not a run or is still running, JournalError when its journal is
    damaged, ConfigError when a setting may not change or not so.
    """
    with directory.claimed(run_dir) as alone:
        return _resume(run_dir, overrides, view, directory.last_life(run_dir, alone=alone))


def _resume(
    run_dir: Path, overrides: Sequence[str], view: Choice | None, killed: directory.LifeRecord | None
) -> int:
    path = run_dir / directory.JOURNAL
    truncate_torn_tail(path)
    journal = read_journal(run_dir)
    if journal.header.simulated:
        raise RunDirectoryError(
            f"{run_dir} is a simulated run: no model ran, and there are no weights to go on from",
            remedy="Simulate more steps with `headway simulate SPEC --steps N`.",
        )
    stage = _stage(run_dir, journal, overrides)
    shown = stage.config.telemetry
    if shown.tensorboard:
        require_tensorboard("telemetry.tensorboard")
    if killed is not None:
        sweep(stage.began, killed, run_dir)
        directory.bury(run_dir, killed)
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
    checkpoint, damaged = find_checkpoint(checkpoint_dir(run_dir), state.forks)
    step = int(read_checkpoint(checkpoint)["step"]) if checkpoint is not None else 0
    if step < state.contained:
        why = "; ".join(damaged) or f"there is none of step {state.contained} or later"
        raise RunDirectoryError(
            f"no checkpoint of {run_dir} that the run can go on from is whole: {why}",
            remedy=f"Restore one of step {state.contained} or later in {checkpoint_dir(run_dir)} from a "
            "copy, or begin a new run; checkpoint.keep keeps more.",
        )
    payloads_are_there(run_dir, state, step)
    with retention.spare_snapshots(payload_dir(run_dir), retention.needs_of(state)) as spare:
        retention.remove(spare)
    lineage = state.lineage + 1
    metrics = RunMetrics.of(journal)
    reserve.take(run_dir)
    has_room(run_dir, metrics)
    say(f"run directory: {run_dir}")
    for line in damaged:
        say(f"warning: {line}")
    if step < state.saved_step:
        if not damaged:
            say(f"warning: the checkpoint of step {state.saved_step} is gone")
        say(
            f"going on from step {step}: the steps up to {state.step} are taken again, with the rollouts "
            "that they had"
        )
    for key, value in stage.changes:
        say(f"{key} = {value!r} from now on (was {in_words(stage.before, key)})")
    changes = (SettingChanged(key, to_plain(value), checked=True) for key, value in stage.changes)
    return live(
        Prepared(
            config=stage.config,
            run_dir=run_dir,
            run_id=run_id(run_dir),
            model_dir=model_dir,
            scheduler=scheduler,
            controller=controller_of(stage.began, journal),
            journal=JournalWriter(path, append=True),
            metrics=metrics,
            first=(RunResumed(lineage, step, last_s, _whole_checkpoints(run_dir, state)), *changes),
            next_seq=next_seq,
            clock_offset_s=last_s,
            lineage=lineage,
            checkpoint=checkpoint,
            view=with_sinks(
                open_view(view or shown.view, run_dir.name, metrics, journal.header),
                shown,
                run_dir,
                metrics,
                journal.header,
            ),
            earlier=(*stage.earlier, *stage.changes),
        )
    )


def controller_of(began: Config, journal: Journal) -> Controller:
    """Return the controller as the journal left it; what it decides on the way was decided before."""
    controller = Controller(began.control, scheduler_settings(began))
    for entry in journal.entries():
        controller.feed(entry)
    return controller


def _whole_checkpoints(run_dir: Path, state: State) -> tuple[int, ...]:
    """Return the steps of the checkpoints that a rollback may go back to, of those that the run remembers."""
    found = {step_of(path) for path in complete_checkpoints(checkpoint_dir(run_dir))}
    return tuple(step for step in state.saved_steps if step in found)


def has_room(run_dir: Path, metrics: RunMetrics) -> None:
    """Raise RunDirectoryError when not even the next checkpoint could be written."""
    needed = max(metrics.checkpoints.values(), default=0)
    if (free := free_bytes(run_dir)) < needed:
        reserve.give_up(run_dir)
        raise RunDirectoryError(
            f"{run_dir} must have room for the next checkpoint, {size(needed)}: {size(free)} are free there",
            remedy=f"Free room; `headway prune {shlex.quote(str(run_dir))} --dry-run` says what the run can "
            "spare.",
        )


def payloads_are_there(run_dir: Path, state: State, step: int) -> None:
    """Raise RunDirectoryError when a payload is gone or cut short that a resume from `step` needs."""
    sizes: dict[str, int] = {}
    missing: list[str] = []
    files: set[str] = set()
    for group in state.groups.values():
        if group.purpose == "eval" or (group.stage == "trained" and group.step <= step):
            continue
        for rollout in group.rollouts:
            if not rollout.payload or rollout.station in (*ACTIVE, "lost"):
                continue
            name, offset, length = split_reference(rollout.payload)
            path = payload_dir(run_dir) / name
            if name not in sizes:
                sizes[name] = path.stat().st_size if path.is_file() else 0
            if sizes[name] < offset + length:
                missing.append(rollout.id)
                files.add(name)
    if missing:
        raise RunDirectoryError(
            f"the payloads of {len(missing)} finished rollouts ({missing[0]}, ...) that are still to be "
            f"trained are gone or cut short in {', '.join(sorted(files))}",
            remedy=f"Restore these files in {payload_dir(run_dir)} from a copy, or begin a new run.",
        )


def _stage(run_dir: Path, journal: Journal, overrides: Sequence[str]) -> Stage:
    path = run_dir / directory.CONFIG
    began = load_config(path, ())
    check_unedited(path, began, journal.header.config)
    earlier = [
        (entry.event.key, entry.event.value)
        for entry in journal.entries()
        if isinstance(entry.event, SettingChanged)
    ]
    before, _ = change(path, earlier, ())
    config, changes = change(path, earlier, overrides)
    idle = idle_at_this_stage(config, path, earlier, overrides)
    return Stage(config, began, changes, before, idle, earlier)


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
