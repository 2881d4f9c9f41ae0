"""The trainer's other ranks, as rank 0 sees them: their processes, what they say, and how they end.

A rank says `here` once its imports are done, `ready` once its trainer is built, and from then on the number
of collectives that it has begun, at each; and the bad input that it ends of. Rank 0 waits for the first two:
a rank that dies closes its socket, which ends the wait at once, and a deadline bounds it. In an operation
rank 0 waits inside a collective, where it hears nobody. So a timer ends the ranks that have not come by then,
and their end unblocks the collective.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from headway.core.clock import stopwatch
from headway.core.errors import HeadwayError, UserError
from headway.runtime.wire import socket_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headway.runtime.job import Job

_LEAVE_S = 5.0
_END_S = 1.0  # is left for a rank that is about to end


@dataclass(slots=True)
class OtherRank:
    """One of the ranks above 0."""

    rank: int
    process: subprocess.Popen[bytes]
    link: Connection
    num_begun: int = 0  # collectives, as far as it was heard
    silent_s: float = 0.0  # after which it was ended because it had not come
    error: UserError | None = None  # the bad input that it ended of


@dataclass(slots=True)
class OtherRanks:
    """All ranks above 0."""

    ranks: list[OtherRank] = field(default_factory=list[OtherRank])
    sending_to: OtherRank | None = None

    def start(self, job: Job, num_ranks: int, rendezvous: Path) -> None:
        """Start them; they write to this process's log, and the kernel ends them with it."""
        for rank in range(1, num_ranks):
            process, link = _start(job, rank, rendezvous)
            self.ranks.append(OtherRank(rank, process, link))

    def meet(self, word: str, until: float, limit_s: float) -> None:
        """Wait until each has said a word, at most until then by the stopwatch.

        Raises HeadwayError that names a rank which died, or which said nothing for `limit_s`.
        """
        waiting = {rank.link: rank for rank in self.ranks}
        while waiting:
            ready = wait(list(waiting), max(0.0, until - stopwatch()))
            if not ready:
                for rank in waiting.values():
                    rank.silent_s = limit_s
                    rank.process.kill()
                raise self.named(f"the trainer's ranks must start ({word})")
            for link in ready:
                assert isinstance(link, Connection)
                try:
                    told = link.recv()
                except (EOFError, OSError):
                    raise self.named("the trainer's ranks must start", [waiting[link]]) from None
                if isinstance(told, UserError):
                    raise told
                if told == word:
                    del waiting[link]

    def send(self, message: Any) -> None:
        """Send a message to each; HeadwayError for one that is gone."""
        for rank in self.ranks:
            self.sending_to = rank
            try:
                rank.link.send(message)
            except OSError as error:
                rule = f"rank {rank.rank} of the trainer must be there to {message[0]}"
                raise HeadwayError(rule, value=str(error), key="trainer.ranks") from error
            finally:
                self.sending_to = None

    @contextlib.contextmanager
    def watched(self, limit_s: float, num_begun: Callable[[], int]) -> Generator[None]:
        """End the ranks that are behind this process in collectives, `limit_s` after the beginning."""
        self._listen()
        timer = threading.Timer(limit_s, self._end_the_late, (limit_s, num_begun))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # it reads the links, as the next operation does

    def _end_the_late(self, limit_s: float, num_begun: Callable[[], int]) -> None:
        self._listen()
        for rank in self.ranks:
            if rank is self.sending_to or rank.num_begun < num_begun():
                rank.silent_s = limit_s
                rank.process.kill()

    def _listen(self) -> None:
        for rank in self.ranks:
            with contextlib.suppress(EOFError, OSError):  # its end is told where it is waited for
                while rank.link.poll():
                    told = rank.link.recv()
                    if isinstance(told, UserError):
                        rank.error = told
                    else:
                        rank.num_begun = told

    @contextlib.contextmanager
    def naming_the_dead(self) -> Generator[None]:
        """Name the ranks that ended in the errors of collectives inside the block.

        Raises what one of them ended of instead where that was bad input.
        """
        try:
            yield
        except HeadwayError as error:
            if error.key != "trainer.ranks":
                raise
            named = self.named(error.rule)
            self._listen()
            raise next((rank.error for rank in self.ranks if rank.error), named) from error

    def named(self, rule: str, among: Sequence[OtherRank] = ()) -> HeadwayError:
        """Return an error that says which ranks ended and how; those that were silent alone, if any were.

        Of `among` it is known that they are ending, which may take a while: torch is taken down.
        """
        silent = [rank for rank in self.ranks if rank.silent_s]
        until = stopwatch() + (_LEAVE_S if among else _END_S)
        endings = [_ending(rank, until) for rank in among or silent or self.ranks]
        text = "; ".join(found for found in endings if found)
        if among and not text:
            text = "; ".join(f"rank {rank.rank} of the trainer closed its connection" for rank in among)
        remedy = "What it printed is in the trainer's log" if text else ""
        return HeadwayError(f"{text}: {rule}" if text else rule, remedy=remedy, key="trainer.ranks")

    def kill(self) -> None:
        """End them at once."""
        for rank in self.ranks:
            rank.process.kill()

    def close(self) -> None:
        """Let them leave, and end those that do not."""
        for rank in self.ranks:
            rank.link.close()
        for rank in self.ranks:
            try:
                rank.process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                rank.process.kill()
                rank.process.wait()


def _start(job: Job, rank: int, rendezvous: Path) -> tuple[subprocess.Popen[bytes], Connection]:
    ours, theirs = socket_pair()
    environment = {**os.environ, "OMP_NUM_THREADS": str(max(1, job.threads)), "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        [sys.executable, "-m", "headway.runtime.rank_worker", str(theirs.fileno()), str(os.getpid())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    theirs.close()
    link = Connection(ours.detach())
    with contextlib.suppress(OSError):  # one that is gone already is told by `meet`
        link.send((job, rank, str(rendezvous)))
    return process, link


def _ending(rank: OtherRank, until: float) -> str:
    """Return how a rank ended by then, "" for one that runs."""
    if rank.silent_s:
        return f"rank {rank.rank} of the trainer did not answer for {rank.silent_s:g} s"
    with contextlib.suppress(subprocess.TimeoutExpired):
        rank.process.wait(max(0.0, until - stopwatch()))
    code = rank.process.returncode
    if code is None:
        return ""
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    return f"rank {rank.rank} of the trainer {how}"
