"""M2PO: the batch's mean squared log-ratio is bounded by leaving out the largest (Zheng et al. 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from headway.algorithms.losses import BatchLogps, PolicyLoss, Terms, Tokens
from headway.algorithms.losses.ratios import importance_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def within_second_moment(tokens: BatchLogps, settings: AlgorithmSettings) -> Tensor:
    """Return which tokens of the batch are kept, bool [t].

    The largest (log pi/mu)^2 go first, until the mean of what is left is below m2po_threshold. Equal ones
    stay or go together, so that the order of the batch does not matter.
    """
    squares = (tokens.old_logp - tokens.anchor_logp).double().square()
    ordered = squares.sort().values
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, dtype=torch.float64)
    num_kept = int((means < settings.m2po_threshold).sum())  # the means rise
    if num_kept == len(ordered):
        return torch.ones_like(squares, dtype=torch.bool)
    return squares < ordered[num_kept]


def without_the_largest(tokens: Tokens, settings: AlgorithmSettings) -> Terms:
    """Return -A pi/mu of the tokens that are kept, 0 of the others."""
    surrogate = -tokens.advantages * importance_ratio(tokens.logp, tokens.anchor_logp)
    keep = torch.ones_like(surrogate, dtype=torch.bool) if tokens.keep is None else tokens.keep
    kept = torch.where(keep, surrogate, torch.zeros_like(surrogate))
    return Terms(kept, torch.zeros_like(keep), ~keep)


m2po = PolicyLoss(without_the_largest, batch=within_second_moment)
