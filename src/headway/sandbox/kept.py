"""One command of the unsafe provider, from its controller's side: started, fed, watched and ended.

Consumes the command's pipes and what its keeper (keeper.py) reports. Waits for its start (until
`start_timeout_s`), then for the first of: the end of the command, the wall limit, a flood of output, a breach
of the work folder's quota, cancellation of the caller. Whatever comes first, the keeper kills every process
of the command and tells; the wait for that is bounded by `_GONE_S`, after which the keeper is killed too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError
from headway.core.protocols import Cause, ExecLimits, ExecResult, Usage
from headway.sandbox import keeper
from headway.sandbox.causes import status_cause
from headway.sandbox.collector import Collector
from headway.sandbox.looks import Looks

_KEEPER = Path(keeper.__file__)
_GONE_S = 5.0  # for killed processes to be gone
_DRAIN_S = 1.0  # for what they wrote before


async def run_kept(
    argv: Sequence[str],
    folder: Path,
    cwd: str,
    env: Mapping[str, str],
    stdin: bytes,
    limits: ExecLimits,
    resources: Mapping[str, int],
    start_timeout_s: float,
    over_quota: Callable[[], Cause | None],
) -> ExecResult:
    """Run one command in `folder` under a keeper and return how it ended.

    `cwd` is relative to it; `resources` are limits by name: those of `resource.RLIMIT_*`, and `processes`.
    Raises SandboxError when the command never started. Cancelling kills every process.
    """
    if not argv:
        raise SandboxError("a command must have at least one word")
    async with contextlib.AsyncExitStack() as stack:
        run = _Kept(stack, [cwd, *argv], folder, env, limits, resources)
        began = stopwatch()
        try:
            await run.started(start_timeout_s)
            began = stopwatch()
            ended_by = await run.over(stdin, limits.wall_s, over_quota)
            wall_s = stopwatch() - began
        finally:
            await run.end()
    if ended_by == "exit":
        ended_by = over_quota() or "exit"
    return run.result(ended_by, wall_s)


class _Kept:
    """A keeper, its pipes and those of its command."""

    def __init__(
        self,
        stack: contextlib.AsyncExitStack,
        argv: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        limits: ExecLimits,
        resources: Mapping[str, int],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._stack = stack
        self._over: asyncio.Future[Cause] = self._loop.create_future()
        self._started: asyncio.Future[int] = self._loop.create_future()  # the command's process
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._said = b""
        self._status: int | None = None
        self._usage = Usage()
        life_read, self._life = os.pipe()
        self._report, report_write = os.pipe()
        stack.callback(os.close, self._report)
        words = [str(life_read), str(report_write), json.dumps(dict(resources)), *argv]
        try:
            # Its own session: a Ctrl-C at the terminal is for the controller, not for sandboxes.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", str(_KEEPER), *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(life_read, report_write),
                cwd=folder,
                env=dict(env),
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(self._life)
            raise SandboxError(f"the sandbox's process could not be created: {error}") from error
        finally:
            os.close(life_read)
            os.close(report_write)
        stack.callback(self._let_go)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            stack.callback(pipe.close)
        flood = lambda: self._settle("output")  # noqa: E731
        self._out = Collector(self._process.stdout.fileno(), limits.output_bytes, flood)
        self._err = Collector(self._process.stderr.fileno(), limits.output_bytes, flood)
        for collector in (self._out, self._err):
            collector.start()
            stack.callback(collector.close)
        os.set_blocking(self._report, False)
        self._loop.add_reader(self._report, self._hear)
        stack.callback(self._loop.remove_reader, self._report)

    def _settle(self, cause: Cause) -> None:
        if not self._over.done():
            self._over.set_result(cause)

    def _hear(self) -> None:
        """Take up what the keeper reports; the end of the pipe is its own."""
        data = os.read(self._report, 4096)
        self._said += data
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            word, *rest = line.decode().split()
            if word == "started" and not self._started.done():
                self._started.set_result(int(rest[0]))
            elif word == "ended":
                self._status = int(rest[0])
                self._usage = Usage(float(rest[2]), int(rest[3]))
                self._settle("pids" if rest[1] == "pids" else "exit")
        if not data:
            self._loop.remove_reader(self._report)
            if not self._started.done():
                self._started.set_result(0)
            self._settle("killed")  # a program may kill its keeper; nobody else does
            if not self._gone.done():
                self._gone.set_result(None)

    async def started(self, timeout_s: float) -> None:
        """Wait until the command could begin."""
        await asyncio.wait([self._started], timeout=timeout_s)
        if not self._started.done():
            raise SandboxError(
                "a sandbox must be ready within sandbox.start_timeout_s",
                value=timeout_s,
                remedy="The machine may be overloaded; lower sandbox.max_live",
            )
        if self._started.result() == 0:
            await asyncio.wait([self._err.ended], timeout=_DRAIN_S)
            said = self._err.text().strip() or "it said nothing"
            raise SandboxError(f"the sandbox did not start: {said}")

    async def over(self, stdin: bytes, wall_s: float, over_quota: Callable[[], Cause | None]) -> Cause:
        """Feed the command and wait for its end or for the first limit."""
        loop = self._loop
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, self._process.stdin)
        self._stack.callback(lambda: transport.get_write_buffer_size() and transport.abort())
        looks = Looks(over_quota, self._settle)
        wall = loop.call_later(wall_s, self._settle, "wall")
        try:
            if stdin:
                transport.write(stdin)
            transport.close()  # after what was written is flushed
            return await self._over
        finally:
            wall.cancel()
            looks.cancel()

    async def end(self) -> None:
        """Have everything killed that is left, and wait until it is gone."""
        self._let_go()
        await asyncio.wait([self._gone], timeout=_GONE_S)
        stubborn = not self._gone.done()
        if stubborn:  # a program may have stopped it
            left = keeper.below(self._process.pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            keeper.kill(left)
            await asyncio.wait([self._gone], timeout=_GONE_S)
        if self._status is None and self._started.done() and self._started.result():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._started.result(), signal.SIGKILL)
        if not self._gone.done():
            raise SandboxError(f"a killed sandbox was still there after {2 * _GONE_S} s")
        self._process.wait()
        await asyncio.wait([self._out.ended, self._err.ended], timeout=_DRAIN_S)

    def _let_go(self) -> None:
        """Close the pipe whose end tells the keeper to kill everything; idempotent."""
        if self._life >= 0:
            os.close(self._life)
            self._life = -1

    def result(self, ended_by: Cause, wall_s: float) -> ExecResult:
        """Say how the command ended; only an exit has an exit code."""
        rc, signum, cause = None, None, ended_by
        if ended_by == "exit":
            rc, signum, cause = status_cause(self._status or 0, self._err.text())
        return ExecResult(
            rc=rc,
            signal=signum,
            stdout=self._out.text(),
            stderr=self._err.text(),
            truncated=self._out.truncated or self._err.truncated,
            cause=cause,
            wall_s=wall_s,
            usage=self._usage,
        )
