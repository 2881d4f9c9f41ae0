"""Messages between processes: pickled tuples, length first, over sockets of this machine.

The driver holds one end of a socket pair to each worker. Workers meet one another at an address, a name in
the kernel's own (abstract) space: nothing of it lies in a file system, it goes with the process that listens,
and who starts that process anew listens under the same name again. A message is unpickled only when the other
end is a process of the same user, so that nobody else can speak to a worker, nor pretend to be one.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

from headway.core.errors import HeadwayError

Message = tuple[Any, ...]

_HEAD_BYTES = 8
_LIMIT_BYTES = 1 << 20  # of the stream's buffer; messages may be longer
_PEER = struct.Struct("3i")  # pid, uid, gid
_TAKEN_TRIES, _TAKEN_WAIT_S = 50, 0.1  # an address is taken until its last owner's process is gone


class Link:
    """One end of a connection. `send` never waits; `receive` waits for the other end.

    What one turn of the event loop sends leaves together: a system call wakes the other process, which costs
    more than the message on a busy machine.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []

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
        if not self._unsent:
            self._loop.call_soon(self._write)
        self._unsent += (len(data).to_bytes(_HEAD_BYTES, "little"), data)

    def _write(self) -> None:
        data = b"".join(self._unsent)
        self._unsent.clear()
        if data and not self._writer.is_closing():
            self._writer.write(data)

    async def receive(self) -> Message | None:
        """Return the next message, None once the other end is gone."""
        try:
            head = await self._reader.readexactly(_HEAD_BYTES)
            return pickle.loads(await self._reader.readexactly(int.from_bytes(head, "little")))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def flush(self) -> None:
        """Wait until what was sent has left this process."""
        self._write()
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        """Close the connection, once what was sent has left."""
        self._write()
        self._writer.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two connected sockets that are not inherited unless passed on by number."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def address(run_id: str, name: str) -> str:
    """Return where a worker of this life of a run is met; the driver's process tells lives apart."""
    return f"headway-{run_id}-{os.getpid()}-{name}"


async def listen(at: str, met: Callable[[Link], object]) -> asyncio.Server:
    """Call `met` with each connection to an address.

    Waits a while for a process that listened there before and is about to be gone. Raises HeadwayError when
    the address stays taken.
    """

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if _own(writer):
            met(Link(reader, writer))
        else:
            writer.close()

    tries = 0
    while True:
        try:
            return await asyncio.start_unix_server(accept, "\0" + at, limit=_LIMIT_BYTES)
        except OSError as error:
            tries += 1
            if tries >= _TAKEN_TRIES:
                raise HeadwayError(f"a worker's address must be free: {error}", value=at) from error
        await asyncio.sleep(_TAKEN_WAIT_S)


async def connect(at: str) -> Link | None:
    """Return a connection to an address, None while nobody of ours listens there."""
    try:
        reader, writer = await asyncio.open_unix_connection("\0" + at, limit=_LIMIT_BYTES)
    except OSError:
        return None
    if _own(writer):
        return Link(reader, writer)
    writer.close()
    return None


def _own(writer: asyncio.StreamWriter) -> bool:
    """Say whether the process at the other end is this user's."""
    end: socket.socket = writer.get_extra_info("socket")
    peer = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return _PEER.unpack(peer)[1] == os.geteuid()
