"""Messages between the driver and its workers: pickled tuples over a socket pair, length first.

Both ends are this project's own processes on one machine; nothing else can reach the sockets.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from typing import Any

Message = tuple[Any, ...]

_HEAD_BYTES = 8
_LIMIT_BYTES = 1 << 20  # of the stream's buffer; messages may be longer


class Link:
    """One end of a connection. `send` never waits; `receive` waits for the other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Link:
        """Take over a connected socket."""
        reader, writer = await asyncio.open_connection(sock=end, limit=_LIMIT_BYTES)
        return cls(reader, writer)

    def send(self, *message: Any) -> None:
        """Queue one message; a closed connection swallows it, for its end is told by `receive`."""
        if self._writer.is_closing():
            return
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self._writer.write(len(data).to_bytes(_HEAD_BYTES, "little") + data)

    async def receive(self) -> Message | None:
        """Return the next message, None once the other end is gone."""
        try:
            head = await self._reader.readexactly(_HEAD_BYTES)
            return pickle.loads(await self._reader.readexactly(int.from_bytes(head, "little")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def flush(self) -> None:
        """Wait until what was sent has left this process."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that are not inherited unless passed on by number."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
