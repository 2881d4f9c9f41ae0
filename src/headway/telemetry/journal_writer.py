"""Writing the journal: an event's record is written before its commands run.

A plain write is enough against the death of the process; `sync` makes everything so far survive a power cut.
A record that could not be written whole is taken back, so that the journal stays readable and may be written
to again once there is room. Where it cannot be taken back nothing more is written, so that damage is only
ever at the end of the file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from headway.core.clock import stopwatch
from headway.core.codec import encoded, to_plain
from headway.core.errors import HeadwayError, RunDirectoryError
from headway.core.storage import TornFileError, append_whole, disk_full, is_full
from headway.telemetry.records import plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headway.core.commands import Command
    from headway.core.events import Event
    from headway.core.notes import Note
    from headway.telemetry.header import JournalHeader


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
            raise RunDirectoryError(
                f"{path} cannot be opened for writing: {error.strerror}",
                remedy="Give yourself the right to write there, or choose another place with run.dir.",
            ) from error

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
        """Make everything written so far survive a power cut; costs nothing when nothing is new.

        Raises DiskFullError when there is no room for it, HeadwayError when it fails otherwise.
        """
        if not self._unsynced:
            return
        start = stopwatch()
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            self._failed = True  # what is on disk is unknown
            raise self._failure(error, 0) from error
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
        line = encoded(record) + b"\n"
        try:
            append_whole(self._file, line)
        except OSError as error:
            self._failed = isinstance(error, TornFileError)
            raise self._failure(error, len(line)) from error
        self.num_bytes += len(line)
        self._unsynced = True
        self.spent_s += stopwatch() - start

    def _failure(self, error: OSError, num_bytes: int) -> HeadwayError:
        if is_full(error):
            return disk_full(self._path, num_bytes, error)
        self._failed = True
        return HeadwayError(
            f"the journal {self._path} cannot be written: {error.strerror}",
            remedy="Free disk space or mend the disk, then go on with `headway resume`.",
        )
