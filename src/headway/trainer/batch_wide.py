"""What only a whole optimizer batch tells, gathered before its first micro-batch.

Invariant: nothing here depends on micro-batches, packing or the order of rows, so neither does the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

import torch

from headway.algorithms.advantages import BatchTokens
from headway.algorithms.losses import BatchLogps
from headway.algorithms.normaliser import Denominators
from headway.core.errors import HeadwayError

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.advantages import BatchHalf
    from headway.algorithms.losses import KeepHalf
    from headway.algorithms.settings import AlgorithmSettings
    from headway.trainer.sequences import FetchedRow, TrainSequence


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BatchWide:
    """Given to each part of a batch. The mappings go from a rollout to all its trained tokens in order."""

    denominators: Denominators
    advantages: Mapping[str, Sequence[float]] | None = None  # None: those of the rows
    keep: Mapping[str, Sequence[bool]] | None = None  # None: the loss has no batch half


def batch_advantages(
    half: BatchHalf,
    fetched: Sequence[FetchedRow],
    sequences: Sequence[TrainSequence],
    settings: AlgorithmSettings,
) -> dict[str, list[float]]:
    """Return what an advantage's batch half says; `sequences` are those of `fetched`, in order.

    Raises HeadwayError when it does not return one finite number a token.
    """
    values = torch.tensor([value for s in sequences for value in s.advantages], dtype=torch.float64)
    numbers = torch.tensor([item.num_trained_tokens for item in fetched])
    present = numbers[numbers > 0]
    rollouts = torch.arange(len(present)).repeat_interleave(present)
    from_end = torch.tensor([n for s in sequences for n in reversed(range(len(s.positions)))])
    found = half(BatchTokens(values, rollouts, from_end), settings).to(torch.float64)
    if found.shape != values.shape or not bool(found.isfinite().all()):
        rule = f"the batch half of advantage {settings.advantage} must return {len(values)} finite numbers"
        bad = tuple(found.shape) if found.shape != values.shape else found[~found.isfinite()][0].item()
        raise HeadwayError(rule, value=bad, key="algorithm.advantage")
    return _by_rollout(found.tolist(), fetched)


def kept_tokens(
    half: KeepHalf,
    fetched: Sequence[FetchedRow],
    sequences: Sequence[TrainSequence],
    logps: Sequence[Tensor],
    against_behaviour: bool,
    settings: AlgorithmSettings,
) -> dict[str, list[bool]]:
    """Return what a loss's batch half says.

    `logps` are the trainer's own, a sequence each; the ratio is against mu, or against themselves.
    """
    old = torch.cat([logp.double() for logp in logps])
    mu = torch.tensor([value for s in sequences for value in s.behaviour_logp], dtype=torch.float64)
    advantages = torch.tensor([value for s in sequences for value in s.advantages], dtype=torch.float64)
    found = half(BatchLogps(old, mu, mu if against_behaviour else old, advantages), settings)
    if found.shape != old.shape or found.dtype != torch.bool:
        rule = f"the batch half of loss {settings.loss} must return {len(old)} booleans"
        raise HeadwayError(rule, value=(tuple(found.shape), str(found.dtype)), key="algorithm.loss")
    return _by_rollout(found.tolist(), fetched)


def _by_rollout(values: list[T], fetched: Sequence[FetchedRow]) -> dict[str, list[T]]:
    ends = list(accumulate(item.num_trained_tokens for item in fetched))
    starts = [0, *ends[:-1]]
    names = [item.row.rollout for item in fetched]
    return {name: values[a:b] for name, a, b in zip(names, starts, ends, strict=True)}
