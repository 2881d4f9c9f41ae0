"""Programs in a sandbox of the local provider: the command that runs, and long-lived ones.

Consumes the pipes of a program and what the sandbox's first process says of it. A command waits for its
start (until `start_timeout_s`), then for the first of: its end, the wall limit, a flood of output,
cancellation of the caller. Whatever comes first, every process of the command is killed and the wait for
their end is bounded by `_GONE_S`. The first process tells the end only when all of them are reaped, so a
program that keeps stdout open cannot hold the call. Of a program that is over at once only the end is told;
its output lies in the pipes by then. Nobody waits for a long-lived program: it is looked at by `poll`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError
from headway.core.protocols import Cause, ExecLimits, ExecResult, Polled, Usage
from headway.sandbox.causes import status_cause
from headway.sandbox.cell import Ending, Program
from headway.sandbox.collector import Collector
from headway.sandbox.countdown import Countdown
from headway.sandbox.layout import SHIM, interpreter
from headway.sandbox.whole import whole

if TYPE_CHECKING:
    from headway.sandbox.cell import Cell
    from headway.sandbox.settings import SandboxSettings

_GONE_S = 5.0  # for killed processes to be gone
_SNIPPET_FLAGS = frozenset("ISBEs")
_CHANGING = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC", "GLIBC")  # what an interpreter reads at its start


class Command:
    """One command, from its request to its end."""

    def __init__(self, cell: Cell, settings: SandboxSettings, terminated: Callable[[], bool]) -> None:
        self._cell = cell
        self._settings = settings
        self._terminated = terminated
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[Cause] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._ending: Ending | SandboxError | None = None
        self._streams: list[Collector] = []
        self._wall_s = 0.0
        self._began = stopwatch()
        self.wall = Countdown(lambda: self._settle("wall"))

    async def run(self, program: Program, limits: ExecLimits) -> ExecResult:
        """Run it and return how it ended.

        Raises SandboxError when it never started, or the sandbox failed under it and was not terminated.
        Cancelling kills every process of the command.
        """
        self._wall_s = limits.wall_s
        with contextlib.ExitStack() as stack:
            feed, rest = self._send(program, limits, stack)
            late = self._loop.call_later(self._settings.start_timeout_s, self._too_late)
            stack.callback(late.cancel)
            stack.callback(self.wall.cancel)
            try:
                if rest and feed is not None:
                    transport, _ = await self._loop.connect_write_pipe(
                        asyncio.BaseProtocol, os.fdopen(feed, "wb", buffering=0)
                    )
                    stack.callback(lambda: transport.get_write_buffer_size() and transport.abort())
                    transport.write(rest)
                    transport.close()  # after what was written is flushed
                ended_by = await self._over
            finally:
                ending = await self._end()
            for stream in self._streams:
                stream.drain()
        return self._result(ending, ended_by)

    def has_started(self, since_s: float) -> None:
        """It takes longer than a moment: read its output, and count its time."""
        self._began = stopwatch() - since_s
        self.wall.start(self._wall_s - since_s)
        for stream in self._streams:
            stream.start()

    def has_ended(self, ending: Ending | SandboxError) -> None:
        """It is gone."""
        self._ending = ending
        self._settle("exit")
        if not self._gone.done():
            self._gone.set_result(None)

    def _settle(self, cause: Cause) -> None:
        if not self._over.done():
            self._over.set_result(cause)

    def _too_late(self) -> None:
        if not self._over.done() and not self.wall.started:
            self._over.set_exception(
                SandboxError(
                    "a sandbox must start a command within sandbox.start_timeout_s",
                    value=self._settings.start_timeout_s,
                    remedy="The machine may be overloaded; lower sandbox.max_live",
                )
            )

    def _send(
        self, program: Program, limits: ExecLimits, stack: contextlib.ExitStack
    ) -> tuple[int | None, bytes]:
        """Ask for the program; return what is still to be written to its stdin, and where."""
        snippet = self._settings.preload_python and is_snippet(program.argv, program.env)
        with Pipes(program.stdin) as pipes:
            ours, pipes.ours = pipes.ours, []
            for fd in ours:
                stack.callback(os.close, fd)
                stream = Collector(fd, limits.output_bytes, lambda: self._settle("output"))
                stack.callback(stream.close)
                self._streams.append(stream)
            if pipes.feed is not None and not pipes.rest:
                os.close(pipes.feed)
                pipes.feed = None
            self._cell.run(0, self, program, pipes.theirs, snippet=snippet)
            feed, pipes.feed = pipes.feed, None
            return feed, pipes.rest

    async def _end(self) -> Ending | None:
        """Kill what is left of it and wait until it is gone; None when the sandbox was ended with it."""
        if self._ending is None:
            await whole(_killed(self._cell, 0, self._gone))
        ending = self._ending
        assert ending is not None
        if isinstance(ending, Ending):
            return ending
        if self._terminated():
            return None
        raise SandboxError(f"the sandbox ended under a command: {ending.rule}") from ending

    def _result(self, ending: Ending | None, ended_by: Cause) -> ExecResult:
        """Say how it ended; only an exit has an exit code."""
        out, err = self._streams
        rc, signum, cause = None, None, ended_by
        if ending is None:
            cause = "killed"
        elif ending.oom:
            cause = "oom"
        elif ended_by == "exit":
            rc, signum, cause = verdict(ending, err.text(), self._cell)
        wall_s = stopwatch() - self._began if ending is None else ending.wall_s
        return ExecResult(
            rc=rc,
            signal=signum,
            stdout=out.text(),
            stderr=err.text(),
            truncated=out.truncated or err.truncated,
            cause=cause,
            wall_s=max(0.0, wall_s - self.wall.paused_s),
            usage=Usage()
            if ending is None
            else Usage(ending.cpu_s, ending.max_memory_bytes, ending.num_started),
        )


class LongLived:
    """One long-lived program."""

    def __init__(
        self, cell: Cell, number: int, program: Program, output_bytes: int, start_timeout_s: float
    ) -> None:
        self._cell = cell
        self._number = number
        self._program = program
        self._limit = output_bytes
        self._start_timeout_s = start_timeout_s
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._ending: Ending | SandboxError | None = None
        self._streams: list[Collector] = []
        self._fds: list[int] = []
        self._feed: asyncio.WriteTransport | None = None
        self._flooded = False

    @property
    def number(self) -> int | None:
        """Its number in the sandbox while it runs."""
        return self._number if self._ending is None else None

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._ending is None

    async def start(self) -> None:
        """Start it. Raises SandboxError when it could not be started, and is gone then."""
        with Pipes(self._program.stdin) as pipes:
            self._cell.run(self._number, self, self._program, pipes.theirs)
            self._fds, pipes.ours = pipes.ours, []
            self._streams = [Collector(fd, self._limit, self._flood) for fd in self._fds]
            for stream in self._streams:
                stream.start()
            feed, pipes.feed = pipes.feed, None
            rest = pipes.rest
        try:
            async with asyncio.timeout(self._start_timeout_s):
                if feed is not None:
                    self._feed, _ = await self._loop.connect_write_pipe(
                        asyncio.BaseProtocol, os.fdopen(feed, "wb", buffering=0)
                    )
                    self._feed.write(rest)
                    self._feed.close()
                await asyncio.shield(self._started)
        except BaseException as error:
            await whole(self.kill())
            if isinstance(error, TimeoutError):
                raise SandboxError("a sandbox must start a command within sandbox.start_timeout_s") from None
            raise
        if isinstance(self._ending, SandboxError):
            raise self._ending

    def has_started(self, since_s: float) -> None:
        """It runs."""
        if not self._started.done():
            self._started.set_result(None)

    def has_ended(self, ending: Ending | SandboxError) -> None:
        """It is gone; what it wrote stays."""
        self._ending = ending
        for stream in self._streams:
            stream.drain()
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        if self._feed is not None and self._feed.get_write_buffer_size():
            self._feed.abort()
        self.has_started(0.0)
        if not self._gone.done():
            self._gone.set_result(None)

    async def poll(self) -> Polled:
        """Say how it is, and what it wrote since the last call."""
        ending = self._ending
        rc, signum, cause = None, None, None
        (out, cut), (err, cut_too) = (stream.take() for stream in self._streams)
        if isinstance(ending, SandboxError):
            cause = "killed"
        elif ending is not None:
            rc, signum, cause = verdict(ending, err, None)
            if ending.oom:
                rc, cause = None, "oom"
            elif self._flooded:
                cause = "output"
        return Polled(ending is None, rc, signum, out, err, cut or cut_too, cause)

    async def kill(self) -> None:
        """End it and what it started. Raises SandboxError when it is still there after some seconds."""
        if self._ending is None:
            await _killed(self._cell, self._number, self._gone)

    def _flood(self) -> None:
        if not self._flooded:
            self._flooded = True
            self._cell.kill(self._number)


async def _killed(cell: Cell, number: int, gone: asyncio.Future[None]) -> None:
    """Kill what belongs to a program and wait until it is gone; the whole sandbox, when it is not in time."""
    cell.kill(number)
    await asyncio.wait([gone], timeout=_GONE_S)
    if not gone.done():
        await cell.end()
        raise SandboxError(f"killed processes were still there after {_GONE_S} s")


class Pipes:
    """The standard streams of one program: `theirs`, `ours` to read, `feed` for the `rest` of its input.

    What nobody took over is closed at the end of the block. Input that the pipe holds is in it already.
    """

    def __init__(self, stdin: bytes) -> None:
        self.theirs: list[int] = []
        self.ours: list[int] = []
        self.feed: int | None = None
        self.rest = b""
        try:
            if stdin:
                read, self.feed = os.pipe()
                self.theirs.append(read)
                os.set_blocking(self.feed, False)
                self.rest = stdin[os.write(self.feed, stdin) :]
            for _ in range(2):
                read, write = os.pipe()
                self.ours.append(read)
                self.theirs.append(write)
        except OSError as error:
            self.close()
            raise SandboxError(f"a program's pipes could not be made: {error}") from error

    def __enter__(self) -> Pipes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what nobody took over."""
        for fd in (*self.theirs, *self.ours):
            os.close(fd)
        if self.feed is not None:
            os.close(self.feed)


def verdict(ending: Ending, stderr: str, cell: Cell | None) -> tuple[int | None, int | None, Cause]:
    """Return exit code, signal and cause of a program that ended by itself."""
    rc, signum, cause = status_cause(ending.status, stderr)
    if rc is not None and cause == "disk" and cell is not None and os.fstatvfs(cell.work_fd).f_ffree == 0:
        cause = "inodes"
    return rc, signum, cause


def is_snippet(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a command is one that a preloaded interpreter runs just as a new one would."""
    names = ("python3", f"{SHIM}/python3", interpreter())
    if argv[0] not in names or any(name == "PATH" or name.startswith(_CHANGING) for name in env):
        return False
    for number, word in enumerate(argv[1:], 1):
        if word == "-c":
            return len(argv) > number + 1
        if not word.startswith("-"):
            return word.endswith(".py")
        if len(word) < 2 or not set(word[1:]) <= _SNIPPET_FLAGS:
            return False
    return False
