"""The controller's end of the helper: one zygote that makes sandboxes, and the first process of each.

Consumes messages of the zygote and of every sandbox as the event loop finds their sockets readable. Waits
for the zygote's READY (until `start_timeout_s`) and for a sandbox (likewise); who runs a program in one is
told of its start and end, and sets the limits. A socket's end unblocks every wait on it with an
error. The zygote and all sandboxes end when this process does, because their sockets do.

The messages are described in native/cell.c.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from headway.core.errors import SandboxError
from headway.sandbox.cgroups import Group, find_groups
from headway.sandbox.layout import SANDBOX_ENV, SHIM, bound_paths
from headway.sandbox.native.build import helper

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings

MODEL_UID = 65534  # outside, of what a model starts, where root makes the sandboxes
_INIT_UID = 65533  # outside, of each sandbox's first process; likewise
_GONE_S = 5.0  # for a killed sandbox to be gone
_MAX_REQUEST_BYTES = 190_000
_PRELOADED = Path(__file__).with_name("native") / "preloaded.py"
_T = TypeVar("_T")
_ENDING = struct.Struct("=cB2xiQQQII")
_STARTED = struct.Struct("=c3xIQ")
_STATS = struct.Struct("=c3xIQQ")
_SNIPPET, _NO_INPUT = 1, 2
MAX_SPAWNED = 32  # long-lived processes of one sandbox at once


@functools.cache
def interpreter() -> str:
    """Return the path of the interpreter that every sandbox has as `python3`."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command's first process ended, and what all of its processes used."""

    status: int  # as of wait(2)
    oom: bool  # killed because the sandbox held too much memory
    cpu_s: float
    max_memory_bytes: int  # of all processes where a cgroup counts, else of the largest
    wall_s: float
    num_started: int


class Run(Protocol):
    """Whoever waits for a program."""

    def has_started(self, since_s: float) -> None:
        """It has run for `since_s`. Not called for a program that is over at once."""

    def has_ended(self, ending: Ending | SandboxError) -> None:
        """It and what it left behind are gone, or the sandbox is."""


