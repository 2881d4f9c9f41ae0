"""What a reward function returns must be a Reward with a finite score.

A number is Python's own, or one of a library: numpy's scalars, and arrays and tensors without dimensions.
They become Python's. Truth values and texts are no numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from numbers import Integral, Real
from typing import cast

from headway.core.errors import RewardFault
from headway.core.records import Reward


class MalformedRewardFault(RewardFault):
    """What a reward function returned is no Reward, or is not built like one."""


def checked(reward: object, num_turns: int | None = None) -> Reward:
    """Return `reward` with Python's own numbers; itself where it has them already.

    Raises RewardFault when it is not a Reward, its score is not a finite number, a metric not a number, or
    the rewards of its turns are not one finite number for each of the `num_turns` answers.
    """
    if not isinstance(reward, Reward):
        raise MalformedRewardFault("a reward function must return a Reward", value=type(reward).__name__)
    score = number(reward.score)
    if score is None or not is_finite(score):
        raise RewardFault("a reward's score must be a finite number", value=repr(reward.score))
    given, reasons, values = _parts(reward)
    metrics: dict[str, float] = {}
    for name, value in given.items():
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise MalformedRewardFault("a reward's metrics must have strings as names", value=repr(name))
        metric = number(value)
        if metric is None:
            raise MalformedRewardFault(f"a reward's metric {name} must be a number", value=repr(value))
        metrics[name] = metric
    if not all(isinstance(reason, str) for reason in reasons):
        raise MalformedRewardFault("the reasons of a reward must be strings", value=repr(reasons))
    turns: list[float] = []
    for value in values:
        turn = number(value)
        if turn is None or not is_finite(turn):
            raise RewardFault("the rewards of turns must be finite numbers", value=repr(values))
        turns.append(turn)
    if turns and num_turns is not None and len(turns) != num_turns:
        rule = f"a reward has no rewards of turns, or one for each of the {num_turns} answers"
        raise MalformedRewardFault(rule, value=len(turns))
    if _are_plain([reward.score, *given.values(), *values]):
        return reward
    return replace(reward, score=score, metrics=metrics, turns=tuple(turns))


def _parts(reward: Reward) -> tuple[dict[str, object], tuple[object, ...], tuple[object, ...]]:
    """Return metrics, reasons and rewards of turns; whoever wrote them may have put anything there."""
    found = (reward.metrics, reward.reasons, reward.turns)
    metrics, reasons, turns = (cast("object", part) for part in found)
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


def number(value: object) -> int | float | None:
    """Return a real number as Python's own int or float, None for anything else, truth values among it."""
    value = unboxed(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return int(value)
    if not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:  # a fraction beyond every float
        return math.inf


def unboxed(value: object) -> object:
    """Return the Python value of a library's scalar, or of an array or tensor without dimensions.

    Anything else is returned as it is.
    """
    shape, item = getattr(value, "shape", None), getattr(value, "item", None)
    return item() if shape == () and callable(item) else value


def is_finite(value: float) -> bool:
    """Say whether a number is one that a float can hold."""
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond every float
        return False


def _are_plain(values: list[object]) -> bool:
    return all(type(value) in (int, float) for value in values)
