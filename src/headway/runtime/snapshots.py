"""The scheduler's snapshots beside the checkpoints: a resume is a snapshot plus the journal's tail.

A snapshot spares the replay of the journal up to it and nothing else: the scheduler is the same whichever one
it is rebuilt from. One is written when a checkpoint is done, and as many are kept as checkpoints; a damaged
one is passed over for an older one, and without any the whole journal is replayed.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from headway.core.codec import encoded, ordered
from headway.queue.scheduler import Scheduler
from headway.runtime.job import checkpoint_dir

if TYPE_CHECKING:
    from pathlib import Path

    from headway.queue.settings import SchedulerSettings
    from headway.telemetry.journal import Journal

_PREFIX = "scheduler-"


def write(run_dir: Path, scheduler: Scheduler, seq: int, keep: int) -> None:
    """Save the state after the event `seq`, whole or not at all; only the newest `keep` are kept.

    Raises OSError when it cannot be written.
    """
    directory = checkpoint_dir(run_dir)
    state = ordered(scheduler.snapshot())  # the scheduler goes round its tables in the order they were made
    head = encoded({"seq": seq, "sha256": hashlib.sha256(state).hexdigest()})
    path = directory / f"{_PREFIX}{seq:012d}.json"
    temporary = path.with_suffix(".new")
    try:
        with temporary.open("wb") as file:
            file.write(head + b"\n" + state + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    for old in sorted(directory.glob(f"{_PREFIX}*.json"))[:-keep]:
        old.unlink()


def rebuild(run_dir: Path, settings: SchedulerSettings, journal: Journal) -> tuple[Scheduler, int, float]:
    """Return the scheduler as the journal left it, the next event's number, and the last event's time."""
    scheduler, begin = Scheduler(settings), 0
    for path in sorted(checkpoint_dir(run_dir).glob(f"{_PREFIX}*.json"), reverse=True):
        saved = _read(path)
        if saved is not None:
            scheduler, begin = Scheduler.restore(settings, saved[1]), saved[0] + 1
            break
    next_seq, last_s = 0, 0.0
    for entry in journal.entries():
        next_seq, last_s = entry.seq + 1, entry.t
        if entry.seq >= begin:
            scheduler.handle(entry.event, entry.t)
    return scheduler, next_seq, last_s


def _read(path: Path) -> tuple[int, dict[str, Any]] | None:
    """Return a snapshot's event number and state, None when it is damaged."""
    try:
        first, state = path.read_bytes().split(b"\n")[:2]
        head = json.loads(first)
        if hashlib.sha256(state).hexdigest() != head["sha256"]:
            return None
        return head["seq"], json.loads(state)
    except (OSError, ValueError, KeyError, TypeError):
        return None