class Zygote:
    """A running helper."""

    def __init__(self, settings: SandboxSettings, program: Path) -> None:
        self._settings = settings
        self.loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[tuple[int, int, int]]] = {}
        self._number = 0
        self._ready: asyncio.Future[str] = self.loop.create_future()
        self.single_uid = True
        self.ended = False
        self.groups: list[Group] = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._socket = ours
        with theirs:
            process = _launch(theirs.fileno(), program)
        self._finalizer = weakref.finalize(self, _end, ours, process)
        self.loop.add_reader(ours, self._read)

    @classmethod
    async def start(cls, settings: SandboxSettings) -> Zygote:
        """Build the helper if need be, start it, and wait until it is ready.

        Raises SandboxUnavailableError without a compiler, SandboxError with what the helper said.
        """
        program = await asyncio.to_thread(helper, "program")
        library = await asyncio.to_thread(helper, "library") if settings.preload_python else None
        groups = find_groups(settings)
        zygote = cls(settings, program)
        zygote.groups = groups
        try:
            with contextlib.ExitStack() as stack:
                lines, fds = _config(settings), list[int]()
                if library is not None:
                    lines += [f"interpreter={interpreter()}", f"nest={_PRELOADED.read_text()}", "library=fd"]
                    fds.append(_in_memory(library))
                    stack.callback(os.close, fds[0])
                for group in groups:
                    lines += group.lines()
                    fds.append(os.open(group.folder, os.O_RDONLY | os.O_DIRECTORY))
                    stack.callback(os.close, fds[-1])
                packed = b"".join(os.fsencode(line) + b"\0" for line in lines)
                socket.send_fds(zygote._socket, [packed], fds)
            ready = await _within(settings.start_timeout_s, zygote._ready)
        except BaseException:
            zygote.close()
            raise
        zygote.single_uid = ready == "u"
        return zygote

    async def make(self) -> Cell:
        """Make a sandbox, which is `ready` soon; cancelling leaves nothing behind.

        Raises SandboxError when it cannot be made.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._number += 1
        number = self._number
        made: asyncio.Future[tuple[int, int, int]] = self.loop.create_future()
        self._waiting[number] = made
        try:
            with theirs:
                if self.ended:
                    raise SandboxError("the sandboxes' helper has ended")
                await self._send(struct.pack("=cI", b"C", number), theirs.fileno())
            pid_fd, work_fd, place = await _within(self._settings.start_timeout_s, made)
        except BaseException:
            ours.close()  # at whose end the sandbox ends
            if made.done() and not made.cancelled() and made.exception() is None:
                for fd in made.result()[:2]:
                    os.close(fd)
            raise
        finally:
            self._waiting.pop(number, None)
        return Cell(ours, pid_fd, work_fd, [group.folder / str(place) for group in self.groups])

    def close(self) -> None:
        """End the helper and every sandbox that it made; idempotent."""
        self.ended = True
        if self._finalizer.alive and not self.loop.is_closed():
            self.loop.remove_reader(self._socket)
        self._finalizer()
        for group in self.groups:  # the helper did, unless it was killed
            group.remove()

    async def _send(self, data: bytes, fd: int) -> None:
        while True:
            try:
                socket.send_fds(self._socket, [data], [fd])
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except OSError as error:
                raise SandboxError(f"the sandboxes' helper cannot be reached: {error}") from error
            else:
                return

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, 4096, 4)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        kind, rest = data[:1], data[5:].decode(errors="replace")
        if kind in (b"R", b"E") and not self._ready.done():
            if kind == b"R":
                self._ready.set_result(data[1:2].decode())
            else:
                self._ready.set_exception(SandboxError(data[1:].decode(errors="replace")))
        elif kind in (b"c", b"e"):
            waiting = self._waiting.pop(struct.unpack_from("=I", data, 1)[0], None)
            if waiting is None or waiting.done():
                for fd in fds:
                    os.close(fd)
            elif kind == b"c":
                waiting.set_result((fds[0], fds[1], struct.unpack_from("=I", data, 5)[0]))
            else:
                waiting.set_exception(SandboxError(f"a sandbox could not be made: {rest}"))
        elif not data:
            self.close()
            for future in (self._ready, *self._waiting.values()):
                if not future.done():
                    future.set_exception(SandboxError("the sandboxes' helper has ended"))


class Cell:
    """The first process of one sandbox, and the sandbox's work folder as an open descriptor."""

    def __init__(self, ours: socket.socket, pid_fd: int, work_fd: int, groups: list[Path]) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = ours
        self._pid_fd = pid_fd
        self.work_fd = work_fd
        self.groups = groups  # its folders in cgroup hierarchies
        self._ready = False
        self._failed: SandboxError | None = None
        self._runs: dict[int, Run] = {}
        self._asked: dict[bytes, asyncio.Future[bytes]] = {}
        self._closed = False
        self._loop.add_reader(ours, self._read)

    @property
    def alive(self) -> bool:
        """Whether the first process runs."""
        if self._closed:
            return False
        poll = select.poll()
        poll.register(self._pid_fd, select.POLLIN)
        return not poll.poll(0)

    async def ready(self, timeout_s: float) -> None:
        """Wait until a command would run at once; need not be waited for.

        Raises SandboxError when it cannot be made ready.
        """
        if not self._ready:
            await _within(timeout_s, self._answer(b"R"))

    def run(
        self,
        number: int,
        run: Run,
        argv: Sequence[str],
        env: Sequence[str],
        cwd: str,
        fds: Sequence[int],
        *,
        snippet: bool = False,
    ) -> None:
        """Ask for a program; `run` is told of its start and of the end of all its processes.

        Number 0 is the command, others are long-lived. `fds` become its standard streams, without stdin when
        there are two; they stay the caller's. Raises SandboxError when it is too long.
        """
        if self._failed is not None:
            raise self._failed
        flags = _SNIPPET * snippet | _NO_INPUT * (len(fds) == 2)
        head = struct.pack("=cIIII", b"X", flags, number, len(argv), len(env))
        try:
            words = b"".join(os.fsencode(word) + b"\0" for word in (cwd, *argv, *env))
        except UnicodeEncodeError as error:
            raise SandboxError(f"a command must be text that can be encoded: {error}") from error
        if words.count(b"\0") != 1 + len(argv) + len(env):
            raise SandboxError("the words of a command must hold no NUL")
        if len(head) + len(words) > _MAX_REQUEST_BYTES:
            raise SandboxError(
                f"a command and its environment must not exceed {_MAX_REQUEST_BYTES} bytes",
                value=len(words),
                remedy="Write long programs to a file, or send them on stdin",
            )
        try:
            socket.send_fds(self._socket, [head + words], list(fds))
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
        return await _within(timeout_s, self._answer(what.lower()))

    async def _answer(self, kind: bytes) -> bytes:
        if self._failed is not None:
            raise self._failed
        self._asked[kind] = self._loop.create_future()
        try:
            return await self._asked[kind]
        finally:
            self._asked.pop(kind, None)

    async def end(self) -> None:
        """Kill everything and wait until it is gone; idempotent.

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
            os.close(self.work_fd)

    def _read(self) -> None:
        try:
            data = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        kind = data[:1]
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
            asked = self._asked.get(kind)
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


async def _within(seconds: float, work: Awaitable[_T]) -> _T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise SandboxError(
            "a sandbox must be ready within sandbox.start_timeout_s",
            value=seconds,
            remedy="The machine may be overloaded; lower sandbox.max_live",
        ) from None


def _in_memory(library: Path) -> int:
    """Return a descriptor of a copy, so that no path of the host shows up in /proc/<pid>/maps."""
    fd = os.memfd_create("cell")
    os.write(fd, library.read_bytes())
    return fd


def _launch(fd: int, program: Path) -> subprocess.Popen[bytes]:
    """Start the helper with the socket `fd`, and nothing else of ours."""
    try:
        return subprocess.Popen(
            [str(program), str(fd)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[fd],
            env=SANDBOX_ENV,
            cwd="/",
            start_new_session=True,  # a Ctrl-C at the terminal is for the controller
        )
    except OSError as error:
        raise SandboxError(f"the sandboxes' helper could not be started: {error}") from error


def _end(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """End the helper: it ends at its socket's end."""
    ours.close()
    try:
        process.wait(timeout=_GONE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _config(settings: SandboxSettings) -> list[str]:
    """What the helper is told once."""
    work_bytes = settings.work_mb << 20
    lines = [
        f"work_bytes={work_bytes}",
        f"work_files={settings.max_files}",
        f"tmp_bytes={settings.tmpfs_mb << 20}",
        f"nproc={settings.max_processes}",
        f"address_space={settings.memory_mb << 20}",
        f"memory={settings.memory_mb << 20}",
        f"file_size={work_bytes}",
        f"open_files={settings.max_open_files}",
        f"cpu_s={settings.cpu_s}",
        f"init_uid={_INIT_UID}",
        f"model_uid={MODEL_UID}",
    ]
    binds, links = bound_paths()
    lines += [f"bind={path}" for path in binds]
    for path, target in (*links, (f"{SHIM}/python3", interpreter())):
        lines += [f"link={path}", f"target={target}"]
    return lines
