"""The host's end of a relay: connections of a machine that is reached only by commands, as streams.

Consumes the frames of relay.py, which runs in the machine as one long command, as the machine's client brings
them. The task that follows it waits for that command's end, or for its cancellation, which lets the relay
end: at most `_END_S`. Whoever serves waits for the relay to listen, until `start_timeout_s`.

Nothing that comes out of the machine is believed: data beyond what was granted, connections beyond the most
and frames that make no sense end the service, with an error that its block raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import SandboxError
from headway.sandbox import relay
from headway.sandbox.cell import within
from headway.sandbox.machine import program
from headway.sandbox.relay import HEAD, PIECE, WINDOW
from headway.sandbox.serving import Ends, Service, cannot_listen
from headway.sandbox.sink import Sink

if TYPE_CHECKING:
    from headway.sandbox.machine import Machine

_END_S = 5.0  # for a relay to end that was told to
_SAID_BYTES = 4096
_RELAY = Path(relay.__file__).read_text(encoding="utf-8")


class Wire:
    """One relay, for one service."""

    def __init__(self, service: Service, machine: Machine) -> None:
        self._service = service
        self._machine = machine
        self._lines: dict[int, Line] = {}
        self._newest = 0
        self._heard = bytearray()
        self._queued = bytearray()
        self._due = asyncio.Event()  # something is queued, or it is over
        self._over = False
        self._listens: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def begin(self, start_timeout_s: float) -> None:
        """Serve from now on, as a part of the service. Raises SandboxError when nothing listens in time."""
        self._service.start(self._run())
        await within(start_timeout_s, self._listens)

    async def _run(self) -> None:
        """Serve until it is cancelled. A relay that ends by itself is a failure of the service."""
        job = {"text": _RELAY, "port": self._service.port, "most": self._service.max_connections}
        said = Sink(_SAID_BYTES)

        async def call() -> None:
            why = "ended"
            try:
                code = await self._machine.call(program("relay", job), self._feed(), self, said, own=True)
                why = said.text().strip() or f"ended with {code}"
            except SandboxError as error:
                why = error.rule
            if not self._over:
                self._fail(SandboxError(f"what serves a sandbox in its machine ended: {why}"))

        async with asyncio.TaskGroup() as group:
            calling = group.create_task(call())
            try:
                await asyncio.wait([calling])
            finally:
                self._end()
                await asyncio.wait([calling], timeout=_END_S)
                calling.cancel()

    def send(self, kind: bytes, number: int, count: int = 0, data: bytes | bytearray = b"") -> None:
        """Queue a frame for the relay."""
        self._queued += HEAD.pack(kind, number, count) + data
        self._due.set()

    def forget(self, number: int) -> None:
        """Called by a line that is closed."""
        self._lines.pop(number, None)

    def feed(self, data: bytes) -> None:
        """Take up what the relay sent."""
        self._heard += data
        while not self._over and len(self._heard) >= HEAD.size:
            kind, number, count = HEAD.unpack_from(self._heard)
            has_data = kind in (b"D", b"X")
            if has_data and count > PIECE:
                return self._fail(SandboxError("a machine sent what makes no sense", value=count))
            size = HEAD.size + (count if has_data else 0)
            if len(self._heard) < size:
                return None
            piece = bytes(self._heard[HEAD.size : size])
            del self._heard[:size]
            self._hear(kind, number, count, piece)
        return None

    def _hear(self, kind: bytes, number: int, count: int, data: bytes) -> None:
        if kind in (b"L", b"X"):
            if kind == b"X":
                self._fail(cannot_listen(self._service.port, data.decode(errors="replace")))
            elif not self._listens.done():
                self._service.port = count
                self._listens.set_result(None)
        elif kind == b"O":
            if number <= self._newest or len(self._lines) >= self._service.max_connections:
                return self._fail(SandboxError("a machine opened too many connections", value=number))
            self._newest = number
            line = self._lines[number] = Line(self, number)
            self._service.start(self._service.handle(line.attach)).add_done_callback(lambda _: line.abort())
        elif number > self._newest or kind not in (b"D", b"W", b"E", b"C"):
            self._fail(SandboxError("a machine sent what makes no sense", value=repr(kind)))
        elif number in self._lines and not self._lines[number].heard(kind, count, data):
            self._fail(SandboxError("a machine sent more than was asked for", value=count))
        return None

    def _fail(self, error: SandboxError) -> None:
        if not self._over:
            self._end()
            if self._listens.done():
                self._service.fail(error)
            else:
                self._listens.set_exception(error)

    def _end(self) -> None:
        """Let the relay end; every connection is lost."""
        self._over = True
        self._due.set()
        for line in tuple(self._lines.values()):
            line.lose()

    async def _feed(self) -> AsyncIterator[bytes]:
        while not self._over or self._queued:
            await self._due.wait()
            self._due.clear()
            data, self._queued = bytes(self._queued), bytearray()
            if data:
                yield data
            if self._over:
                return


class Line(asyncio.Transport):
    """One connection of a wire."""

    def __init__(self, wire: Wire, number: int) -> None:
        super().__init__()
        self._wire = wire
        self._number = number
        self._ends: Ends | None = None
        self._early: list[tuple[bytes, int, bytes]] = []  # what came before its handler
        self._waiting = bytearray()  # written, and more than may be sent
        self._credit = WINDOW  # bytes that may be sent
        self._granted = WINDOW  # bytes that may come
        self._unread = 0  # came, and were not granted again
        self._attaching = self._still = self._full = self._is_last = self._said_all = self._is_over = False

    async def attach(self, ends: Ends) -> asyncio.Transport:
        """Begin to speak."""
        self._ends, self._attaching = ends, True
        ends.connection_made(self)
        early, self._early = self._early, []
        for frame in early:
            self._do(*frame)
        self._attaching = False
        if self._is_over and not ends.is_lost:
            asyncio.get_running_loop().call_soon(ends.connection_lost, None)
        return self

    def heard(self, kind: bytes, count: int, data: bytes) -> bool:
        """Take up a frame; False when it is more than was granted."""
        if kind == b"D":
            self._granted -= count
        elif kind == b"W":
            self._credit += count
        if self._granted < 0 or self._credit > WINDOW:
            return False
        if self._ends is None and kind != b"W":
            self._early.append((kind, count, data))
        else:
            self._do(kind, count, data)
        return True

    def _do(self, kind: bytes, count: int, data: bytes) -> None:
        ends = self._ends
        if kind == b"W":
            self._send()
        elif ends is None or self._is_over:
            return
        elif kind == b"D":
            self._unread += count
            if not self._is_last:  # else nobody reads any more
                ends.data_received(data)
            self._grant()
        elif kind == b"E":
            ends.eof_received()
        else:
            self.lose()

    def _grant(self) -> None:
        if not self._still and self._unread >= WINDOW // 4:
            self._wire.send(b"W", self._number, self._unread)
            self._granted += self._unread
            self._unread = 0

    def _send(self) -> None:
        while self._credit and self._waiting:
            piece = self._waiting[: min(self._credit, PIECE)]
            del self._waiting[: len(piece)]
            self._credit -= len(piece)
            self._wire.send(b"D", self._number, len(piece), piece)
        if self._full and len(self._waiting) <= PIECE // 4 and self._ends is not None:
            self._full = False
            self._ends.resume_writing()
        if not self._waiting and self._said_all:
            self._said_all = False
            self._wire.send(b"F" if self._is_last else b"E", self._number)

    def lose(self) -> None:
        """It is closed, whatever there was to say; idempotent."""
        if not self._is_over:
            self._is_over = self._is_last = True
            self._wire.forget(self._number)
            if self._ends is not None and not self._attaching:
                asyncio.get_running_loop().call_soon(self._ends.connection_lost, None)

    # --- asyncio.Transport

    def is_closing(self) -> bool:
        """Say whether it is closed, or will be."""
        return self._is_last

    def close(self) -> None:
        """Close it when everything was taken."""
        if not self._is_last:
            self._is_last = self._said_all = True
            self._still = False
            self._send()
            self._grant()

    def abort(self) -> None:
        """Close it now."""
        if not self._is_over:
            self._wire.send(b"C", self._number)
            self.lose()

    def can_write_eof(self) -> bool:
        """Say that each side ends for itself."""
        return True

    def write_eof(self) -> None:
        """Say no more, and go on hearing."""
        if not self._is_last:
            self._said_all = True
            self._send()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, as far as it is granted; the rest waits."""
        if not self._is_last:
            self._waiting += data
            self._send()
            if len(self._waiting) > PIECE and not self._full and self._ends is not None:
                self._full = True
                self._ends.pause_writing()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait."""
        return len(self._waiting)

    def pause_reading(self) -> None:
        """Grant nothing more."""
        self._still = True

    def resume_reading(self) -> None:
        """Grant again what was read."""
        self._still = False
        self._grant()
