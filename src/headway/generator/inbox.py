"""The way into the decode loop's thread.

Consumes: jobs from any thread; the loop runs them between two decode steps.
Waits for: a job, where the loop has nothing else to do. Unblocked by `post`, and by `stop`.

Invariant: every job is run or refused, also one that comes after the loop has ended.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from headway.core.errors import EngineError
from headway.core.records import FinishReason


@dataclass(slots=True)
class Job:
    """Something to do in the loop's thread."""

    run: Callable[[], None]
    refuse: Callable[[FinishReason, str], None]  # instead of run, when the loop has ended


class Inbox:
    """Jobs of one loop.

    Attributes:
        stopping: whether the loop is to end.
        failure: traceback of what ended the loop's thread, nothing while it goes on.
    """

    def __init__(self) -> None:
        self.stopping = False
        self.failure = ""
        self._jobs: deque[Job] = deque()
        self._wake = threading.Condition()
        self._ended: tuple[FinishReason, str] | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    # --- from any thread ---

    def post(self, job: Job) -> None:
        """Run a job between two decode steps, or refuse it at once when the loop has ended."""
        with self._wake:
            ended = self._ended
            if ended is None:
                self._jobs.append(job)
                self._wake.notify()
        if ended is not None:
            job.refuse(*ended)

    def stop(self) -> None:
        """Ask the loop to end."""
        with self._wake:
            self.stopping = True
            self._wake.notify()

    # --- from a coroutine ---

    async def ask(self, run: Callable[[Future[float]], None]) -> float:
        """Run a job that answers a future, at once or later; return the answer.

        Raises EngineError when the loop has ended, or ends before it answers.
        """
        done: Future[float] = Future()

        def refuse(_reason: FinishReason, message: str) -> None:
            done.set_exception(EngineError(message, value=self.failure or None))

        self.post(Job(lambda: run(done), refuse))
        # Shielded: a cancelled caller must not cancel what the loop is about to settle.
        return await asyncio.shield(asyncio.wrap_future(done))

    async def do(self, act: Callable[[], None]) -> None:
        """Run something and wait for it; when the loop has ended there is nothing left to act on."""
        done: Future[None] = Future()

        def run() -> None:
            act()
            done.set_result(None)

        self.post(Job(run, lambda _reason, _message: done.set_result(None)))
        await asyncio.shield(asyncio.wrap_future(done))

    # --- from the loop's thread ---

    def next_job(self, is_busy: Callable[[], bool]) -> Job | None:
        """Return the oldest job; without one, wait while the loop is not busy."""
        with self._wake:
            self._wake.wait_for(lambda: self._jobs or is_busy() or self.stopping)
            return self._jobs.popleft() if self._jobs and not self.stopping else None

    def end(self, reason: FinishReason, message: str) -> list[Job]:
        """Refuse what comes from now on; return the jobs left, which the caller refuses."""
        with self._wake:
            self._ended = (reason, message)
            left = list(self._jobs)
            self._jobs.clear()
        return left
