"""Reads one pipe of a contained program, bounded in memory whatever the program writes.

Consumes the pipe as the event loop finds it readable; `ready` and `ended` are what others wait for. Both
are settled by the pipe's end, and by `close`.
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
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.close()
            return
        self._total += len(data)
        self._data += data[: max(0, self._limit + len(self._first_line) - len(self._data))]
        if not self.ready.done() and len(self._data) >= len(self._first_line):
            self.ready.set_result(self._data.startswith(self._first_line))
            del self._data[: len(self._first_line)]
            self._total -= len(self._first_line)
            self._first_line = b""
        if self._total > self._limit * _FLOOD_FACTOR:
            self._on_flood()

    def close(self) -> None:
        """Read no more; idempotent."""
        self._loop.remove_reader(self._fd)
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
