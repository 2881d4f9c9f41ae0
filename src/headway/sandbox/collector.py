"""Reads one pipe of a contained program, bounded in memory whatever the program writes.

Consumes the pipe as the event loop finds it readable, from `start` on; `ready` and `ended` are what others
wait for. Both are settled by the pipe's end, and by `close`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_FLOOD_FACTOR = 64  # output beyond this many times the limit ends the program


class Collector:
    """Keeps the first bytes of a pipe, counts the rest, and tells when it ends."""

    def __init__(self, fd: int, limit: int, on_flood: Callable[[], None], first_line: bytes = b"") -> None:
        self._fd = fd
        self._limit = limit
        self._on_flood = on_flood
        self._first_line = first_line
        self._total = 0
        self._data = bytearray()
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bool] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._started = False
        os.set_blocking(fd, False)

    def start(self) -> None:
        """Read from now on."""
        if not self._started and not self.ended.done():
            self._started = True
            self._loop.add_reader(self._fd, self._read)

    def drain(self) -> None:
        """Read what is there, and no more afterwards; for a pipe whose writers are gone."""
        while self._total <= self._limit * _FLOOD_FACTOR and not self.ended.done() and self._read():
            continue
        self.close()

    def _read(self) -> bool:
        """Read once; return whether there may be more."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._total += len(data)
        self._data += data[: max(0, self._limit + len(self._first_line) - len(self._data))]
        if not self.ready.done() and len(self._data) >= len(self._first_line):
            self.ready.set_result(self._data.startswith(self._first_line))
            del self._data[: len(self._first_line)]
            self._total -= len(self._first_line)
            self._first_line = b""
        if self._total > self._limit * _FLOOD_FACTOR:
            self._on_flood()
        return True

    def close(self) -> None:
        """Read no more; idempotent."""
        if self._started:
            self._loop.remove_reader(self._fd)
            self._started = False
        if not self.ready.done():
            self.ready.set_result(False)
        if not self.ended.done():
            self.ended.set_result(None)

    @property
    def truncated(self) -> bool:
        """Whether more came than was kept."""
        return self._total > self._limit

    def text(self) -> str:
        """Return what was kept; bytes that are no UTF-8 are replaced."""
        return self._data.decode(errors="replace")

    def take(self) -> tuple[str, bool]:
        """Return what was kept since the last call, and whether it was cut."""
        taken = self.text(), self.truncated
        self._data.clear()
        self._total = 0
        return taken
