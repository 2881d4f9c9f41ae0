"""`headway replay --verify`: the journal against a fresh scheduler, byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.core.codec import from_plain
from headway.queue.scheduler import Scheduler
from headway.queue.settings import SchedulerSettings
from headway.telemetry.journal import read_journal
from headway.telemetry.records import encode_commands, encode_notes


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What the comparison found."""

    ok: bool
    num_events: int
    num_commands: int
    text: str


def verify(run_dir: Path) -> ReplayResult:
    """Feed a run's events to a fresh scheduler and compare its commands and notes with the recorded ones."""
    journal = read_journal(run_dir)
    scheduler = Scheduler(from_plain(SchedulerSettings, journal.header.queue))
    num_events = num_commands = 0
    for entry in journal.entries():
        commands, notes = scheduler.handle(entry.event, entry.t)
        given = (encode_commands(commands), encode_notes(notes))
        recorded = (entry.commands_json, entry.notes_json)
        if given != recorded:
            what = "commands" if given[0] != recorded[0] else "notes"
            before, after = (recorded[0], given[0]) if what == "commands" else (recorded[1], given[1])
            text = (
                f"event {entry.seq} ({type(entry.event).__name__} at {entry.t:.6f} s) gives other {what} "
                f"than recorded\n  recorded: {before}\n  given:    {after}"
            )
            return ReplayResult(False, num_events, num_commands, text)
        num_events += 1
        num_commands += len(commands)
    text = f"verified: {num_events} events gave the same {num_commands} commands and all notes, byte for byte"
    return ReplayResult(True, num_events, num_commands, text)
