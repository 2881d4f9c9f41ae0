"""The journal on disk: `journal.jsonl`, a header line and then one record a line.

A record is written with a plain write before its commands run, which is enough against the death of the
process; `sync` makes it survive a power cut. After a write that failed nothing more is written, so damage
is only ever at the end: an unfinished or unreadable last line is torn and counts as never written;
anything wrong before it is an error.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.core.clock import stopwatch
from headway.core.codec import dumps, from_plain, to_plain
from headway.core.commands import Command
from headway.core.errors import HeadwayError, JournalError, RunDirectoryError
from headway.core.events import SCHEMA_VERSION, Event
from headway.core.notes import Note
from headway.telemetry.header import JournalHeader
from headway.telemetry.records import Entry, Stat, entry_from_plain, plain

JOURNAL_NAME = "journal.jsonl"


class JournalWriter:
    """Appends records to a journal. One writer a journal, in one thread.

    Attributes:
        spent_s: seconds spent encoding, writing and syncing so far.
        num_bytes: bytes written by this writer.
    """

    def __init__(self, path: Path, append: bool = False) -> None:
        """Open `path`; with `append` an existing journal is continued, else it must not exist.

        Raises RunDirectoryError when the file cannot be opened so.
        """
        self.spent_s = 0.0
        self.num_bytes = 0
        self._path = path
        self._failed = False
        self._unsynced = False
        try:
            self._file = path.open("ab" if append else "xb", buffering=0)
        except FileExistsError as error:
            raise RunDirectoryError(
                f"{path} exists already",
                remedy="Choose another run directory, or continue this one with `headway resume`.",
            ) from error
        except OSError as error:
            raise RunDirectoryError(f"{path} cannot be opened for writing: {error.strerror}") from error

    def write_header(self, header: JournalHeader) -> None:
        """Write the first line and make the file itself survive a power cut."""
        self._write({"header": to_plain(header)})
        self.sync()
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def write_event(
        self, seq: int, t: float, event: Event, commands: Sequence[Command], notes: Sequence[Note]
    ) -> None:
        """Write one event with the commands and notes that handling it gave."""
        self._write(
            {
                "seq": seq,
                "t": t,
                "event": plain(event),
                "commands": [plain(command) for command in commands],
                "notes": [plain(note) for note in notes],
            }
        )

    def write_stat(self, t: float, values: Mapping[str, float]) -> None:
        """Write measurements of the driver."""
        self._write({"t": t, "stat": dict(values)})

    def sync(self) -> None:
        """Make everything written so far survive a power cut; costs nothing when nothing is new."""
        if not self._unsynced:
            return
        start = stopwatch()
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failure(error) from error
        self._unsynced = False
        self.spent_s += stopwatch() - start

    def close(self) -> None:
        """Sync, unless a write failed, and close; idempotent."""
        if self._file.closed:
            return
        try:
            if not self._failed:
                self.sync()
        finally:
            self._file.close()

    def _write(self, record: dict[str, Any]) -> None:
        if self._failed:
            raise HeadwayError(f"the journal {self._path} takes no more records: an earlier write failed")
        start = stopwatch()
        rest = memoryview((dumps(record) + "\n").encode())
        self.num_bytes += len(rest)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise self._failure(error) from error
        self._unsynced = True
        self.spent_s += stopwatch() - start

    def _failure(self, error: OSError) -> HeadwayError:
        self._failed = True
        return HeadwayError(
            f"the journal {self._path} cannot be written: {error.strerror}",
            remedy="Free disk space or mend the disk, then go on with `headway resume`.",
        )


class Journal:
    """A journal opened for reading. Iterating reads the file anew, one record at a time.

    Attributes:
        path: the file.
        header: its first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = _read_header(path)

    def __iter__(self) -> Iterator[Entry | Stat]:
        """Yield every record in order.

        Raises JournalError with the line number where a record before the last one is damaged.
        """
        lines = _numbered_lines(self.path)
        next(lines)
        for number, line, last in lines:
            raw = _parse(line, torn_allowed=last)
            if raw is None:
                if last:
                    return
                raise self._damage(number, "is not a JSON object")
            try:
                yield Stat(raw["t"], raw["stat"]) if "stat" in raw else entry_from_plain(raw)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                detail = f"does not fit journal schema {SCHEMA_VERSION} ({type(error).__name__}: {error})"
                raise self._damage(number, detail) from error

    def entries(self) -> Iterator[Entry]:
        """Yield the events with their commands and notes, and no stats."""
        return (record for record in self if isinstance(record, Entry))

    def stats(self) -> Iterator[Stat]:
        """Yield the driver's measurements."""
        return (record for record in self if isinstance(record, Stat))

    def _damage(self, number: int, what: str) -> JournalError:
        return JournalError(
            f"line {number} {what}",
            where=f"{self.path}:{number}",
            remedy="Only the last line of a journal may be torn; restore the file from a copy.",
        )


def read_journal(path: Path) -> Journal:
    """Open the journal at `path`, a run directory or the file itself.

    Raises RunDirectoryError when there is none, JournalError when it has another schema version or no
    complete header.
    """
    return Journal(journal_path(path))


def journal_path(path: Path) -> Path:
    """Return the journal's file for a run directory or the file itself.

    Raises RunDirectoryError when there is none.
    """
    file = path / JOURNAL_NAME if path.is_dir() else path
    if not file.is_file():
        raise RunDirectoryError(
            f"{path} is not a run directory: it has no {JOURNAL_NAME}",
            remedy="Give the directory that `headway train` printed first.",
        )
    return file


def truncate_torn_tail(path: Path) -> int:
    """Cut a torn last line off, so that a resumed run can append; return the bytes removed.

    Raises JournalError when not even the header is complete.
    """
    file = journal_path(path)
    _read_header(file)
    good = 0
    for _, line, last in _numbered_lines(file):
        if last and _parse(line, torn_allowed=True) is None:
            break
        good += len(line)
    removed = file.stat().st_size - good
    if removed:
        with file.open("r+b") as handle:
            handle.truncate(good)
            os.fsync(handle.fileno())
    return removed


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (line number from 1, line with its newline, whether it is the last) without reading ahead far."""
    with path.open("rb") as file:
        number = 1
        line = file.readline()
        while line:
            following = file.readline()
            yield number, line, not following
            number, line = number + 1, following


def _parse(line: bytes, *, torn_allowed: bool) -> dict[str, Any] | None:
    """Return the JSON object of a line, None when it is not one.

    A last line that lacks its newline is torn even if it parses: appending would join it to the next.
    """
    if torn_allowed and not line.endswith(b"\n"):
        return None
    try:
        raw = json.loads(line)
    except ValueError:
        return None
    return raw if isinstance(raw, dict) else None  # pyright: ignore[reportUnknownVariableType]


def _read_header(path: Path) -> JournalHeader:
    _, line, last = next(_numbered_lines(path), (1, b"", True))
    raw = _parse(line, torn_allowed=last)
    head = None if raw is None else raw.get("header")
    if not isinstance(head, dict) or "schema" not in head:
        raise JournalError(
            "the first line is not a complete journal header",
            where=f"{path}:1",
            remedy="The run ended before it began, or this is another file; start a new run.",
        )
    if head["schema"] != SCHEMA_VERSION:
        raise JournalError(
            f"the journal has schema version {head['schema']}, this Headway reads version {SCHEMA_VERSION}",
            where=f"{path}:1",
            remedy=f"Read it with the Headway that wrote it ({head.get('headway', 'unknown')}), or start a new run.",
        )
    try:
        return from_plain(JournalHeader, head)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"the journal header is damaged: {error}", where=f"{path}:1") from error
