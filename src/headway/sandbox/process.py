"""One contained command: started, fed, watched and ended.

Consumes the pipes of one bubblewrap process tree. Waits for READY (until `start_timeout_s`), then for the
first of: the program's exit, the wall limit, a flood of output, a breach of the work folder's quota, or
cancellation of the caller. Whatever comes first kills the whole pid namespace; the wait for its end is
bounded by `_GONE_S`. Nothing in here reads without a bound, and a program that keeps stdout open cannot
hold the call, because the namespace dies with its first program. What a command used is not told: bubblewrap
does not reap what it started.

A controller that is killed at any moment leaves no process: each tree holds the reading end of a pipe of
the controller's and ends with it (layout.py says how).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError
from headway.core.protocols import Cause, ExecResult, Polled
from headway.sandbox.causes import exit_cause, signal_cause
from headway.sandbox.collector import Collector
from headway.sandbox.countdown import Countdown
from headway.sandbox.layout import READY
from headway.sandbox.looks import Looks
from headway.sandbox.members import go_on, stop
from headway.sandbox.whole import whole

if TYPE_CHECKING:
    from headway.sandbox.doors import Doors

_GONE_S = 5.0  # for a killed namespace to be gone


@dataclass(frozen=True, slots=True)
class Limits:
    """What the controller itself enforces; the rest are resource limits of the program."""

    output_bytes: int
    start_timeout_s: float


async def run_contained(
    tree: Callable[[contextlib.AsyncExitStack], Tree],
    stdin: bytes,
    wall_s: float,
    over_quota: Callable[[], Cause | None],
) -> ExecResult:
    """Run one command in the tree that `tree` makes and return how it ended.

    `over_quota` is asked ten times a second and once at the end whether the work folder breaks a limit.
    Raises SandboxError when the program never started. Cancelling kills every process.
    """
    async with contextlib.AsyncExitStack() as stack:
        contained = tree(stack)
        try:
            await contained.start()
            began = stopwatch()
            contained.wall.start(wall_s)
            await contained.begin(stdin, over_quota)
            ended_by = await contained.over
            spent_s = stopwatch() - began
        finally:
            await whole(contained.end())
    if ended_by == "exit":
        ended_by = over_quota() or "exit"
    return contained.result(ended_by, max(0.0, spent_s - contained.wall.paused_s))


class LongLived:
    """A long-lived program in a tree of its own, which ends when somebody looks, kills, or breaks a limit."""

    def __init__(
        self,
        tree: Callable[[contextlib.AsyncExitStack], Tree],
        stdin: bytes,
        over_quota: Callable[[], Cause | None],
    ) -> None:
        self._stack = contextlib.AsyncExitStack()
        self.tree = tree(self._stack)
        self._stdin = stdin
        self._over_quota = over_quota
        self._turn = asyncio.Lock()
        self._ended: ExecResult | None = None
        self._let_go_of = (
            False  # its descriptors are closed, or are about to be: their numbers may be others'
        )

    @property
    def running(self) -> bool:
        """Whether its first process runs."""
        return not self.tree.over.done()

    async def start(self) -> None:
        """Start it. Raises SandboxError when it could not be started, and is gone then."""
        try:
            await self.tree.start()
            await self.tree.begin(self._stdin, self._over_quota)
        except BaseException:
            await self._let_go()
            raise
        # What breaks a limit is killed at once; the rest of its end waits for who looks.
        self.tree.over.add_done_callback(lambda _: self._let_go_of or self.tree.kill())

    async def poll(self) -> Polled:
        """Say how it is, and what it wrote since the last call."""
        async with self._turn:
            if self.running:
                out, err, cut = self.tree.take()
                return Polled(True, None, None, out, err, cut, None)
            await self._finish()
            ended = self._ended
            assert ended is not None
            out, err, cut = self.tree.take()
            return Polled(False, ended.rc, ended.signal, out, err, cut, ended.cause)

    async def kill(self) -> None:
        """End it and everything that it started."""
        async with self._turn:
            if self.running:
                self.tree.over.set_result("killed")
            await self._finish()

    async def _finish(self) -> None:
        await self._let_go()
        if self._ended is None:
            self._ended = self.tree.result(self.tree.over.result(), 0.0)

    async def _let_go(self) -> None:
        """End it and close what is open of it, once, and whole although the caller is cancelled."""
        if not self._let_go_of:
            self._let_go_of = True
            await whole(self._closed())

    async def _closed(self) -> None:
        try:
            await self.tree.end()
        finally:
            await self._stack.aclose()


class Tree:
    """The process tree of one command and its pipes."""

    def __init__(
        self,
        argv: Callable[[int, int], Sequence[str]],
        env: Mapping[str, str],
        limits: Limits,
        stack: contextlib.AsyncExitStack,
        doors: Doors | None = None,
    ) -> None:
        self._doors = doors
        self._limits = limits
        self._stack = stack
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[Cause] = self._loop.create_future()
        self.wall = Countdown(lambda: self._settle("wall"))
        self.init: int | None = None  # pid of the sandbox's pid 1
        self._init_fd: int | None = None  # pidfd of the sandbox's pid 1
        self._paused = False
        info_read, info_write = os.pipe()
        life_read, life_write = os.pipe()
        stack.callback(os.close, info_read)
        stack.callback(os.close, life_write)  # from here on the guard has nobody to guard for
        self._info = info_read
        try:
            # Its own session: a Ctrl-C at the terminal is for the controller, not for sandboxes.
            self._process = subprocess.Popen(
                argv(info_write, life_read),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(info_write, life_read, *([doors.theirs.fileno()] if doors else [])),
                env=dict(env),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # the latter for words that no program can be given
            raise SandboxError(f"the sandbox's process could not be created: {error}") from error
        finally:
            os.close(info_write)
            os.close(life_read)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            stack.callback(pipe.close)
        self._exit_fd = os.pidfd_open(self._process.pid)
        stack.callback(os.close, self._exit_fd)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out = Collector(self._process.stdout.fileno(), limits.output_bytes, self._flood, READY)
        self._err = Collector(self._process.stderr.fileno(), limits.output_bytes, self._flood)
        for collector in (self._out, self._err):
            collector.start()
            stack.callback(collector.close)

    def _settle(self, cause: Cause) -> None:
        if not self.over.done():
            self.over.set_result(cause)

    def _flood(self) -> None:
        self._settle("output")

    def _exited(self) -> None:
        self._loop.remove_reader(self._exit_fd)
        self._settle("exit")

    async def start(self) -> None:
        """Wait until the limits are set and the program could begin."""
        try:
            async with asyncio.timeout(self._limits.start_timeout_s):
                ready = await self._out.ready
        except TimeoutError:
            raise SandboxError(
                "a sandbox must be ready within sandbox.start_timeout_s",
                value=self._limits.start_timeout_s,
                remedy="The machine may be overloaded; lower sandbox.max_live",
            ) from None
        if not ready:
            await asyncio.wait([self._err.ended], timeout=1.0)
            said = self._err.text().strip() or "it said nothing"
            raise SandboxError(f"the sandbox did not start: {said}")
        if self._doors is not None:
            self._doors.open()
        # bubblewrap writes the pid before it lets its child run, so it is there by now.
        try:
            self.init = int(json.loads(os.read(self._info, 4096))["child-pid"])
            self._init_fd = os.pidfd_open(self.init)
        except (OSError, ValueError, KeyError) as error:
            raise SandboxError(f"the sandbox's first process cannot be watched: {error!r}") from error
        self._stack.callback(os.close, self._init_fd)
        if self._paused:  # while it started
            await asyncio.to_thread(stop, self.init)
            if not self._paused:  # meanwhile
                await asyncio.to_thread(go_on, self.init)

    async def begin(self, stdin: bytes, over_quota: Callable[[], Cause | None]) -> None:
        """Let the program begin; `over` is settled by its end or by the first limit."""
        loop = self._loop
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        self._stack.callback(lambda: transport.get_write_buffer_size() and transport.abort())
        self._stack.callback(Looks(over_quota, self._settle).cancel)
        self._stack.callback(self.wall.cancel)
        loop.add_reader(self._exit_fd, self._exited)
        self._stack.callback(loop.remove_reader, self._exit_fd)
        transport.write(b"go\n" + stdin)
        transport.close()  # after what was written is flushed

    async def pause(self) -> None:
        """Stop its processes and its time; those of a tree that is starting as soon as there are any."""
        self._paused = True
        self.wall.pause()
        if self.init is not None:
            await asyncio.to_thread(stop, self.init)

    async def resume(self) -> None:
        """Let its processes and its time go on."""
        self._paused = False
        if self.init is not None:
            await asyncio.to_thread(go_on, self.init)
        self.wall.resume()

    def kill(self) -> None:
        """Kill every process."""
        # The group exists, whatever happened in it, because its guard lives on.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._init_fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)

    async def end(self) -> None:
        """Kill whatever is left and wait until it is gone."""
        self.kill()
        if self._init_fd is None:
            # Nothing of the program ran. Whatever had started reads end-of-file instead of the go-ahead
            # and ends; it holds stdout until then.
            if self._process.stdin is not None:
                self._process.stdin.close()
            await self._readable(self._exit_fd)
            await asyncio.wait([self._out.ended], timeout=_GONE_S)
        else:
            await self._readable(self._exit_fd)
            await self._readable(self._init_fd)
            await asyncio.wait([self._out.ended, self._err.ended], timeout=1.0)
        self._process.wait()
        await self._readable(self._info, to_end=True)  # the last to hold its other end is the guard

    async def _readable(self, fd: int, *, to_end: bool = False) -> None:
        """Wait until `fd` is readable; with `to_end`, until its end is read."""
        over: asyncio.Future[None] = self._loop.create_future()

        def look() -> None:
            if not (over.done() or (to_end and os.read(fd, 4096))):
                over.set_result(None)

        self._loop.add_reader(fd, look)
        try:
            async with asyncio.timeout(_GONE_S):
                await over
        except TimeoutError:
            raise SandboxError(f"a killed sandbox was still there after {_GONE_S} s") from None
        finally:
            self._loop.remove_reader(fd)

    def take(self) -> tuple[str, str, bool]:
        """Return what was written to stdout and stderr since the last call, and whether it was cut."""
        (out, cut), (err, cut_too) = self._out.take(), self._err.take()
        return out, err, cut or cut_too

    def result(self, ended_by: Cause, wall_s: float) -> ExecResult:
        """Say how the program ended; only an exit has an exit code."""
        code = self._process.returncode
        rc = signum = None
        cause: Cause = "killed" if code is None else ended_by  # None: it did not end when it was killed
        if code is not None and cause == "exit":
            # bubblewrap hands a signal death on as 128 + n; a program that exits with such a code itself
            # is reported as killed, which is never mistaken for success.
            if code < 0 or 128 < code <= 192:
                signum = -code if code < 0 else code - 128
                cause = signal_cause(signum)
            else:
                rc = code
                cause = exit_cause(rc, self._err.text())
        return ExecResult(
            rc=rc,
            signal=signum,
            stdout=self._out.text(),
            stderr=self._err.text(),
            truncated=self._out.truncated or self._err.truncated,
            cause=cause,
            wall_s=wall_s,
        )
