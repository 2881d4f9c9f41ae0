"""Reads one pipe of a contained program, bounded in memory whatever the program writes.

Consumes the pipe as the event loop finds it readable, from `start` on; `ready` and `ended` are what others
wait for. Both are settled by the pipe's end, and by `close`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from headway.sandbox.sink import Sink


class Collector(Sink):
    """A sink that reads a pipe, and tells when it ends."""

    def __init__(self, fd: int, limit: int, on_flood: Callable[[], None], first_line: bytes = b"") -> None:
        super().__init__(limit, on_flood, first_line)
        self._fd = fd
        self._loop = asyncio.get_running_loop()
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
        while not self.flooded and not self.ended.done() and self._read():
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
        self.feed(data)
        return True

    def close(self) -> None:
        """Read no more; idempotent."""
        if self._started:
            self._loop.remove_reader(self._fd)
            self._started = False
        super().close()
        if not self.ended.done():
            self.ended.set_result(None)

    def take(self) -> tuple[str, bool]:
        """Return what was kept since the last call, and whether it was cut."""
        taken = self.text(), self.truncated
        self._data.clear()
        self._total = 0
        return taken
