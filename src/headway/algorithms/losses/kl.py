"""The KL penalty to the reference policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.losses.ratios import MAX_LOG_RATIO, importance_ratio

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def kl_to_reference(
    logp: Tensor, behaviour_logp: Tensor, reference_logp: Tensor, settings: AlgorithmSettings
) -> Tensor:
    """Return an estimate of KL(pi || pi_ref) for each token, differentiable, [t].

    With d = log pi_ref - log pi: k1 = -d, k2 = d^2/2, k3 = e^d - d - 1 (Schulman 2020). As terms of a loss
    they differ in their gradients: k2's is right on policy, k3's is that of the opposite KL, k1's has mean
    zero. `kl_importance` multiplies the term by pi/mu, gradient included, which makes all three unbiased
    (DeepSeek-V3.2 does so with k3).
    """
    d = (reference_logp - logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if settings.kl_estimator == "k1":
        term = -d
    elif settings.kl_estimator == "k2":
        term = d.square() / 2
    else:
        term = d.exp() - d - 1
    return term * importance_ratio(logp, behaviour_logp) if settings.kl_importance else term
