"""Passes connections of a machine's programs to the host, over its own standard input and output.

Consumes frames on stdin, connections to one port of the machine's loopback, and what those bring, as poll
finds them readable; waits for nothing else, and ends at the end of stdin. inside.py runs it as the machine's
own user, whom the model's programs can neither end nor read; its text goes along with the call, so it needs
the standard library of Python 3.8 and nothing else. The host imports the frames' shape from it.

A frame is a kind, the number of a connection (never used twice) and a count; those of data are followed by
that many bytes. To the host: L listens at port `count`, or X cannot, followed by why; O opened. To both: D
data, W that many bytes more may come, E no data comes after this, C closed. From the host: F close when
everything was taken. Nobody sends more data than the other granted, WINDOW at first; so neither side holds
more than that of a connection, however slow its reader is.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time

HEAD = struct.Struct(">cII")
WINDOW = 1 << 17
PIECE = 1 << 16
_IN_LINE = 64  # connections that wait to be taken up
_RATE_PER_S = 200.0  # of new ones, when more than may be open come at once
_MAX_TOLD = 1 << 20  # bytes for the host that let new connections wait


class Line:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.credit = WINDOW  # bytes that may be sent to the host
        self.out = bytearray()  # of the host, not taken yet
        self.taken = 0  # of it, not told yet
        self.heard_all = self.said_all = self.is_shut = self.is_last = False


class Relay:
    """All connections to one port."""

    def __init__(self, port: int, max_connections: int) -> None:
        self.most = max_connections
        self.lines: dict[int, Line] = {}
        self.number = 0
        self.told = bytearray()
        self.heard = bytearray()
        self.budget, self.counted_at = float(max_connections), time.monotonic()
        self.poll = select.poll()
        self.masks: dict[int, int] = {}
        self.numbers: dict[int, int] = {}  # of connections by descriptor
        self.listener: socket.socket | None = None
        try:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(_IN_LINE)
            listener.setblocking(False)
            self.listener = listener
            self.tell(b"L", 0, listener.getsockname()[1])
        except OSError as error:
            why = str(error.strerror or error).encode()
            self.tell(b"X", 0, len(why), why)

    def tell(self, kind: bytes, number: int, count: int = 0, data: bytes = b"") -> None:
        """Queue a frame."""
        self.told += HEAD.pack(kind, number, count) + data

    def want(self, fd: int, mask: int) -> None:
        """Look at a descriptor for this from now on."""
        if self.masks.get(fd, 0) != mask:
            if not mask:
                self.poll.unregister(fd)
            else:
                self.poll.register(fd, mask)
            self.masks[fd] = mask

    def run(self) -> None:
        """Pass on until the end of stdin."""
        for fd in (0, 1):
            os.set_blocking(fd, False)
        self.want(0, select.POLLIN)
        while True:
            wait_ms = self.look_for_more()
            self.want(1, select.POLLOUT if self.told else 0)
            for fd, events in self.poll.poll(wait_ms):
                if fd == 0:
                    data = os.read(0, PIECE)
                    if not data:
                        return
                    self.hear(data)
                elif fd == 1:
                    with contextlib.suppress(BlockingIOError):
                        del self.told[: os.write(1, self.told[:PIECE])]
                elif self.listener is not None and fd == self.listener.fileno():
                    self.take_up()
                elif fd in self.numbers:
                    self.pass_on(self.numbers[fd], events)

    def look_for_more(self) -> int | None:
        """Listen while there is place; return when to see again, in ms."""
        if self.listener is None:
            return None
        now = time.monotonic()
        self.budget = min(self.most, self.budget + (now - self.counted_at) * _RATE_PER_S)
        self.counted_at = now
        has_place = len(self.lines) < self.most and len(self.told) < _MAX_TOLD
        self.want(self.listener.fileno(), select.POLLIN if has_place and self.budget >= 1 else 0)
        return int((1 - self.budget) / _RATE_PER_S * 1000) + 1 if has_place and self.budget < 1 else None

    def take_up(self) -> None:
        """Take up one connection."""
        assert self.listener is not None
        try:
            connection, _ = self.listener.accept()
        except OSError:  # it has gone; or descriptors run short, and the budget is when to look again
            self.budget = 0.0
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.budget -= 1
        self.number += 1
        self.lines[self.number] = Line(connection)
        self.numbers[connection.fileno()] = self.number
        self.tell(b"O", self.number)
        self.settle(self.number)

    def pass_on(self, number: int, events: int) -> None:
        """Take from a connection what may be taken, and give it what there is."""
        line = self.lines[number]
        try:
            if line.out and events & (select.POLLOUT | select.POLLERR | select.POLLHUP):
                sent = line.socket.send(line.out)
                del line.out[:sent]
                line.taken += sent
            if line.credit and not line.said_all and events & ~select.POLLOUT:
                data = line.socket.recv(min(PIECE, line.credit))
                if data:
                    line.credit -= len(data)
                    self.tell(b"D", number, len(data), data)
                else:
                    line.said_all = True
                    self.tell(b"E", number)
        except BlockingIOError:
            pass
        except OSError:
            self.drop(number)
            return
        self.settle(number)

    def settle(self, number: int) -> None:
        """Grant, shut and close what is due, and look for what is still to come."""
        line = self.lines[number]
        if line.taken and (not line.out or line.taken >= WINDOW // 4):
            self.tell(b"W", number, line.taken)
            line.taken = 0
        if not line.out:
            if line.heard_all and not line.is_shut:
                line.is_shut = True
                with contextlib.suppress(OSError):
                    line.socket.shutdown(socket.SHUT_WR)
            if line.is_last or (line.is_shut and line.said_all):
                self.drop(number)
                return
        reads = select.POLLIN if line.credit and not line.said_all else 0
        self.want(line.socket.fileno(), reads | (select.POLLOUT if line.out else 0))

    def drop(self, number: int) -> None:
        """Close a connection and say so."""
        line = self.lines.pop(number)
        fd = line.socket.fileno()
        self.want(fd, 0)
        self.masks.pop(fd, None)
        del self.numbers[fd]
        line.socket.close()
        self.tell(b"C", number)

    def hear(self, data: bytes) -> None:
        """Take up what the host sent."""
        self.heard += data
        while len(self.heard) >= HEAD.size:
            kind, number, count = HEAD.unpack_from(self.heard)
            size = HEAD.size + (count if kind == b"D" else 0)
            if len(self.heard) < size:
                return
            piece = bytes(self.heard[HEAD.size : size])
            del self.heard[:size]
            line = self.lines.get(number)
            if line is None:  # closed meanwhile
                continue
            if kind == b"C":
                # Reset, not ended: what was said is no whole.
                with contextlib.suppress(OSError):
                    line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.drop(number)
                continue
            line.out += piece
            line.credit += count if kind == b"W" else 0
            line.heard_all = line.heard_all or kind == b"E"
            line.is_last = line.is_last or kind == b"F"
            self.settle(number)


def relay(port: int, max_connections: int) -> None:
    """Serve one port until the end of stdin."""
    Relay(port, max_connections).run()


if __name__ == "__main__":
    relay(int(sys.argv[1]), int(sys.argv[2]))
