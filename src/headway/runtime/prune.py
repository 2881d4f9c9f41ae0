"""`headway prune`: apply a retention policy to a run that nobody drives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.config.source import COMMAND_LINE, parse_override
from headway.config.stages import change
from headway.core.codec import from_plain
from headway.core.errors import UserError
from headway.core.events import SettingChanged
from headway.core.payload import split_reference
from headway.core.segments import segment_of
from headway.core.storage import size
from headway.queue.settings import SchedulerSettings
from headway.runtime import directory, reserve, retention, snapshots
from headway.runtime.handover import sweep_shared_memory
from headway.runtime.job import checkpoint_dir, payload_dir, weights_dir
from headway.runtime.kept import best_checkpoint
from headway.telemetry.journal import read_journal
from headway.telemetry.metrics import RunMetrics
from headway.trainer.checkpoints import beyond, complete_checkpoints, find_checkpoint, step_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.config.compose import Config
    from headway.queue.state import State

SETTINGS = ("checkpoint.keep", "checkpoint.keep_every_steps", "checkpoint.keep_best", "retention")


@dataclass(frozen=True, slots=True)
class Spare:
    """What a policy gives up of one kind."""

    kind: str
    paths: list[Path]
    num_bytes: int
    total_bytes: int  # of everything of the kind
    words: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy gives up."""

    spare: list[Spare]
    left: int  # checkpoints that a resume can go on from, afterwards

    @property
    def num_bytes(self) -> int:
        """Bytes that become free."""
        return sum(spare.num_bytes for spare in self.spare)


def prune(run_dir: Path, overrides: Sequence[str] = (), *, dry_run: bool = False) -> Plan:
    """Remove what the run's policy, with `key=value` changes, gives up; return what that is.

    With `dry_run` nothing is removed. What a resume needs stays in any case. What killed runs left in shared
    memory goes too, of whatever run it is.

    Raises RunDirectoryError when the run is still going, UserError for settings of anything else.
    """
    with directory.claimed(run_dir) as alone:
        directory.last_life(run_dir, alone=alone)
        plan = _plan(run_dir, overrides)
        if not dry_run:
            for spare in plan.spare:
                retention.remove(spare.paths)
            sweep_shared_memory()
    return plan


def _plan(run_dir: Path, overrides: Sequence[str]) -> Plan:
    journal = read_journal(run_dir)
    metrics = RunMetrics.of(journal)
    earlier = [
        (entry.event.key, entry.event.value)
        for entry in journal.entries()
        if isinstance(entry.event, SettingChanged)
    ]
    for override in overrides:
        key = ".".join(parse_override(override)[0])
        if not key.startswith(SETTINGS):
            raise UserError(
                "headway prune takes settings of what is kept only",
                value=override,
                remedy="They are checkpoint.keep, checkpoint.keep_every_steps, checkpoint.keep_best and "
                "those of [retention].",
                key=key,
                where=COMMAND_LINE,
            )
    config, _ = change(run_dir / directory.CONFIG, earlier, overrides)
    settings = from_plain(SchedulerSettings, journal.header.queue)
    state = snapshots.rebuild(run_dir, settings, journal)[0].state
    checkpoints, kept = _checkpoints(run_dir, config, metrics, state)
    resumable = [step for step in kept if step >= state.contained]
    needs = retention.needs_of(state, contained=min(resumable, default=0))
    folder = payload_dir(run_dir)
    segments = retention.spare_segments(folder, needs, config.retention, metrics.segment_ages.newest)
    segments += _unsegmented(folder, config, state, min(resumable, default=0))
    files = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
    with retention.spare_snapshots(folder, needs) as spare:  # nothing of the run runs
        shots = list(spare)
    num_shots = sum(path.parent.name == retention.SNAPSHOTS for path in shots)
    left = _leftovers(run_dir)
    return Plan(
        [
            _spare(
                "checkpoints", checkpoints, [checkpoint_dir(run_dir)], " ".join(p.name for p in checkpoints)
            ),
            _spare("payloads", segments, [folder], f"{len(segments)} of {len(files)} files"),
            _spare("snapshots", shots, [folder / retention.SNAPSHOTS], f"{num_shots} of sandboxes"),
            _spare("leftovers", left, left, "of a life that was killed"),
        ],
        len(resumable),
    )


def _spare(kind: str, paths: list[Path], all_of_them: list[Path], words: str) -> Spare:
    total = sum(map(retention.size_on_disk, all_of_them))
    return Spare(kind, paths, sum(map(retention.size_on_disk, paths)), total, words if paths else "")


def _checkpoints(
    run_dir: Path, config: Config, metrics: RunMetrics, state: State
) -> tuple[list[Path], list[int]]:
    """Return the checkpoints that go, and the steps of the whole ones that stay."""
    folder, settings = checkpoint_dir(run_dir), config.checkpoint
    newest, _ = find_checkpoint(folder, state.forks)
    if newest is None:
        return [], []
    best = best_checkpoint(metrics, folder) if settings.keep_best else ()
    spare = beyond(
        folder, step_of(newest), settings.keep, every=settings.keep_every_steps, also=(*best, step_of(newest))
    )
    return spare, [step_of(path) for path in complete_checkpoints(folder) if path not in spare]


def _unsegmented(folder: Path, config: Config, state: State, contained: int) -> list[Path]:
    """Return payload files of all groups, as runs before segments have, when the policy keeps nothing."""
    policy = config.retention
    if policy.payloads != "none" or policy.sample_groups or policy.evaluations or not folder.is_dir():
        return []
    needed = {
        split_reference(reference)[0]
        for group in state.groups.values()
        if group.stage != "trained" or group.step > contained
        for rollout in group.rollouts
        for reference in (rollout.payload, rollout.partial)
        if reference
    }
    return [
        path
        for path in sorted(folder.glob("*.bin"))
        if segment_of(path.name) is None and path.name not in needed
    ]


def _leftovers(run_dir: Path) -> list[Path]:
    """Return what only a life that runs needs."""
    left = [run_dir / reserve.NAME, weights_dir(run_dir)]
    left += [*run_dir.glob("*.new"), *checkpoint_dir(run_dir).glob(".partial-*")]
    return [path for path in left if path.exists() and (path.is_file() or any(path.iterdir()))]


def plan_text(run_dir: Path, plan: Plan, *, dry_run: bool) -> str:
    """Return a plan for people."""
    lines = [
        f"  {kind.kind:<12} {size(kind.num_bytes):>9} of {size(kind.total_bytes):>9}   {kind.words}"
        for kind in plan.spare
        if kind.paths
    ]
    if not lines:
        return f"{run_dir}: nothing to remove"
    verb = "would free" if dry_run else "freed"
    lines = [f"{run_dir}: {verb} {size(plan.num_bytes)}", *lines]
    if plan.left == 1:
        lines.append("  One checkpoint is left: were it damaged, the run could not be resumed.")
    return "\n".join(lines)
