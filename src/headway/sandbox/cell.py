"""The controller's end of one sandbox of the local provider: its first process and its work folder.

Consumes what the first process says as the event loop finds its socket readable. Who runs a program is told
of its start and end, and sets the limits; who asks waits for the answer, until `start_timeout_s`. The
socket's end unblocks every wait on it with an error.

The messages are described in native/cell.c.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import struct
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from headway.core.errors import SandboxError
from headway.sandbox.layout import SANDBOX_ENV
from headway.sandbox.serving import IN_LINE, cannot_listen, checked

MAX_SPAWNED = 32  # long-lived processes of one sandbox at once
_GONE_S = 5.0  # for a killed sandbox to be gone
MAX_REQUEST_BYTES = 189_000  # of the words that a caller gives
_MAX_REQUEST_BYTES = 190_000
_ENDING = struct.Struct("=cB2xiQQQII")
_STARTED = struct.Struct("=c3xIQ")
_STATS = struct.Struct("=c3xIQQ")
_SNIPPET, _NO_INPUT = 1, 2
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command's first process ended, and what all of its processes used."""

    status: int  # as of wait(2)
    oom: bool  # killed because the sandbox held too much memory
    cpu_s: float
    max_memory_bytes: int  # of all processes where a cgroup counts, else of the largest
    wall_s: float
    num_started: int


@dataclass(frozen=True, slots=True)
class Program:
    """What is to run."""

    argv: Sequence[str]
    env: Mapping[str, str]
    stdin: bytes
    cwd: str

    def __post_init__(self) -> None:
        if not self.argv:
            raise SandboxError("a command must have at least one word")

    def words(self) -> bytes:
        """Return it as the first process reads it.

        Raises SandboxError when it is too long, or no text.
        """
        environment = [f"{name}={value}" for name, value in (SANDBOX_ENV | dict(self.env)).items()]
        head = struct.pack("=II", len(self.argv), len(environment))
        strings = (self.cwd, *self.argv, *environment)
        try:
            words = b"".join(os.fsencode(word) + b"\0" for word in strings)
        except UnicodeEncodeError as error:
            raise SandboxError(f"a command must be text that can be encoded: {error}") from error
        if words.count(b"\0") != len(strings):
            raise SandboxError("the words of a command must hold no NUL")
        if len(words) > _MAX_REQUEST_BYTES:
            raise SandboxError(
                f"a command and its environment must not exceed {_MAX_REQUEST_BYTES} bytes",
                value=len(words),
                remedy="Write long programs to a file, or send them on stdin",
            )
        return head + words


class Run(Protocol):
    """Whoever waits for a program."""

    def has_started(self, since_s: float) -> None:
        """It has run for `since_s`. Not called for a program that is over at once."""

    def has_ended(self, ending: Ending | SandboxError) -> None:
        """It and what it left behind are gone, or the sandbox is."""


