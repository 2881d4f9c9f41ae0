"""MIS, masked importance sampling (Liu et al. 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def mis(ratio: Tensor, settings: AlgorithmSettings) -> Tensor:
    """Return rho where mis_min <= rho <= mis_max, else 0."""
    return ratio * ((ratio >= settings.mis_min) & (ratio <= settings.mis_max))
