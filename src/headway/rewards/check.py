"""What a reward function returns must be a Reward with a finite score."""

from __future__ import annotations

import math
from typing import TypeGuard

from headway.core.errors import RewardFault
from headway.core.records import Reward


class MalformedRewardFault(RewardFault):
    """What a reward function returned is no Reward, or is not built like one."""


def checked(reward: object, num_turns: int | None = None) -> Reward:
    """Return `reward` itself.

    Raises RewardFault when it is not a Reward, its score is not a finite number, a metric not a number, or
    the rewards of its turns are not one finite number for each of the `num_turns` answers.
    """
    if not isinstance(reward, Reward):
        raise MalformedRewardFault("a reward function must return a Reward", value=type(reward).__name__)
    score: object = reward.score
    if not _is_finite(score):
        raise RewardFault("a reward's score must be a finite number", value=repr(score))
    metrics: dict[str, object] = {**reward.metrics}
    for name, value in metrics.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MalformedRewardFault("a reward's metrics must have strings as names", value=repr(name))
        if not _is_number(value):
            raise MalformedRewardFault(f"a reward's metric {name} must be a number", value=repr(value))
    if not all(isinstance(reason, str) for reason in reward.reasons):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MalformedRewardFault("the reasons of a reward must be strings", value=repr(reward.reasons))
    turns: tuple[object, ...] = tuple(reward.turns)
    if not all(_is_finite(value) for value in turns):
        raise RewardFault("the rewards of turns must be finite numbers", value=repr(turns))
    if turns and num_turns is not None and len(turns) != num_turns:
        rule = f"a reward has no rewards of turns, or one for each of the {num_turns} answers"
        raise MalformedRewardFault(rule, value=len(turns))
    return reward


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # an int beyond every float
        return False
