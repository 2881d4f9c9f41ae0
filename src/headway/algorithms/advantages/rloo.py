"""RLOO: each reward against the mean of the others (Ahmadian et al. 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.advantages import centred

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.algorithms.settings import AlgorithmSettings


def rloo(rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
    """Return n / (n - 1) * (R - mean), which equals R minus the mean of the other rewards."""
    num = len(rewards)
    return [value * num / max(1, num - 1) for value in centred(rewards)]
