"""MaxRL: centred rewards by their mean, so that rare successes weigh more (Tajwar et al. 2026)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headway.algorithms.advantages import centred
from headway.core.errors import HeadwayError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.algorithms.settings import AlgorithmSettings


def maxrl(rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
    """Return (R - mean) / mean.

    At mean 0 nothing succeeded: rewards are not negative, so all are 0 and so are the advantages. A negative
    reward has no meaning here and raises HeadwayError.
    """
    if any(reward < 0 for reward in rewards):
        rule, remedy = "maxrl needs rewards of at least 0: it divides by their mean", "dr_grpo takes any"
        raise HeadwayError(rule, value=list(rewards), remedy=remedy, key="algorithm.advantage")
    mean = math.fsum(rewards) / len(rewards) if rewards else 0.0
    return [value / mean for value in centred(rewards)] if mean > 0 else [0.0] * len(rewards)
