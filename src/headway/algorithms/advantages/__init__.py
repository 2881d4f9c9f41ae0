"""Advantages of a group's rollouts from their rewards, one file each. Standard library only.

An advantage takes the rewards of one group, one a rollout however many samples the rollout left, and the
[algorithm] settings; it returns one number a rollout. The built-in ones return zeros for a group of one
and for equal rewards, and their advantages sum to zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from headway.algorithms.registry import Registry
from headway.core.errors import HeadwayError

if TYPE_CHECKING:
    from headway.algorithms.settings import AlgorithmSettings

Advantage: TypeAlias = "Callable[[Sequence[float], AlgorithmSettings], list[float]]"

ADVANTAGES: Registry[Advantage] = Registry(
    "advantage",
    ("rewards", "settings"),
    {name: f"headway.algorithms.advantages.{name}:{name}" for name in ("grpo", "dr_grpo", "rloo")},
)


def advantage_function(settings: AlgorithmSettings) -> Callable[[Sequence[float]], list[float]]:
    """Return the configured advantage, checked: rewards of one group in, one finite number each out.

    Raises UserError when the function cannot be loaded. The returned function raises HeadwayError when
    the configured one breaks its contract.
    """
    function = ADVANTAGES.load(settings.advantage)

    def checked(rewards: Sequence[float]) -> list[float]:
        advantages = [float(value) for value in function(rewards, settings)]
        if len(advantages) != len(rewards) or not all(map(math.isfinite, advantages)):
            rule = f"advantage {settings.advantage} must return one finite number for each of {list(rewards)}"
            raise HeadwayError(rule, value=advantages, key="algorithm.advantage")
        return advantages

    return checked


def centred(rewards: Sequence[float]) -> list[float]:
    """Return the rewards minus their mean; exact zeros for a group of one or of equal rewards."""
    if not has_spread(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def has_spread(rewards: Sequence[float]) -> bool:
    """Return whether the rewards differ; rounding of a mean never makes a signal of equal rewards."""
    return len(rewards) > 1 and max(rewards) > min(rewards)
