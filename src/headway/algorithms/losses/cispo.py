"""CISPO: the weight is clipped, not the gradient (MiniMax 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.losses.ratios import importance_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def cispo(
    logp: Tensor, behaviour_logp: Tensor, advantages: Tensor, settings: AlgorithmSettings
) -> tuple[Tensor, Tensor]:
    """Return -sg[clip(pi/mu, cispo_min_weight, cispo_max_weight)] A log pi.

    Both bounds are absolute, not 1 - e and 1 + e. Every token keeps a gradient; clipped counts the tokens
    whose weight was cut.
    """
    low, high = settings.cispo_min_weight, settings.cispo_max_weight
    ratio = importance_ratio(logp.detach(), behaviour_logp)
    return -ratio.clamp(low, high) * advantages * logp, (ratio < low) | (ratio > high)
