"""DPPO's mask: the trust region is in probability, not in ratio (the default of prime-rl)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headway.algorithms.losses import PolicyLoss, Terms, Tokens
from headway.algorithms.losses.ratios import MAX_LOG_RATIO, importance_ratio

if TYPE_CHECKING:
    from headway.algorithms.settings import AlgorithmSettings


def probability_mask(tokens: Tokens, settings: AlgorithmSettings) -> Terms:
    """Return -A pi/mu + dppo_kl (log pi/mu)^2, the first term 0 where pi has moved too far with A.

    Masked where pi - mu > dppo_high and A > 0, or pi - mu < -dppo_low and A < 0. The quadratic term pulls
    every token back, masked ones too.
    """
    pi, mu = tokens.old_logp.exp(), tokens.anchor_logp.exp()
    masked = ((pi - mu > settings.dppo_high) & (tokens.advantages > 0)) | (
        (pi - mu < -settings.dppo_low) & (tokens.advantages < 0)
    )
    surrogate = -tokens.advantages * importance_ratio(tokens.logp, tokens.anchor_logp)
    gap = (tokens.logp - tokens.anchor_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    kept = torch.where(masked, torch.zeros_like(surrogate), surrogate)
    return Terms(kept + settings.dppo_kl * gap.square(), torch.zeros_like(masked), masked)


dppo = PolicyLoss(probability_mask)
