"""Reading the journal: `journal.jsonl`, a header line and then one record a line.

An unfinished or unreadable last line is torn and counts as never written; anything wrong before it is an
error. Writing is in `journal_writer`.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, cast

from headway.core.codec import from_plain
from headway.core.errors import JournalError, RunDirectoryError
from headway.core.events import SCHEMA_VERSION
from headway.telemetry.header import JournalHeader
from headway.telemetry.journal_writer import JournalWriter
from headway.telemetry.records import Entry, Stat, entry_from_plain, stat_from_plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["JOURNAL_NAME", "Journal", "JournalWriter", "journal_path", "read_journal", "truncate_torn_tail"]

JOURNAL_NAME = "journal.jsonl"


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
        seq = 0
        for number, line, last in lines:
            raw = parse_line(line, torn_allowed=last)
            if raw is None:
                if last:
                    return
                raise damage(self.path, number, "is not a JSON object")
            record = record_of(self.path, number, raw)
            if isinstance(record, Entry):
                if record.seq != seq:
                    fault = "there twice" if record.seq < seq else "missing"
                    raise damage(
                        self.path, number, f"has event {record.seq} after {seq - 1}: lines are {fault}"
                    )
                seq += 1
            yield record

    def entries(self) -> Iterator[Entry]:
        """Yield the events with their commands and notes, and no stats."""
        return (record for record in self if isinstance(record, Entry))

    def stats(self) -> Iterator[Stat]:
        """Yield the driver's measurements."""
        return (record for record in self if isinstance(record, Stat))


def record_of(path: Path, number: int, raw: dict[str, Any]) -> Entry | Stat:
    """Return the record of a line behind the header; raise JournalError where it does not fit the schema."""
    try:
        return stat_from_plain(raw) if "stat" in raw else entry_from_plain(raw)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        detail = f"does not fit journal schema {SCHEMA_VERSION} ({type(error).__name__}: {error})"
        raise damage(path, number, detail) from error


def damage(path: Path, number: int, what: str) -> JournalError:
    """Return the error for a damaged line before the last one."""
    return JournalError(
        f"line {number} {what}",
        where=f"{path}:{number}",
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
    file = path / JOURNAL_NAME if path.is_dir() and path.name != JOURNAL_NAME else path
    if not file.is_file():
        if file.exists():
            raise RunDirectoryError(
                f"the journal {file} is not a file", remedy="Put the run's journal there, from a copy."
            )
        path = path.parent if path.name == JOURNAL_NAME else path
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
        if last and parse_line(line, torn_allowed=True) is None:
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


def parse_line(line: bytes, *, torn_allowed: bool) -> dict[str, Any] | None:
    """Return the JSON object of a line, None when it is not one.

    A last line that lacks its newline is torn even if it parses: appending would join it to the next.
    """
    if torn_allowed and not line.endswith(b"\n"):
        return None
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return raw if isinstance(raw, dict) else None  # pyright: ignore[reportUnknownVariableType]


def _read_header(path: Path) -> JournalHeader:
    _, line, last = next(_numbered_lines(path), (1, b"", True))
    return read_header_line(path, parse_line(line, torn_allowed=last))


def read_header_line(path: Path, raw: dict[str, Any] | None) -> JournalHeader:
    """Return the header that a journal's first line holds.

    Raises JournalError when it is none, or of another schema version.
    """
    found = None if raw is None else raw.get("header")
    head = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if "schema" not in head:
        raise JournalError(
            "the first line is not a complete journal header",
            where=f"{path}:1",
            remedy="The run ended before it began, or this is another file; start a new run.",
        )
    if head["schema"] != SCHEMA_VERSION:
        writer = head.get("headway", "unknown")
        raise JournalError(
            f"the journal has schema version {head['schema']}, this Headway reads version {SCHEMA_VERSION}",
            where=f"{path}:1",
            remedy=f"Read it with the Headway that wrote it ({writer}), or start a new run.",
        )
    try:
        return from_plain(JournalHeader, head)
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(
            f"the journal header is damaged: {error}",
            where=f"{path}:1",
            remedy="Restore the file from a copy, or start a new run.",
        ) from error
