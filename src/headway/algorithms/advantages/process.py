"""GRPO with process supervision: every turn has its own reward (Shao et al. 2024, DeepSeekMath 4.1.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.advantages import Advantage
from headway.algorithms.advantages.grpo import grpo
from headway.core.errors import HeadwayError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.algorithms.settings import AlgorithmSettings


def outcome_only(rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
    """Raise HeadwayError: there is nothing to supervise a process with."""
    rule, remedy = "process needs a reward for each turn", "Return Reward(score, turns=(...)) from `score`"
    raise HeadwayError(rule, value=list(rewards), remedy=remedy, key="algorithm.advantage")


def of_turns(turns: Sequence[Sequence[float]], settings: AlgorithmSettings) -> list[list[float]]:
    """Return for each turn the sum of its own and its rollout's later turns' standardised rewards.

    Rewards are standardised as in grpo, over all turns of the group; a turn k places later counts
    discount^k. What a turn gets is thus what followed from it. The score of the whole rollout takes no part:
    an environment that wants it adds it to the last turn.
    """
    standard = iter(grpo([reward for rollout in turns for reward in rollout], settings))
    advantages: list[list[float]] = []
    for rollout in turns:
        following, returns = 0.0, [0.0] * len(rollout)
        for index, reward in reversed([(index, next(standard)) for index in range(len(rollout))]):
            returns[index] = following = reward + settings.discount * following
        advantages.append(returns)
    return advantages


process = Advantage(outcome_only, turns=of_turns)
