"""Takes up what a stream brings, bounded in memory whatever comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_FLOOD_FACTOR = 64  # output beyond this many times the limit ends the program


class Sink:
    """Keeps the first bytes of a stream, counts the rest, and tells when its first line has come."""

    def __init__(
        self, limit: int, on_flood: Callable[[], None] | None = None, first_line: bytes = b""
    ) -> None:
        self._limit = limit
        self._on_flood = on_flood
        self._first_line = first_line
        self._total = 0
        self._data = bytearray()
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def feed(self, data: bytes) -> None:
        """Take up a piece."""
        self._total += len(data)
        self._data += data[: max(0, self._limit + len(self._first_line) - len(self._data))]
        if not self.ready.done() and len(self._data) >= len(self._first_line):
            self.ready.set_result(self._data.startswith(self._first_line))
            del self._data[: len(self._first_line)]
            self._total -= len(self._first_line)
            self._first_line = b""
        if self.flooded and self._on_flood is not None:
            self._on_flood()

    def close(self) -> None:
        """Nothing more comes; idempotent."""
        if not self.ready.done():
            self.ready.set_result(False)

    @property
    def flooded(self) -> bool:
        """Whether so much came that the program should end."""
        return self._total > self._limit * _FLOOD_FACTOR

    @property
    def truncated(self) -> bool:
        """Whether more came than was kept."""
        return self._total > self._limit

    @property
    def data(self) -> bytes:
        """What was kept."""
        return bytes(self._data)

    def text(self) -> str:
        """Return what was kept; bytes that are no UTF-8 are replaced."""
        return self._data.decode(errors="replace")
