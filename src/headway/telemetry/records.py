"""What a journal's lines hold, typed; and how an entry's parts are encoded.

Encoding is canonical, so two equal lists of commands are equal strings: a replay compares
`entry.commands_json` with `encode_commands` of what a fresh scheduler answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headway.core.codec import dumps, to_plain
from headway.core.commands import Command, command_from_plain
from headway.core.events import Event, event_from_plain
from headway.core.notes import Ignored, Note, note_from_plain

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, with the commands and notes that handling it gave."""

    seq: int  # position among the events, from 0
    t: float  # seconds since the run began, stops left out
    event: Event
    commands: tuple[Command, ...] = ()
    notes: tuple[Note, ...] = ()
    raw: dict[str, Any] | None = field(default=None, repr=False, compare=False)  # the line, when it was read

    @property
    def is_ignored(self) -> bool:
        """True for a late or repeated event, which changed nothing."""
        kind = type(self.event).__name__
        return any(isinstance(note, Ignored) and note.event == kind for note in self.notes)

    @property
    def event_json(self) -> str:
        """Canonical JSON of the event, as the journal has it."""
        return dumps(self.raw["event"]) if self.raw is not None else dumps(plain(self.event))

    @property
    def commands_json(self) -> str:
        """Canonical JSON of the commands, as the journal has them."""
        return dumps(self.raw["commands"]) if self.raw is not None else encode_commands(self.commands)

    @property
    def notes_json(self) -> str:
        """Canonical JSON of the notes, as the journal has them."""
        return dumps(self.raw["notes"]) if self.raw is not None else encode_notes(self.notes)


@dataclass(frozen=True, slots=True)
class Stat:
    """Measurements of the driver itself; a replay ignores them.

    Known keys: `driver_cpu_s`, `scheduler_s` and `journal_s`, totals of the driver process. What the run
    takes on disk, in stats of their own: `disk.checkpoints_bytes`, `disk.payloads_bytes`,
    `disk.journal_bytes`, `disk.weights_bytes`, and `disk.free_bytes`, which are free where the run is.
    """

    t: float  # seconds since the run began
    values: dict[str, float]


def plain(record: Event | Command | Note) -> dict[str, Any]:
    """Return an event, command or note as a JSON object that names its kind."""
    return {"kind": type(record).__name__, **to_plain(record)}


def encode_commands(commands: Sequence[Command]) -> str:
    """Return the canonical JSON array of commands."""
    return dumps([plain(command) for command in commands])


def encode_notes(notes: Sequence[Note]) -> str:
    """Return the canonical JSON array of notes."""
    return dumps([plain(note) for note in notes])


def stat_from_plain(raw: dict[str, Any]) -> Stat:
    """Rebuild measurements from their line.

    Raises KeyError, TypeError or ValueError when the line does not fit this schema.
    """
    return Stat(float(raw["t"]), {str(name): float(value) for name, value in dict(raw["stat"]).items()})


def entry_from_plain(raw: dict[str, Any]) -> Entry:
    """Rebuild an entry from its line.

    Raises KeyError, TypeError or ValueError when the line does not fit this schema.
    """
    event, commands, notes = raw["event"], raw["commands"], raw["notes"]
    return Entry(
        raw["seq"],
        float(raw["t"]),
        event_from_plain(event["kind"], event),
        tuple(command_from_plain(item["kind"], item) for item in commands),
        tuple(note_from_plain(item["kind"], item) for item in notes),
        raw,
    )
