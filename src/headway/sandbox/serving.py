"""What a sandbox serves: connections of its programs to a port of theirs, each handled by a coroutine here.

Consumes connections of doors, sockets that listen in the sandbox's own network and that this process holds,
as the event loop finds them readable; and those that a wire hands over, where a machine is reached only by
commands (wire.py). A connection waits for its handler, then for what that wrote to be taken; the block's end
and the sandbox's end cancel both.

Invariants: when a block has ended, none of its handlers runs and none of its doors is open. A program that
opens connections without end has no more than its share of descriptors (`max_connections`) and of the event
loop's time (`RATE_PER_S`), for the others wait in the kernel's line, which is short.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError

if TYPE_CHECKING:
    from headway.core.protocols import ConnectionHandler

RATE_PER_S = 200.0  # of new connections to one door, when more than `max_connections` come at once
IN_LINE = 64  # connections that wait to be taken up
_BUFFER_BYTES = 1 << 18  # of the kernel's, for each connection and direction on the host's side
_SHORT_S = 0.1  # until the next look, when descriptors run short


class Ends(asyncio.StreamReaderProtocol):
    """The host's end of one connection, as streams."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        super().__init__(self.reader)
        self.is_lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the transport when nothing can be said any more."""
        self.is_lost = True
        super().connection_lost(exc)


class Services:
    """What one sandbox serves now."""

    def __init__(self) -> None:
        self._open: list[Service] = []

    def __iter__(self) -> Iterator[Service]:
        return iter(tuple(self._open))

    def close(self) -> None:
        """End every one; the sandbox ends."""
        for service in self:
            service.close()

    @contextlib.asynccontextmanager
    async def serve(
        self,
        port: int,
        handler: ConnectionHandler,
        max_connections: int,
        begin: Callable[[Service], Awaitable[None]],
    ) -> AsyncGenerator[int]:
        """Serve for the length of a block; `begin` opens the first door, or says that others will."""
        if not (port == 0 or 1024 <= port < 65536) or max_connections < 1:
            raise SandboxError(
                "a port that is served must be 0 or from 1024 to 65535, to one connection or more",
                value=(port, max_connections),
            )
        if port and any(service.port == port for service in self):
            raise SandboxError("a port can be served once at a time", value=port)
        failure: BaseException | None = None
        async with asyncio.TaskGroup() as group:
            service = Service(port, handler, max_connections, group)
            try:
                await begin(service)
                self._open.append(service)
                yield service.port
            except BaseException as error:  # it leaves the block as it is, and in no group
                failure = error
            finally:
                service.close()
                if service in self._open:
                    self._open.remove(service)
        if failure is None:
            failure = service.failure
        elif service.failure is not None:
            failure.add_note(f"Before, the handler of port {service.port} raised {service.failure!r}")
        if failure is not None:
            raise failure


class Service:
    """One block of `serve`."""

    def __init__(
        self, port: int, handler: ConnectionHandler, max_connections: int, group: asyncio.TaskGroup
    ) -> None:
        self.port = port  # 0 until the first door is open
        self.max_connections = max_connections
        self.failure: Exception | None = None  # the first that a handler raised
        self.closed = False
        self._handler = handler
        self._group = group
        self._doors: set[Door] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, listener: socket.socket) -> Door:
        """Take up connections of a listening socket from now on; the socket is the door's."""
        self.port = listener.getsockname()[1]
        door = Door(self, listener)
        if self.closed:
            door.close()
        else:
            self._doors.add(door)
        return door

    def forget(self, door: Door) -> None:
        """Called by a door that is closed."""
        self._doors.discard(door)

    def shut(self) -> None:
        """Close every door; connections go on."""
        for door in tuple(self._doors):
            door.close()

    def close(self) -> None:
        """Close every door and cancel every handler; idempotent."""
        self.closed = True
        self.shut()
        for task in tuple(self._tasks):
            task.cancel()

    def fail(self, error: Exception) -> None:
        """Remember the first failure, to be raised at the block's end."""
        self.failure = self.failure or error

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Run what belongs to the service until it closes."""
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.closed:  # a wire may still be told of connections
            task.cancel()
        return task

    async def handle(self, attach: Callable[[Ends], Awaitable[asyncio.Transport]]) -> None:
        """Handle one connection to its end; what its client does wrong is nobody else's trouble."""
        ends = Ends()
        transport: asyncio.Transport | None = None
        try:
            transport = await attach(ends)
            writer = asyncio.StreamWriter(transport, ends, ends.reader, asyncio.get_running_loop())
            await self._handler(ends.reader, writer)
            writer.close()
            await writer.wait_closed()  # a client that does not take what was written keeps its place
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        except Exception as error:  # told at the block's end
            self.fail(error)
        finally:
            if transport is not None and not ends.is_lost:
                transport.abort()


