"""GSPO: the ratio and its clip belong to the sequence (Zheng et al. 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headway.algorithms.losses import PolicyLoss, Terms, Tokens
from headway.algorithms.losses.ratios import MAX_LOG_RATIO, importance_ratio, sequence_mean

if TYPE_CHECKING:
    from headway.algorithms.settings import AlgorithmSettings


def sequence_ratio(tokens: Tokens, settings: AlgorithmSettings) -> Terms:
    """Return -min(s A, clip(s, 1 - gspo_clip_low, 1 + gspo_clip_high) A), s = exp(mean_t log pi/mu).

    s is the sequence's, in the token form sg[s] * pi/sg[pi], so that each token may carry an advantage of
    its own. A sequence is one training sample: a rollout that branched has several. The usual normaliser
    with it is seq-mean-token-mean.
    """
    low, high = 1 - settings.gspo_clip_low, 1 + settings.gspo_clip_high
    gap = sequence_mean(tokens.old_logp - tokens.anchor_logp, tokens.sequences)
    held = gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    ratio = held * importance_ratio(tokens.logp, tokens.old_logp)
    objective = torch.minimum(ratio * tokens.advantages, ratio.clamp(low, high) * tokens.advantages)
    clipped = ((tokens.advantages > 0) & (held > high)) | ((tokens.advantages < 0) & (held < low))
    return Terms(-objective, clipped)


gspo = PolicyLoss(sequence_ratio)
