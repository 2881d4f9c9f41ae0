"""What a reward function returns must be a Reward with finite numbers."""

from __future__ import annotations

import math

from headway.core.errors import RewardFault
from headway.core.records import Reward


def checked(reward: object) -> Reward:
    """Return `reward` itself.

    Raises RewardFault when it is not a Reward, or its score or one of its metrics is not a finite number.
    """
    if not isinstance(reward, Reward):
        raise RewardFault("a reward function must return a Reward", value=type(reward).__name__)
    numbers: dict[str, object] = {**reward.metrics, "score": reward.score}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise RewardFault(f"a reward's {name} must be a finite number", value=repr(value))
    return reward
