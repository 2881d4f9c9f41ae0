"""The trainer of several processes (`trainer.ranks`): this one is rank 0, and tells the others what to do.

Rank 0 starts the others and meets them over a file in the run directory. Each operation that computes
is sent to every other rank, over a socket to each, and then done here as well; inside it the ranks wait for
one another (`headway.trainer.ranks`), at most half of deadlines.train_s. Between operations the others wait
for the next one, without a deadline, and leave when this process does. Only rank 0 publishes and writes
checkpoints.

A rank that died ends the operation in progress, or the next one, with an error that names it. The process
that this is a part of ends with that error, and the scheduler starts it anew, with new ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headway.core.errors import HeadwayError
from headway.runtime.wire import socket_pair

if TYPE_CHECKING:
    from collections.abc import Collection

    from headway.core.commands import Row
    from headway.core.protocols import OptimSettings, PartSums, StepResult
    from headway.runtime.job import Job
    from headway.trainer.local import LocalTrainer
    from headway.trainer.ranks import Ranks

Make = Callable[["Job", "Ranks"], "LocalTrainer"]
_LEAVE_S = 5.0
PATIENCE = 0.5
"""Share of deadlines.train_s that ranks wait for one another: their error comes before the scheduler's."""


class RankedTrainer:
    """`headway.core.protocols.Trainer` over as many processes as `trainer.ranks` says.

    Args:
        job: of the trainer's process; its threads are divided among the ranks.
        make: returns the part of one rank.
    """

    def __init__(self, job: Job, make: Make) -> None:
        from headway.trainer.ranks import Ranks

        self._num_ranks = job.config.trainer.ranks
        self._threads = self._each(job.threads)
        self._meeting = job.run_dir / "ranks"  # what a killed trainer leaves goes with the run
        shutil.rmtree(self._meeting, ignore_errors=True)
        self._meeting.mkdir()
        own = dataclasses.replace(job, threads=self._threads)
        rendezvous = self._meeting / "rendezvous"
        self._others = [_start(own, rank, rendezvous) for rank in range(1, self._num_ranks)]
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        with self._naming_the_dead():
            timeout_s = PATIENCE * job.config.deadlines.train_s
            self._ranks = Ranks(0, self._num_ranks, rendezvous, timeout_s=timeout_s)
            self._own = make(own, self._ranks)

    # --- what every rank does

    def step(self, rows: Sequence[Row], lr_scale: float = 1.0, *, num_gathered: int = 0) -> StepResult:
        """Take one optimizer step, see the protocol."""
        return self._everywhere("step", rows, lr_scale, num_gathered=num_gathered)

    def gather(self, rows: Sequence[Row]) -> int:
        """Begin a step, see the protocol."""
        self._own.check(rows, whole=False)
        return self._everywhere("gather", rows)

    def forward(
        self, rows: Sequence[Row], policy: Literal["policy", "reference"] = "policy"
    ) -> Sequence[Sequence[Any]]:
        """Return log-probs, see the protocol."""
        self._own.check(rows)
        return self._everywhere("forward", rows, policy)

    def batch_wide(self, rows: Sequence[Row]) -> Any:
        """Return what only a whole batch tells, see the protocol."""
        self._own.check(rows)
        return self._everywhere("batch_wide", rows)

    def forward_backward(self, rows: Sequence[Row], wide: Any) -> PartSums:
        """Add the gradient of rows, see the protocol. The log-probs are of this rank's share."""
        self._own.check(rows)  # before the others hear of them: what is refused here computes nowhere
        return self._everywhere("forward_backward", rows, wide)

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self._everywhere("zero_grad")

    def optim_step(self, settings: OptimSettings | None = None, *, lr_scale: float = 1.0) -> dict[str, float]:
        """Apply the gradient of all ranks, see the protocol."""
        self._own.check_gradient()
        return self._everywhere("optim_step", settings, lr_scale=lr_scale)

    def load(self, path: str) -> None:
        """Go on exactly from a checkpoint."""
        self._everywhere("load", path)

    # --- what rank 0 does alone

    def publish(self, lineage: int, number: int) -> tuple[str, int]:
        """Write the weights for replicas, see the protocol."""
        found = self._own.publish(lineage, number)
        self._tell("trains_on", lineage)
        return found

    def publish_to(self, weights_dir: Path) -> None:
        """Publish versions there from now on."""
        self._own.publish_to(weights_dir)

    def capture(self, step: int, *, lineage: int = 0) -> Callable[[], str]:
        """Copy what a checkpoint holds; return what writes it."""
        return self._own.capture(step, lineage=lineage)

    def save(self, step: int, *, lineage: int = 0) -> str:
        """Write a checkpoint."""
        return self._own.save(step, lineage=lineage)

    def retain(self, step: int, also: Collection[int] = ()) -> None:
        """Drop checkpoints, see the protocol."""
        self._own.retain(step, also)

    def discard_after(self, step: int) -> None:
        """Remove the checkpoints of lost steps."""
        self._own.discard_after(step)

    def set_threads(self, num_threads: int) -> None:
        """Divide this many threads among the ranks; the others hear of it with their next operation."""
        self._threads = self._each(num_threads)
        self._own.set_threads(self._threads)

    def close(self) -> None:
        """Let the other ranks leave, and end those that do not."""
        for _, link in self._others:
            link.close()
        for process, _ in self._others:
            try:
                process.wait(_LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._ranks.close()
        shutil.rmtree(self._meeting, ignore_errors=True)

    # ---

    def _each(self, num_threads: int) -> int:
        return max(1, num_threads // self._num_ranks) if num_threads else 0

    def _everywhere(self, name: str, *arguments: Any, **named: Any) -> Any:
        self._tell(name, *arguments, **named)
        with self._naming_the_dead():
            return getattr(self._own, name)(*arguments, **named)

    def _tell(self, name: str, *arguments: Any, **named: Any) -> None:
        with self._naming_the_dead():
            for rank, (_, link) in enumerate(self._others, 1):
                try:
                    link.send((name, arguments, named, self._threads))
                except OSError as error:
                    rule = f"rank {rank} of the trainer must be there to {name}"
                    raise HeadwayError(rule, value=str(error), key="trainer.ranks") from error

    @contextlib.contextmanager
    def _naming_the_dead(self) -> Generator[None]:
        try:
            yield
        except HeadwayError as error:
            if error.key != "trainer.ranks":
                raise
            dead = [_ending(rank, process) for rank, (process, _) in enumerate(self._others, 1)]
            text = "; ".join(found for found in dead if found)
            if not text:
                raise
            remedy = "Its traceback is in the trainer's log"
            raise HeadwayError(f"{text}: {error.rule}", remedy=remedy, key="trainer.ranks") from error


def _start(job: Job, rank: int, rendezvous: Path) -> tuple[subprocess.Popen[bytes], Connection]:
    """Start one of the other ranks; it dies with this process, and writes to this process's log."""
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
    link.send((job, rank, str(rendezvous)))
    return process, link


def _ending(rank: int, process: subprocess.Popen[bytes]) -> str:
    """Return how a rank ended, "" for one that runs; a moment is left for one that is about to end."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    code = process.returncode
    if code is None:
        return ""
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    return f"rank {rank} of the trainer {how}"
