"""The clipped surrogate of PPO at token level, as GRPO uses it, against the sampling policy.

The ratio is pi/mu, not pi/pi_old: a batch gives one optimizer step, so pi_old recomputed at the start of
that step equals pi, a ratio to it is 1 and clips nothing. With stale data pi/mu leaves the trust region, and
there the clip must act.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headway.algorithms.losses.ratios import importance_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def grpo(
    logp: Tensor, behaviour_logp: Tensor, advantages: Tensor, settings: AlgorithmSettings
) -> tuple[Tensor, Tensor]:
    """Return -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), with r = pi/mu.

    For A < 0 the loss is at most -dual_clip A (Ye et al. 2020), so that one token which the policy now finds
    far more likely cannot rule the step. Clipped counts the tokens whose gradient either clip removed.
    """
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    ratio = importance_ratio(logp, behaviour_logp)
    objective = torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    clipped = ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))
    if settings.dual_clip > 0:
        capped = (advantages < 0) & (ratio > settings.dual_clip)
        objective = torch.where(capped, settings.dual_clip * advantages, objective)
        clipped |= capped
    return -objective, clipped
