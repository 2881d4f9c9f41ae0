"""What a reward function returns must be a Reward with a finite score."""

from __future__ import annotations

import math
from typing import TypeGuard, cast

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
    metrics, reasons, turns = _parts(reward)
    for name, value in metrics.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MalformedRewardFault("a reward's metrics must have strings as names", value=repr(name))
        if not _is_number(value):
            raise MalformedRewardFault(f"a reward's metric {name} must be a number", value=repr(value))
    if not all(isinstance(reason, str) for reason in reasons):
        raise MalformedRewardFault("the reasons of a reward must be strings", value=repr(reasons))
    if not all(_is_finite(value) for value in turns):
        raise RewardFault("the rewards of turns must be finite numbers", value=repr(turns))
    if turns and num_turns is not None and len(turns) != num_turns:
        rule = f"a reward has no rewards of turns, or one for each of the {num_turns} answers"
        raise MalformedRewardFault(rule, value=len(turns))
    return reward


def _parts(reward: Reward) -> tuple[dict[str, object], tuple[object, ...], tuple[object, ...]]:
    """Return metrics, reasons and rewards of turns; whoever wrote them may have put anything there."""
    metrics, reasons, turns = (
        cast("object", part) for part in (reward.metrics, reward.reasons, reward.turns)
    )
    if isinstance(reasons, str):
        rule = "the reasons of a reward must be a tuple of strings, not one string"
        raise MalformedRewardFault(rule, value=repr(reasons[:80]), remedy='Write ("because",), with a comma')
    if not isinstance(metrics, dict):
        rule = "the metrics of a reward must be a dict of numbers by name"
        raise MalformedRewardFault(
            rule, value=type(metrics).__name__, remedy="Leave them out where there are none"
        )
    for name, value in (("reasons", reasons), ("turns", turns)):
        if not isinstance(value, (tuple, list)):
            rule = f"the {name} of a reward must be a tuple"
            raise MalformedRewardFault(
                rule, value=type(value).__name__, remedy="Leave them out where there are none"
            )
    return (
        {**cast("dict[str, object]", metrics)},
        tuple(cast("tuple[object, ...]", reasons)),
        tuple(cast("tuple[object, ...]", turns)),
    )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # an int beyond every float
        return False
