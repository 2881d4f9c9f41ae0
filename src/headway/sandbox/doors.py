"""Doors into the network of one process tree: sockets that listen there, made by a program of the tree's.

Consumes, once, what `PROGRAM` sends over a socket pair before it becomes the tree's first command; that has
happened when the tree says that it is ready, so nobody waits. The program runs as the model's user, with
nothing that the model's programs lack, and before any of them; it asks for no privilege, on either side.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import TYPE_CHECKING

from headway.core.errors import SandboxError
from headway.sandbox.layout import SHIM
from headway.sandbox.serving import IN_LINE, checked

if TYPE_CHECKING:
    import contextlib

    from headway.sandbox.serving import Service, Services

ANY_PORT = 8100  # what 0 stands for in a network of its own, in which nothing listens yet
MAX_SERVED = 16  # ports at once

# Arguments: the descriptor of a socket, how many may wait in line, ports, "--", and the command to become.
PROGRAM = """
import array, os, socket, sys
theirs = socket.socket(fileno=int(sys.argv[1]))
end = sys.argv.index("--")
doors = []
for port in map(int, sys.argv[3:end]):
    door = socket.socket()
    door.bind(("127.0.0.1", port))
    door.listen(int(sys.argv[2]))
    doors.append(door)
fds = array.array("i", [door.fileno() for door in doors])
theirs.sendmsg([b"d"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
theirs.close()
os.execv(sys.argv[end + 1], sys.argv[end + 1:])
"""


class Doors:
    """Those of one tree, for what is served when it begins."""

    def __init__(self, services: Services, stack: contextlib.AsyncExitStack) -> None:
        self._services = list(services)
        self._stack = stack
        self._ours, self.theirs = socket.socketpair()
        stack.callback(self._ours.close)
        stack.callback(self.theirs.close)
        self._ours.setblocking(False)

    def prefix(self) -> list[str]:
        """Return what to put before the tree's first command, whose first word is a path."""
        ports = [str(service.port) for service in self._services]
        words = [f"{SHIM}/python3", "-I", "-S", "-B", "-c", PROGRAM, str(self.theirs.fileno())]
        return [*words, str(IN_LINE), *ports, "--"]

    def open(self) -> None:
        """Open them, until the stack unwinds. Raises SandboxError when they are not what they should be."""
        self.theirs.close()
        try:
            _, fds, _, _ = socket.recv_fds(self._ours, 1, MAX_SERVED)
        except OSError as error:
            raise SandboxError(f"a sandbox could not be served: {error}") from error
        if len(fds) != len(self._services):
            for fd in fds:
                os.close(fd)
            raise SandboxError("a sandbox could not be served at every port", value=len(fds))
        left = list(fds)
        try:
            for service in self._services:
                self._stack.callback(service.open(checked(left.pop(0), service.port)).end)
        finally:
            for fd in left:
                os.close(fd)


def begin_later(service: Service, others: Services) -> None:
    """Choose the port where each process tree that begins from now on gets a door of its own."""
    taken = {other.port for other in others}
    if len(taken) == MAX_SERVED:
        raise SandboxError("a sandbox cannot be served at more ports at once", value=MAX_SERVED)
    if not service.port:
        service.port = next(port for port in itertools.count(ANY_PORT) if port not in taken)