class Door:
    """One socket that listens in a sandbox's network."""

    def __init__(self, service: Service, listener: socket.socket) -> None:
        self._service = service
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._num_open = 0
        self._budget = float(service.max_connections)  # connections that may be taken up at once
        self._counted_at = stopwatch()
        self._watching = False
        self._again: asyncio.TimerHandle | None = None
        self._closed = False
        listener.setblocking(False)
        for side in (socket.SO_RCVBUF, socket.SO_SNDBUF):  # or each connection could hold megabytes
            listener.setsockopt(socket.SOL_SOCKET, side, _BUFFER_BYTES)
        self._watch()

    def end(self) -> None:
        """Take up whoever is in line, as far as there is place, and close; its programs have ended."""
        if not self._closed and not self._service.closed:
            self._look()
        self.close()

    def close(self) -> None:
        """Take up nobody any more; idempotent. Connections go on."""
        if self._closed:
            return
        self._rest()
        self._closed = True
        self._listener.close()
        self._service.forget(self)

    def _watch(self) -> None:
        self._again = None
        if not self._closed and not self._watching:
            self._watching = True
            self._loop.add_reader(self._listener, self._look)

    def _rest(self, seconds: float | None = None) -> None:
        """Take up nobody for some seconds, or until `_watch`."""
        if self._watching:
            self._watching = False
            self._loop.remove_reader(self._listener)
        if self._again is not None:
            self._again.cancel()
        self._again = None if seconds is None else self._loop.call_later(seconds, self._watch)

    def _look(self) -> None:
        most, now = self._service.max_connections, stopwatch()
        self._budget = min(most, self._budget + (now - self._counted_at) * RATE_PER_S)
        self._counted_at = now
        while self._num_open < most:
            if self._budget < 1:
                return self._rest((1 - self._budget) / RATE_PER_S)
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return None
            except OSError:  # descriptors or memory, which others may have given back by then
                return self._rest(_SHORT_S)
            self._budget -= 1
            self._num_open += 1
            task = self._service.start(self._service.handle(functools.partial(_attach, connection)))
            task.add_done_callback(lambda _, connection=connection: self._over(connection))
        return self._rest()

    def _over(self, connection: socket.socket) -> None:
        connection.close()  # where the task ended before it began
        self._num_open -= 1
        if self._again is None:
            self._watch()


async def _attach(connection: socket.socket, ends: Ends) -> asyncio.Transport:
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: ends, sock=connection)
    return transport


def listen(port: int) -> socket.socket:
    """Return a socket that listens at 127.0.0.1 in this process's own network. Raises SandboxError."""
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(IN_LINE)
    except OSError as error:
        listener.close()
        raise cannot_listen(port, error.strerror or str(error)) from error
    return listener


def cannot_listen(port: int, why: str) -> SandboxError:
    """Return the error of a port at which nothing can listen."""
    return SandboxError(
        f"a sandbox cannot be served at a port: {why}",
        value=port,
        remedy="Serve port 0, which is one that is free" if port else "",
    )


def checked(descriptor: int, port: int) -> socket.socket:
    """Return a listening socket that came out of a sandbox, where it is what it should be.

    Raises SandboxError for anything else; the descriptor is closed then.
    """
    os.set_inheritable(descriptor, False)
    try:
        listener = socket.socket(fileno=descriptor)
    except OSError as error:  # no socket
        os.close(descriptor)
        raise cannot_listen(port, str(error)) from error
    if not _listens_at(listener, port):
        listener.close()
        raise cannot_listen(port, "what listens is not what was asked for")
    return listener


def _listens_at(listener: socket.socket, port: int) -> bool:
    if (listener.family, listener.type) != (socket.AF_INET, socket.SOCK_STREAM):
        return False
    at = listener.getsockname()
    listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    return listens and at[0] == "127.0.0.1" and port in (0, at[1])