class Cell:
    """The first process of one sandbox, and the sandbox's work folder as an open descriptor.

    `upper_fd` is the folder that holds what differs from the image, where an overlay has one.
    """

    def __init__(self, ours: socket.socket, fds: Sequence[int], groups: list[Path]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = ours
        self._pid_fd, self.work_fd = fds[:2]
        self._folders = list(fds[1:])
        self.upper_fd = fds[2] if len(fds) > 2 else None
        self.groups = groups  # its folders in cgroup hierarchies
        self._ready = False
        self._failed: SandboxError | None = None
        self._runs: dict[int, Run] = {}
        self._asked: dict[bytes, asyncio.Future[bytes]] = {}
        self._given: list[int] = []  # descriptors that came with an answer
        self._closed = False
        self._loop.add_reader(ours, self._read)

    @property
    def state_fd(self) -> int:
        """The folder that holds what was done here: the overlay's upper folder, or the work folder itself."""
        return self.work_fd if self.upper_fd is None else self.upper_fd

    def refresh(self) -> None:
        """Let an overlay know the mode of its top folder, after its upper folder was filled unseen."""
        if self.upper_fd is not None:
            os.fchmod(self.work_fd, os.fstat(self.upper_fd).st_mode & 0o7777)

    @property
    def alive(self) -> bool:
        """Whether the first process runs, and has not said that it ends."""
        if self._closed or self._failed is not None:
            return False
        poll = select.poll()
        poll.register(self._pid_fd, select.POLLIN)
        return not poll.poll(0)

    async def ready(self, timeout_s: float) -> None:
        """Wait until a command would run at once; need not be waited for.

        Raises SandboxError when it cannot be made ready.
        """
        if not self._ready:
            await within(timeout_s, self._answer(b"R"))

    def run(
        self, number: int, run: Run, program: Program, fds: Sequence[int], *, snippet: bool = False
    ) -> None:
        """Ask for a program; `run` is told of its start and of the end of all its processes.

        Number 0 is the command, others are long-lived. `fds` become its standard streams, without stdin when
        there are two; they stay the caller's. Raises SandboxError when it cannot be asked for.
        """
        if self._failed is not None:
            raise self._failed
        flags = _SNIPPET * snippet | _NO_INPUT * (len(fds) == 2)
        request = struct.pack("=cII", b"X", flags, number) + program.words()
        try:
            socket.send_fds(self._socket, [request], list(fds))
        except OSError as error:
            raise SandboxError(f"the sandbox cannot be reached: {error}") from error
        self._runs[number] = run

    def kill(self, number: int) -> None:
        """Kill what belongs to a program; its end tells when it is gone."""
        with contextlib.suppress(OSError):  # it has ended, then, which the socket's end tells
            self._socket.send(struct.pack("=cI", b"K", number))

    async def ask(self, what: bytes, timeout_s: float) -> bytes:
        """Ask the first process and return its answer: Z to stop every process, W to go on, Q for statistics.

        Raises SandboxError when it does not answer. One question of a kind at a time.
        """
        try:
            self._socket.send(what)
        except OSError as error:
            raise SandboxError(f"the sandbox cannot be reached: {error}") from error
        return await within(timeout_s, self._answer(what.lower()))

    async def listen(self, port: int, timeout_s: float) -> socket.socket:
        """Return a socket that listens at 127.0.0.1 in the sandbox's network; port 0 is one that is free.

        Raises SandboxError when nothing can listen there. One question at a time.
        """
        try:
            self._socket.send(struct.pack("=cHH", b"L", port, IN_LINE))
        except OSError as error:
            raise SandboxError(f"the sandbox cannot be reached: {error}") from error
        try:
            said = await within(timeout_s, self._answer(b"l"))
            if not self._given:
                raise cannot_listen(port, said[1:].decode(errors="replace"))
            return checked(self._given.pop(), port)
        finally:  # cancelled with the answer there, for one
            while self._given:
                os.close(self._given.pop())

    async def _answer(self, kind: bytes) -> bytes:
        if self._failed is not None:
            raise self._failed
        self._asked[kind] = self._loop.create_future()
        try:
            return await self._asked[kind]
        finally:
            self._asked.pop(kind, None)

    async def end(self) -> None:
        """Kill everything and wait until it is gone; its folders stay open until `close`. Idempotent.

        Raises SandboxError when it is still there after some seconds.
        """
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._fail(SandboxError("the sandbox has ended"))
        self._socket.close()
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pid_fd, signal.SIGKILL)
            over: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_reader(self._pid_fd, lambda: over.done() or over.set_result(None))
            try:
                async with asyncio.timeout(_GONE_S):
                    await over
            except TimeoutError:
                raise SandboxError(f"a killed sandbox was still there after {_GONE_S} s") from None
            finally:
                self._loop.remove_reader(self._pid_fd)
        finally:
            os.close(self._pid_fd)

    def close(self) -> None:
        """Close its folders; idempotent. Nobody may use them any more: a number may soon be another's."""
        folders, self._folders = self._folders, []
        for fd in folders:
            os.close(fd)

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, 4096, 1)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        kind = data[:1]
        asked = self._asked.get(kind)
        for fd in fds:
            if asked is None or asked.done():
                os.close(fd)
            else:
                self._given.append(fd)
        if kind == b"x":
            _, oom, status, cpu_us, max_rss_kb, wall_us, num_started, number = _ENDING.unpack(data)
            run = self._runs.pop(number, None)
            if run is not None:
                run.has_ended(
                    Ending(status, bool(oom), cpu_us / 1e6, max_rss_kb << 10, wall_us / 1e6, num_started)
                )
        elif kind == b"s":
            _, number, since_us = _STARTED.unpack(data)
            if number in self._runs:
                self._runs[number].has_started(since_us / 1e6)
        elif kind in (b"E", b""):
            self._loop.remove_reader(self._socket)
            said = data[1:].decode(errors="replace") or "its first process ended"
            self._fail(SandboxError(f"the sandbox failed: {said}"))
        else:
            self._ready |= kind == b"R"
            if asked is not None and not asked.done():
                asked.set_result(data)

    def _fail(self, error: SandboxError) -> None:
        self._failed = self._failed or error
        runs = list(self._runs.values())
        self._runs.clear()
        for run in runs:
            run.has_ended(error)
        for future in self._asked.values():
            if not future.done():
                future.set_exception(error)


def unpack_stats(data: bytes) -> tuple[int, float, int]:
    """Return the answer to Q: number of processes, CPU seconds so far, bytes of memory now."""
    _, num_processes, cpu_us, memory_kb = _STATS.unpack(data)
    return num_processes, cpu_us / 1e6, memory_kb << 10


async def within(seconds: float, work: Awaitable[_T]) -> _T:
    """Await what makes a sandbox ready; raise SandboxError when that takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise SandboxError(
            "a sandbox must be ready within sandbox.start_timeout_s",
            value=seconds,
            remedy="The machine may be overloaded; lower sandbox.max_live",
        ) from None
