"""Advantages of a group's rollouts from their rewards, one file each. Standard library only.

An advantage is a function of the rewards of one group, one a rollout however many samples the rollout left,
and of the [algorithm] settings; it returns one number a rollout. It may have two more parts, see `Advantage`:
a half that the trainer applies over the whole batch at its step, and one that takes the rewards of turns.

The built-in ones that compare the rollouts of a group return zeros for a group of one and for equal rewards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from headway.algorithms.registry import Registry
from headway.core.errors import HeadwayError

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings

GroupHalf: TypeAlias = "Callable[[Sequence[float], AlgorithmSettings], list[float]]"
BatchHalf: TypeAlias = "Callable[[BatchTokens, AlgorithmSettings], Tensor]"
TurnHalf: TypeAlias = "Callable[[Sequence[Sequence[float]], AlgorithmSettings], list[list[float]]]"


class BatchTokens(NamedTuple):
    """The trained tokens of a whole optimizer batch, in the order of its rows; t tokens of n rollouts."""

    advantages: Tensor  # of the group half, float64, [t]
    rollouts: Tensor  # rollout of each token, 0 .. n-1, int64, [t]
    from_end: Tensor  # trained tokens that follow in the same sample, int64, [t]


@dataclass(frozen=True, slots=True)
class Advantage:
    """An advantage with more than one part.

    Attributes:
        group: rewards of one group -> one finite number a rollout. Called when the group settles, after
            which its advantages stand.
        batch: advantages of all trained tokens of a batch -> theirs in its place, [t]. Called by the trainer
            at the step, where alone the batch is known, and never with a part of one: the gradient does not
            depend on micro-batches. No half is the identity.
        turns: rewards of the turns of one group's rollouts -> one finite number a turn. Called in place of
            `group`, and every rollout must then have rewards of turns.
    """

    group: GroupHalf
    batch: BatchHalf | None = None
    turns: TurnHalf | None = None

    def __call__(self, rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
        """Return the group half's answer."""
        return self.group(rewards, settings)


_NAMES = ("grpo", "dr_grpo", "rloo", "magistral", "maxrl", "process", "reinforce_pp", "reinforce_pp_baseline")

ADVANTAGES: Registry[Advantage | GroupHalf] = Registry(
    "advantage",
    ("rewards", "settings"),
    {name: f"headway.algorithms.advantages.{name}:{name}" for name in _NAMES},
)


def load_advantage(settings: AlgorithmSettings) -> Advantage:
    """Return the configured advantage; UserError when there is none."""
    return as_advantage(ADVANTAGES.load(settings.advantage))


def as_advantage(found: Advantage | GroupHalf) -> Advantage:
    """Return an advantage; a plain function is its group half."""
    return found if isinstance(found, Advantage) else Advantage(found)


def advantage_function(settings: AlgorithmSettings) -> Callable[[Sequence[float]], list[float]]:
    """Return the configured advantage's group half, checked: rewards in, one finite number each out.

    Raises UserError when the function cannot be loaded. The returned function raises HeadwayError when
    the configured one breaks its contract.
    """
    function = load_advantage(settings).group

    def checked(rewards: Sequence[float]) -> list[float]:
        return checked_numbers(function(rewards, settings), rewards, settings.advantage)

    return checked


def checked_numbers(values: Sequence[float], rewards: Sequence[float], name: str) -> list[float]:
    """Return the values as floats; HeadwayError unless there is one finite number for each reward."""
    advantages = [float(value) for value in values]
    if len(advantages) != len(rewards) or not all(map(math.isfinite, advantages)):
        rule = f"advantage {name} must return one finite number for each of {list(rewards)}"
        raise HeadwayError(rule, value=advantages, key="algorithm.advantage")
    return advantages


def centred(rewards: Sequence[float]) -> list[float]:
    """Return the rewards minus their mean; exact zeros for a group of one or of equal rewards."""
    if not has_spread(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def has_spread(rewards: Sequence[float]) -> bool:
    """Return whether the rewards differ; rounding of a mean never makes a signal of equal rewards."""
    return len(rewards) > 1 and max(rewards) > min(rewards)


def whitened(values: Tensor, eps: float) -> Tensor:
    """Return (values - mean) / (std + eps), the std with n - 1; zeros for one value and for equal ones."""
    if len(values) < 2 or not bool(values.max() > values.min()):
        return values.new_zeros(len(values))
    return (values - values.mean()) / (values.std() + eps)
