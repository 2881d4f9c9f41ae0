"""The entry of every worker process: `python -m headway.runtime.worker FD`.

It consumes the driver's messages from the socket FD, the first of which is its Job, and sends events back.
It ends when the driver says stop, when the driver's end closes, or when the driver dies (the kernel kills
it). An exception travels to the driver with its traceback before the process exits. Ctrl-C is the
driver's business; workers ignore it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from headway.core.errors import HeadwayError
from headway.core.hooks import place_of_users
from headway.runtime.wire import Link

if TYPE_CHECKING:
    from headway.runtime.job import Job

_PR_SET_PDEATHSIG = 1
_SERVERS = {
    "generator": "headway.runtime.generator_worker",
    "trainer": "headway.runtime.trainer_worker",
    "environment": "headway.runtime.environment_worker",
}


class WorkerModule(Protocol):
    """What a role's module offers."""

    async def serve(self, job: Job, link: Link) -> None:
        """Do the job until the driver says stop or goes away."""
        ...


def main() -> int:
    """Run one worker; returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not tie_to_parent(int(sys.argv[2])):
        return 1
    return asyncio.run(_run(socket.socket(fileno=int(sys.argv[1]))))


def tie_to_parent(parent: int) -> bool:
    """Let the kernel end this process with its parent; False when that died before the tie was made."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise HeadwayError("the worker could not tie its life to the driver's (prctl PR_SET_PDEATHSIG)")
    return os.getppid() == parent


async def _run(end: socket.socket) -> int:
    link = await Link.over(end)
    first = await link.receive()
    if first is None:
        return 1
    job: Job = first[1]
    sys.path[:] = job.import_path
    try:
        async with asyncio.TaskGroup() as tasks:
            beat = tasks.create_task(_beat(link, job.config.run.heartbeat_s))
            module: WorkerModule = await asyncio.to_thread(import_module, _SERVERS[job.role])  # pyright: ignore
            await module.serve(job, link)
            beat.cancel()
    except* BaseException as group:
        error = _first(group)
        trace = "".join(traceback.format_exception(error))
        own = error if isinstance(error, HeadwayError) else None
        link.send("died", own, _one_line(error), trace, place_of_users(error))
        await link.flush()
        print(trace, file=sys.stderr)
        return_code = 1
    else:
        return_code = 0
    link.close()
    return return_code


async def _beat(link: Link, every_s: float) -> None:
    while True:
        link.send("alive")
        await asyncio.sleep(every_s)


def _first(error: BaseException) -> BaseException:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return _first(group.exceptions[0])
    return error


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
