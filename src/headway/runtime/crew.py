"""The crew: worker processes, their connections, their deaths.

Starts the generators, the trainer and the environment workers, and turns what they say into events for the
driver's inbox. Each worker has one reader; it waits for the worker's next message, at most `lost_after_s`.
A worker that dies, or falls silent, becomes one event with its original error, when its process is gone: a
generator that had joined a ReplicaLost, any other a WorkerLost. Whether it is started anew is the scheduler's
to say; the event tells it of a worker that ended of bad input, and would again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.core.clock import stopwatch
from headway.core.errors import HeadwayError, SandboxError, UserError
from headway.core.events import Event, ReplicaLost, WorkerLost
from headway.runtime.job import Job
from headway.runtime.wire import Link, socket_pair

_LOG_TAIL_BYTES = 2000
_BY_ROLE = {
    # torch and oneDNN each keep 1024 compiled multiplications, some 0.6 MiB apiece; decoding has one for
    # every matrix and number of rows. A step needs about ten of them, and one is compiled in 0.3 ms.
    "generator": {"LRU_CACHE_CAPACITY": "64", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"},
    # A step takes and frees the same large blocks again and again. glibc would give them back to the system
    # each time, and every page would be faulted in anew; 32 MiB is the highest threshold that all its
    # versions know. One arena: another thread's cannot hold what it does not give back.
    "trainer": {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    },
}


@dataclass(slots=True)
class Worker:
    """One worker process."""

    job: Job
    process: subprocess.Popen[bytes]
    link: Link
    log: Path
    joined: bool = False  # before that it loads, listens to nobody and holds nothing
    stopping: bool = False


@dataclass(slots=True)
class Death:
    """A worker that died unasked, and why."""

    job: Job
    error: HeadwayError | None  # what it raised, when that was one of ours
    cause: str  # one line
    trace: str  # its traceback, or the end of its log
    place: str = ""  # `FILE:LINE` of the user's own code that raised


@dataclass(slots=True)
class Crew:
    """All worker processes of one life of a run."""

    emit: Callable[[Event], None]
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    death: Death | None = None  # the newest
    _leaving: bool = False

    async def restart(self, name: str, epoch: int) -> Worker | None:
        """Start a worker that died anew, as it began; None when the crew is leaving.

        A trainer begins at the run's beginning and not at the checkpoint that this life began from: what it
        goes on from is told by a Rollback.
        """
        if self._leaving:
            return None
        return await self.start(replace(self.workers[name].job, epoch=epoch, checkpoint=None))

    async def start(self, job: Job) -> Worker:
        """Start one worker."""
        ours, theirs = socket_pair()
        log = job.run_dir / "logs" / f"{job.name}.log"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(job.threads),
            "OMP_WAIT_POLICY": "PASSIVE",  # a spinning thread steals its core from the others
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            **_BY_ROLE.get(job.role, {}),
        }
        with log.open("ab") as output:
            # From this thread, which lives as long as the driver: a worker dies with the thread that made it.
            process = subprocess.Popen(  # noqa: ASYNC220
                [sys.executable, "-m", "headway.runtime.worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        theirs.close()
        worker = Worker(job, process, await Link.over(ours), log)
        worker.link.send("job", job)
        self.workers[job.name] = worker
        return worker

    async def listen(self, worker: Worker) -> None:
        """Turn one worker's messages into events until it ends."""
        limit_s = worker.job.config.run.lost_after_s
        told: tuple[HeadwayError | None, str, str, str] | None = None
        silent = False
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    message = await worker.link.receive()
            except TimeoutError:
                silent = True
                break
            if message is None:
                break
            if message[0] == "event":
                worker.joined = True
                self.emit(message[1])
            elif message[0] == "died":
                told = message[1:]
        if worker.stopping:
            return
        if silent:
            worker.process.kill()
        code = await asyncio.to_thread(worker.process.wait)
        worker.link.close()
        if silent:
            cause = f"it said nothing for {limit_s:g} s (run.lost_after_s): its event loop is blocked"
            self.death = Death(worker.job, None, cause, _tail(worker.log))
        elif told is not None:
            self.death = Death(worker.job, *told)
        else:
            self.death = Death(worker.job, None, _exit_text(code), _tail(worker.log))
        self.emit(_lost(worker, self.death))

    async def stop(self, grace_s: float) -> None:
        """Let every worker leave; end those that have not after `grace_s` seconds, all together."""
        self._leaving = True
        for worker in self.workers.values():
            worker.stopping = True
            if worker.joined:
                worker.link.send("stop")
            else:
                worker.process.kill()
        until = stopwatch() + grace_s
        for worker in self.workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(worker.process.wait, max(0.0, until - stopwatch()))
        self.kill()

    def kill(self) -> None:
        """End every worker at once."""
        self._leaving = True
        for worker in self.workers.values():
            worker.stopping = True
            if worker.process.poll() is None:
                worker.process.kill()
        for worker in self.workers.values():
            worker.process.wait()
            worker.link.close()


def _lost(worker: Worker, death: Death) -> ReplicaLost | WorkerLost:
    job = worker.job
    # a sandbox that cannot be had is bad input before a run; in one the infrastructure failed
    bad_input = isinstance(death.error, UserError) and not isinstance(death.error, SandboxError)
    if job.role == "generator" and worker.joined:
        return ReplicaLost(job.name, job.epoch, death.cause, bad_input)
    return WorkerLost(job.role, job.name, death.cause, bad_input)


def _exit_text(code: int) -> str:
    if code >= 0:
        return f"it exited with code {code}"
    name = signal.Signals(-code).name
    hint = "; the system may be out of memory" if -code == signal.SIGKILL else ""
    return f"it was ended by {name}{hint}"


def _tail(log: Path) -> str:
    data = log.read_bytes()[-_LOG_TAIL_BYTES:]
    return data.decode(errors="replace")
