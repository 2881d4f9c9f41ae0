"""GRPO: rewards standardised within their group (Shao et al. 2024, DeepSeekMath)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headway.algorithms.advantages import centred, has_spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.algorithms.settings import AlgorithmSettings


def grpo(rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
    """Return (R - mean) / (std + std_eps).

    The std has n - 1 in its denominator and the default std_eps is 1e-4, as TRL has both.
    """
    values = centred(rewards)
    if not has_spread(rewards):
        return values
    std = math.sqrt(math.fsum(value * value for value in values) / (len(values) - 1))
    return [value / (std + settings.std_eps) for value in values]
