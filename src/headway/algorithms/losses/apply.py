"""Apply a loss to weighted tokens, so that a masked token is inert whatever it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.losses import Loss
    from headway.algorithms.settings import AlgorithmSettings

MAX_LOG_RATIO = 20.0  # nats


class LossOutput(NamedTuple):
    """A loss over a part of the batch; parts add up.

    Attributes:
        per_token: loss of each token before its weight, 0 where masked, [t].
        total: sum of weight times loss, the scalar to differentiate.
        sums: sums over the tokens that are not masked, detached: `clipped`, `ratio`, `kl_k1`, `kl_k3`.
        num_tokens: tokens that are not masked.
    """

    per_token: Tensor
    total: Tensor
    sums: dict[str, float]
    num_tokens: int


def importance_ratio(logp: Tensor, behaviour_logp: Tensor) -> Tensor:
    """Return pi/mu, [t].

    The log-ratio is cut at +-MAX_LOG_RATIO: an infinite ratio under a clip has the gradient 0 * inf = NaN.
    """
    return (logp - behaviour_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def apply_loss(
    loss: Loss,
    logp: Tensor,
    behaviour_logp: Tensor,
    advantages: Tensor,
    weights: Tensor,
    settings: AlgorithmSettings,
) -> LossOutput:
    """Return the weighted loss of t tokens; all tensors are [t].

    A token of weight 0 is masked: it is left out before anything is computed, not multiplied by zero, so
    that NaN or 1e9 under the mask changes neither loss nor gradient by a bit.

    KL(mu || pi) is estimated from mu's own samples with d = log pi - log mu: k1 = -d, k3 = e^d - d - 1.
    """
    kept = weights.nonzero().squeeze(1)
    logp_kept, mu, advantage = logp[kept], behaviour_logp[kept], advantages[kept]
    terms, clipped = loss(logp_kept, mu, advantage, settings)
    per_token = torch.zeros_like(logp).index_copy(0, kept, terms)
    with torch.no_grad():
        ratio = importance_ratio(logp_kept, mu)
        d = logp_kept - mu
        sums = {
            "clipped": clipped.sum().item(),
            "ratio": ratio.sum().item(),
            "kl_k1": -d.sum().item(),
            "kl_k3": (ratio - d - 1).sum().item(),
        }
    return LossOutput(per_token, (terms * weights[kept]).sum(), sums, len(kept))
