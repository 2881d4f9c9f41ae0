"""The trainer of several processes (`trainer.ranks`): this one is rank 0, and tells the others what to do.

Rank 0 starts the others and meets them over a file in the run directory. Each operation that computes
is sent to every other rank, over a socket to each, and then done here as well; inside it the ranks wait for
one another (`headway.trainer.ranks`). Between operations the others wait for the next one, without a
deadline, and leave when this process does. Only rank 0 publishes and writes checkpoints.

What rank 0 refuses it refuses before the others hear of it, so they stay usable.

A rank that died ends the operation in progress, or the next one, with an error that names it. So does one
that is not where rank 0 waits for it once a part of deadlines.train_s is over, counted from the operation's
beginning: this process then ends with that error before the scheduler's own deadline ends the run, and the
scheduler starts it anew, with new ranks. Starting is bounded in the same way by deadlines.start_s.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headway.core.clock import stopwatch
from headway.core.errors import HeadwayError
from headway.runtime.rank_links import OtherRanks

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from headway.core.commands import Row
    from headway.core.protocols import OptimSettings, PartSums, StepResult
    from headway.runtime.job import Job
    from headway.trainer.local import LocalTrainer
    from headway.trainer.ranks import Ranks

Make = Callable[["Job", "Ranks"], "LocalTrainer"]
_OF_DEADLINE = 0.8  # what is left is for the process to end and be noticed


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
        deadlines = job.config.deadlines
        self._limit_s = _OF_DEADLINE * deadlines.train_s
        self._failed = ""  # the operation in which the ranks were lost
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        start_s = _OF_DEADLINE * deadlines.start_s
        until = stopwatch() + start_s
        self._others = OtherRanks()
        try:
            self._others.start(own, self._num_ranks, rendezvous)
            self._others.meet("here", until, start_s)
            with self._others.naming_the_dead():
                self._ranks = Ranks(
                    0, self._num_ranks, rendezvous, timeout_s=deadlines.train_s, meet_s=start_s
                )
                self._own = make(own, self._ranks)
            self._others.meet("ready", until, start_s)
        except BaseException:
            self._others.kill()
            self._others.close()
            Ranks.close()
            raise

    # --- what every rank does

    def step(self, rows: Sequence[Row], lr_scale: float = 1.0, *, num_gathered: int = 0) -> StepResult:
        """Take one optimizer step, see the protocol."""
        self._own.check_step(rows, lr_scale, num_gathered)
        return self._everywhere("step", rows, lr_scale, num_gathered=num_gathered)

    def gather(self, rows: Sequence[Row]) -> int:
        """Begin a step, see the protocol."""
        self._own.check_gather(rows)
        return self._everywhere("gather", rows)

    def forward(
        self, rows: Sequence[Row], policy: Literal["policy", "reference"] = "policy"
    ) -> Sequence[Sequence[Any]]:
        """Return log-probs, see the protocol."""
        self._own.check_forward(rows, policy)
        return self._everywhere("forward", rows, policy)

    def batch_wide(self, rows: Sequence[Row]) -> Any:
        """Return what only a whole batch tells, see the protocol."""
        self._own.check(rows)
        return self._everywhere("batch_wide", rows)

    def forward_backward(self, rows: Sequence[Row], wide: Any) -> PartSums:
        """Add the gradient of rows, see the protocol. The log-probs are of this rank's share."""
        self._own.check_forward_backward(rows, wide)
        return self._everywhere("forward_backward", rows, wide)

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self._everywhere("zero_grad")

    def optim_step(self, settings: OptimSettings | None = None, *, lr_scale: float = 1.0) -> dict[str, float]:
        """Apply the gradient of all ranks, see the protocol."""
        self._own.check_optim_step(settings, lr_scale)
        return self._everywhere("optim_step", settings, lr_scale=lr_scale)

    def load(self, path: str) -> None:
        """Go on exactly from a checkpoint; the others hear of it once this rank could."""
        self._own.load(path)
        self._tell("load", path)

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
        self._others.close()
        self._ranks.close()
        shutil.rmtree(self._meeting, ignore_errors=True)

    # ---

    def _each(self, num_threads: int) -> int:
        return max(1, num_threads // self._num_ranks) if num_threads else 0

    def _tell(self, name: str, *arguments: Any) -> None:
        """Let the others do what this rank has done."""
        with self._others.naming_the_dead(), self._watched():
            self._others.send((name, arguments, {}, self._threads))

    def _everywhere(self, name: str, *arguments: Any, **named: Any) -> Any:
        if self._failed:
            rule = f"the trainer's ranks must be started anew: {self._failed} failed in the midst of them"
            raise HeadwayError(rule, value=name, key="trainer.ranks")
        try:
            with self._others.naming_the_dead(), self._watched():
                self._others.send((name, arguments, named, self._threads))
                return getattr(self._own, name)(*arguments, **named)
        except BaseException:
            # The others may be inside a collective of this operation; the next one would be taken for it.
            self._failed = name
            self._others.kill()
            raise

    def _watched(self) -> AbstractContextManager[None]:
        return self._others.watched(self._limit_s, lambda: self._ranks.num_begun)
