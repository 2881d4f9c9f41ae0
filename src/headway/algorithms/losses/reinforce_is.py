"""REINFORCE with a truncated importance weight (AIPO in LlamaRL; TIS at token level)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.losses.ratios import importance_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def reinforce_is(
    logp: Tensor, behaviour_logp: Tensor, advantages: Tensor, settings: AlgorithmSettings
) -> tuple[Tensor, Tensor]:
    """Return -sg[min(pi/mu, importance_cap)] A log pi.

    The weight is cut on one side only. A cut token keeps a gradient, scaled by the cap; clipped counts it.
    """
    ratio = importance_ratio(logp.detach(), behaviour_logp)
    weight = ratio.clamp(max=settings.importance_cap)
    return -weight * advantages * logp, ratio > settings.importance_cap
