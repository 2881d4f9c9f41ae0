"""The scheduler's snapshots beside the checkpoints: a resume is a snapshot plus the journal's tail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.codec import encoded
from headway.queue.scheduler import Scheduler
from headway.runtime.job import checkpoint_dir

if TYPE_CHECKING:
    from headway.queue.settings import SchedulerSettings
    from headway.telemetry.journal import Journal

_PREFIX = "scheduler-"


def write(run_dir: Path, scheduler: Scheduler, step: int, seq: int) -> None:
    """Save the state after the event `seq`; only the newest snapshot is kept."""
    directory = checkpoint_dir(run_dir)
    path = directory / f"{_PREFIX}{step:06d}.json"
    temporary = path.with_suffix(".new")
    temporary.write_bytes(encoded({"seq": seq, "state": scheduler.snapshot()}))
    temporary.replace(path)
    for other in directory.glob(f"{_PREFIX}*.json"):
        if other != path:
            other.unlink()


def rebuild(run_dir: Path, settings: SchedulerSettings, journal: Journal) -> tuple[Scheduler, int, float]:
    """Return the scheduler as the journal left it, the next event's number, and the last event's time."""
    scheduler, begin = Scheduler(settings), 0
    for path in sorted(checkpoint_dir(run_dir).glob(f"{_PREFIX}*.json"), reverse=True):
        saved = json.loads(path.read_text(encoding="utf-8"))
        scheduler, begin = Scheduler.restore(settings, saved["state"]), saved["seq"] + 1
        break
    next_seq, last_s = 0, 0.0
    for entry in journal.entries():
        next_seq, last_s = entry.seq + 1, entry.t
        if entry.seq >= begin:
            scheduler.handle(entry.event, entry.t)
    return scheduler, next_seq, last_s
