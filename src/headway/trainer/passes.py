"""Forward and backward passes over rows of a batch, in packed micro-batches.

Invariant: what a batch's parts add up to does not depend on how it is cut: everything that only the whole
batch tells (`BatchWide`) is given, never computed from a part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch

from headway.algorithms.advantages import load_advantage
from headway.algorithms.corrections import load_correction
from headway.algorithms.losses import load_loss
from headway.algorithms.losses.apply import LossInputs, apply_loss
from headway.trainer.batch_wide import BatchWide, batch_advantages, kept_tokens
from headway.trainer.packing import num_positions
from headway.trainer.sequences import build_sequences, count
from headway.trainer.sums import BatchSums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings
    from headway.trainer.packing import PackedRow
    from headway.trainer.policy import TrainedPolicy
    from headway.trainer.ranks import Ranks
    from headway.trainer.sequences import FetchedRow, TrainSequence


class Version(NamedTuple):
    """What is being trained."""

    steps: int  # optimizer steps applied
    lineage: int | None  # None while it is not known


class Passes:
    """The algorithm applied to a policy.

    Args:
        policy: whose log-probs and gradients are computed.
        algorithm: batch-wide half of the advantage, loss, correction, KL penalty and normaliser.
        before_each: called in the computing thread before each micro-batch.
        ranks: of the processes that share the work, None for this one alone.
    """

    def __init__(
        self,
        policy: TrainedPolicy,
        algorithm: AlgorithmSettings,
        before_each: Callable[[], None],
        ranks: Ranks | None,
    ) -> None:
        self._policy = policy
        self._algorithm = algorithm
        self._advantage = load_advantage(algorithm)
        self._loss = load_loss(algorithm)
        self._correction = load_correction(algorithm)
        self._before_each = before_each
        self._ranks = ranks

    @property
    def needs_whole_batch(self) -> str | None:
        """Return the setting whose batch half needs the whole batch before any gradient, None without one."""
        if self._advantage.batch is not None:
            return f"algorithm.advantage = {self._algorithm.advantage}"
        return None if self._loss.batch is None else f"algorithm.loss = {self._algorithm.loss}"

    def batch_wide(self, fetched: Sequence[FetchedRow], version: Version) -> BatchWide:
        """Return what only a whole batch tells; `fetched` is the whole of it."""
        wide = BatchWide(count(fetched))
        if self._advantage.batch is not None:
            sequences = self._sequences(fetched, wide, version)
            found = batch_advantages(self._advantage.batch, fetched, sequences, self._algorithm)
            wide = replace(wide, advantages=found)
        if self._loss.batch is not None:
            sequences = self._sequences(fetched, wide, version)
            logps = [logp for row in self.logprobs(fetched, version) for logp in row]
            anchored = self._correction is None
            kept = kept_tokens(self._loss.batch, fetched, sequences, logps, anchored, self._algorithm)
            wide = replace(wide, keep=kept)
        return wide

    def logprobs(self, fetched: Sequence[FetchedRow], version: Version) -> list[list[Tensor]]:
        """Return log-probs of the trained tokens, for each row and sample, without a gradient, nats, [k]."""
        mine = self._share(fetched)
        sequences = self._sequences(mine, BatchWide(count(mine)), version) if mine else []
        flat = iter(self._logprobs(sequences))
        found = [[next(flat) for _ in item.samples] for item in mine]
        return found if self._ranks is None else self._ranks.gathered(fetched, found)

    def forward_backward(self, fetched: Sequence[FetchedRow], wide: BatchWide, version: Version) -> BatchSums:
        """Add the gradient of this process's share of a part of a batch; return the sums of all shares."""
        sums = self._forward_backward(self._share(fetched), wide, version)
        return sums if self._ranks is None else self._ranks.merged(sums)

    def _share(self, fetched: Sequence[FetchedRow]) -> Sequence[FetchedRow]:
        return fetched if self._ranks is None else self._ranks.share(fetched)

    def _forward_backward(
        self, fetched: Sequence[FetchedRow], wide: BatchWide, version: Version
    ) -> BatchSums:
        sequences = self._sequences(fetched, wide, version)
        sums = BatchSums(num_unshared_tokens=sum(map(num_positions, sequences)))
        for row in self._policy.rows(sequences):
            self._before_each()
            reference = self._reference_logprobs(row)
            logp, entropy = self._policy.logprobs(row)
            inputs = LossInputs(
                logp,
                row.behaviour_logp.to(logp.dtype),
                row.advantages.to(logp.dtype),
                row.weights.to(logp.dtype),
                row.sequences,
                row.keep,
                reference,
            )
            output = apply_loss(self._loss, inputs, self._algorithm, self._correction)
            output.total.backward()
            sums.add(row, output, logp.detach(), entropy)
        return sums

    def _sequences(
        self, fetched: Sequence[FetchedRow], wide: BatchWide, version: Version
    ) -> list[TrainSequence]:
        return build_sequences(
            fetched,
            wide.denominators,
            self._algorithm,
            steps=version.steps,
            lineage=version.lineage,
            advantages=wide.advantages,
            keep=wide.keep,
        )

    def _logprobs(self, sequences: Sequence[TrainSequence]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        with torch.no_grad():
            for row in self._policy.rows(sequences):
                self._before_each()
                logp, _ = self._policy.logprobs(row)
                found |= dict(zip(row.members, logp.split(row.lengths), strict=True))
        return [found.get(index, torch.empty(0)) for index in range(len(sequences))]

    def _reference_logprobs(self, row: PackedRow) -> Tensor | None:
        """Return what the KL penalty needs, None where there is none."""
        if self._algorithm.kl_coef == 0:
            return None
        with torch.no_grad(), self._policy.as_reference():
            return self._policy.logprobs(row)[0]
