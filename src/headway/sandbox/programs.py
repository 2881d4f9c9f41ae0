"""One command in a sandbox of the local provider: started, fed, watched and ended.

Consumes the pipes of the command and the messages of the sandbox's first process. Waits for its start (until
`start_timeout_s`), then for the first of: the end of the command, the wall limit, a flood of output,
cancellation of the caller. Whatever comes first, every process of the command is killed and the wait for
their end is bounded by `_GONE_S`. The first process tells the end only when all of them are reaped, so a
program that keeps stdout open cannot hold the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError
from headway.core.protocols import Cause, ExecLimits, ExecResult
from headway.sandbox.causes import exit_cause, signal_cause
from headway.sandbox.collector import Collector
from headway.sandbox.layout import SANDBOX_ENV, SHIM, interpreter

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings
    from headway.sandbox.zygote import Cell, Ending

_GONE_S = 5.0  # for killed processes to be gone
_DRAIN_S = 1.0  # for what they wrote before
_SNIPPET_FLAGS = frozenset("ISBEs")
_CHANGING = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC", "GLIBC")  # what an interpreter reads at its start


async def run_program(
    cell: Cell,
    argv: Sequence[str],
    env: Mapping[str, str],
    stdin: bytes,
    limits: ExecLimits,
    settings: SandboxSettings,
    *,
    terminated: Callable[[], bool],
) -> ExecResult:
    """Run one command and return how it ended.

    `terminated` says whether the sandbox was ended on purpose. Raises SandboxError when the command never
    started, or the sandbox failed under it. Cancelling kills every process of the command.
    """
    if not argv:
        raise SandboxError("a command must have at least one word")
    loop = asyncio.get_running_loop()
    over: asyncio.Future[Cause] = loop.create_future()

    def settle(cause: Cause) -> None:
        if not over.done():
            over.set_result(cause)

    async with contextlib.AsyncExitStack() as stack:
        theirs: list[int] = []
        try:
            read, write = os.pipe()
            theirs.append(read)
            feed = stack.enter_context(os.fdopen(write, "wb", buffering=0))
            ours: list[int] = []
            for _ in range(2):
                read, write = os.pipe()
                theirs.append(write)
                stack.callback(os.close, read)
                ours.append(read)
            preloaded = settings.preload_python and is_snippet(argv, env)
            words = [f"{name}={value}" for name, value in (SANDBOX_ENV | dict(env)).items()]
            started, ended = cell.run(argv, words, theirs, preloaded=preloaded)
        finally:
            for fd in theirs:
                os.close(fd)
        out, err = (Collector(fd, limits.output_bytes, lambda: settle("output")) for fd in ours)
        stack.callback(out.close)
        stack.callback(err.close)
        ended.add_done_callback(lambda _: settle("exit"))
        began = stopwatch()
        try:
            try:
                async with asyncio.timeout(settings.start_timeout_s):
                    await started
            except TimeoutError:
                raise SandboxError(
                    "a sandbox must start a command within sandbox.start_timeout_s",
                    value=settings.start_timeout_s,
                    remedy="The machine may be overloaded; lower sandbox.max_live",
                ) from None
            began = stopwatch()
            wall = loop.call_later(limits.wall_s, settle, "wall")
            stack.callback(wall.cancel)
            if stdin:
                transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, feed)
                stack.callback(lambda: transport.get_write_buffer_size() and transport.abort())
                transport.write(stdin)
                transport.close()  # after what was written is flushed
            else:
                feed.close()
            ended_by = await over
            wall_s = stopwatch() - began
        except SandboxError:
            if not terminated():
                raise
            ended_by, wall_s = "killed", stopwatch() - began
        finally:
            ending = await _end(cell, ended, terminated)
        await asyncio.wait([out.ended, err.ended], timeout=_DRAIN_S)
    return _result(cell, ending, ended_by, out, err, wall_s)


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


async def _end(cell: Cell, ended: asyncio.Future[Ending], terminated: Callable[[], bool]) -> Ending | None:
    """Kill what is left of a command and wait until it is gone; None when the sandbox was ended with it."""
    if not ended.done():
        cell.kill_programs()
        await asyncio.wait([ended], timeout=_GONE_S)
    if not ended.done():
        await cell.end()
        raise SandboxError(f"killed processes were still there after {_GONE_S} s")
    if ended.exception() is None:
        return ended.result()
    if terminated():
        return None
    raise SandboxError("the sandbox's first process ended under a command") from ended.exception()


def _result(
    cell: Cell, ending: Ending | None, ended_by: Cause, out: Collector, err: Collector, wall_s: float
) -> ExecResult:
    """Say how the command ended; only an exit has an exit code."""
    rc = signum = None
    cause = ended_by
    if ending is None:
        cause = "killed"
    elif ending.oom:
        cause = "oom"
    elif ended_by == "exit":
        if os.WIFSIGNALED(ending.status):
            signum = os.WTERMSIG(ending.status)
            cause = signal_cause(signum)
        else:
            rc = os.WEXITSTATUS(ending.status)
            cause = exit_cause(rc, err.text())
            if cause == "disk" and os.fstatvfs(cell.work_fd).f_ffree == 0:
                cause = "inodes"
    return ExecResult(
        rc=rc,
        signal=signum,
        stdout=out.text(),
        stderr=err.text(),
        truncated=out.truncated or err.truncated,
        cause=cause,
        wall_s=wall_s,
    )
