"""Dr. GRPO: rewards centred within their group, not scaled (Liu et al. 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.advantages import centred

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.algorithms.settings import AlgorithmSettings


def dr_grpo(rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
    """Return R - mean."""
    return centred(rewards)
