"""Following a journal that another process writes.

Consumes the file's bytes as they come, and waits for nothing: `poll` returns what is complete by now. A line
without its newline is not there yet, nor is an unreadable last line, which a resume cuts off: both are read
anew by the next poll. So whatever a writer, its death and a resume do to the end of the file, the records
come once and in order, and the same ones that `read_journal` finds afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.errors import JournalError
from headway.telemetry.journal import JOURNAL_NAME, damage, parse_line, read_header_line, record_of

if TYPE_CHECKING:
    from pathlib import Path

    from headway.telemetry.header import JournalHeader
    from headway.telemetry.records import Entry, Stat

_POLL_BYTES = 1 << 20


class Follower:
    """Reads a growing journal.

    Attributes:
        path: the file; it need not exist yet.
        header: the first line, None until it is complete.
        caught_up: the last poll read to the file's end.
        read_fraction: share of the file's bytes that were read, at the last poll.
    """

    def __init__(self, run: Path) -> None:
        """Follow the journal of a run directory, or the file itself."""
        self.path = run / JOURNAL_NAME if run.is_dir() else run
        self.header: JournalHeader | None = None
        self.caught_up = False
        self.read_fraction = 0.0
        self._offset = 0
        self._num_lines = 0

    def poll(self, max_bytes: int = _POLL_BYTES) -> list[Entry | Stat]:
        """Return the records that were completed since the last poll, from about `max_bytes` at most.

        The poll that completes the header returns none.

        Raises JournalError for damage before the end, for another schema version, and when the file became
        shorter than what was read.
        """
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            size = 0
        if size < self._offset:
            raise JournalError(
                "the journal became shorter while it was followed",
                where=str(self.path),
                remedy="It is another run's now, or a copy took its place; look at it anew.",
            )
        data = self._read(size, max_bytes)
        records: list[Entry | Stat] = []
        lines = data.split(b"\n")
        lines.pop()  # what follows the last newline is not complete
        if self.header is None:
            del lines[1:]  # whoever follows needs the header before the first record
        self.caught_up = self._offset + len(data) >= size and (self.header is not None or not lines)
        for line in lines:
            end = self._offset + len(line) + 1
            raw = parse_line(line, torn_allowed=False)
            if raw is None:
                if end == size:
                    break  # it may yet be cut off
                raise damage(self.path, self._num_lines + 1, "is not a JSON object")
            if self.header is None:
                self.header = read_header_line(self.path, raw)
            else:
                records.append(record_of(self.path, self._num_lines + 1, raw))
            self._offset, self._num_lines = end, self._num_lines + 1
        self.read_fraction = self._offset / size if size else 0.0
        return records

    def _read(self, size: int, max_bytes: int) -> bytes:
        """Return bytes from where the last complete line ended, at least one whole line if there is one."""
        data = b""
        while self._offset + len(data) < size and b"\n" not in data:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                max_bytes = max(max_bytes, 2 * len(data))
                data = file.read(min(max_bytes, size - self._offset))
        return data
