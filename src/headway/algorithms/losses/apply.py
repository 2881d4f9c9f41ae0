"""Apply a loss to weighted tokens, so that a masked token is inert whatever it holds.

The order: the loss itself, the correction's weight, the sequence mask, the KL penalty (which neither of them
touches), the token's weight from the normaliser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from headway.algorithms.corrections.level import ratio_of_level
from headway.algorithms.corrections.sequence_mask import kept_sequences
from headway.algorithms.losses import Terms, Tokens
from headway.algorithms.losses.kl import kl_to_reference
from headway.algorithms.losses.ratios import importance_ratio
from headway.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.corrections import Correction
    from headway.algorithms.losses import PolicyLoss
    from headway.algorithms.settings import AlgorithmSettings


class LossInputs(NamedTuple):
    """t trained tokens of a part of the batch, in the order in which they were packed."""

    logp: Tensor  # nats, with the gradient, [t]
    behaviour_logp: Tensor  # nats, [t]
    advantages: Tensor  # [t]
    weights: Tensor  # from the normaliser, 0 where masked, [t]
    sequences: Tensor  # int64, [t]
    keep: Tensor | None = None  # from the loss's batch half, bool, [t]
    reference_logp: Tensor | None = None  # nats, [t]; needed where kl_coef is above 0


class LossOutput(NamedTuple):
    """A loss over a part of the batch; parts add up.

    Attributes:
        per_token: loss of each token before its weight, 0 where masked, [t].
        total: sum of weight times loss, the scalar to differentiate.
        sums: sums over the tokens that are not masked, detached: `clipped`, `masked`, `ratio`, `kl_k1`,
            `kl_k3`, `advantage`; with a correction `correction`; with a reference `kl_reference`.
        ratio_max: the largest pi/mu, 0 without tokens.
        num_tokens: tokens that are not masked.
    """

    per_token: Tensor
    total: Tensor
    sums: dict[str, float]
    ratio_max: float
    num_tokens: int


def apply_loss(
    loss: PolicyLoss, inputs: LossInputs, settings: AlgorithmSettings, correction: Correction | None = None
) -> LossOutput:
    """Return the weighted loss of t tokens.

    A token of weight 0 is masked: it is left out before anything is computed, not multiplied by zero, so
    that NaN or 1e9 under the mask changes neither loss nor gradient by a bit. A token that the loss, the
    correction or the sequence mask leaves out has loss 0, and stays in the denominators, which are known
    before the forward pass.

    KL(mu || pi) is estimated from mu's own samples with d = log pi - log mu: k1 = -d, k3 = e^d - d - 1.
    """
    kept = inputs.weights.nonzero().squeeze(1)
    logp, mu = inputs.logp[kept], inputs.behaviour_logp[kept]
    old = logp.detach()  # no weight moves between the start of the step and here
    sequences = inputs.sequences[kept]
    tokens = Tokens(
        logp,
        old,
        mu,
        mu if correction is None else old,
        inputs.advantages[kept],
        sequences,
        None if inputs.keep is None else inputs.keep[kept],
    )
    said = _one_for_each_token(loss.function(tokens, settings), len(kept), settings)
    terms, weight = _corrected(said, tokens, settings, correction)
    per_token = terms.per_token
    ratio = importance_ratio(old, mu)
    d = old - mu
    sums = {
        "clipped": terms.clipped.sum().item(),
        "masked": 0.0 if terms.masked is None else terms.masked.sum().item(),
        "ratio": ratio.sum().item(),
        "kl_k1": -d.sum().item(),
        "kl_k3": (ratio - d - 1).sum().item(),
        "advantage": tokens.advantages.abs().sum().item(),
    }
    if weight is not None:
        sums["correction"] = weight.sum().item()
    if inputs.reference_logp is not None:
        reference = inputs.reference_logp[kept]
        penalty = kl_to_reference(logp, mu, reference, settings)
        per_token = per_token + settings.kl_coef * penalty
        sums["kl_reference"] = penalty.detach().sum().item()
    spread = torch.zeros_like(inputs.logp).index_copy(0, kept, per_token)
    ratio_max = ratio.max().item() if len(ratio) else 0.0
    return LossOutput(spread, (per_token * inputs.weights[kept]).sum(), sums, ratio_max, len(kept))


def _one_for_each_token(terms: Terms, num_tokens: int, settings: AlgorithmSettings) -> Terms:
    """Return the terms; UserError for a mean or a sum, which would be spread over the tokens unnoticed."""
    for name, tensor in zip(terms._fields, terms, strict=True):
        if not (name == "masked" and tensor is None) and getattr(tensor, "shape", None) != (num_tokens,):
            raise UserError(
                f"loss {settings.loss} must return {name} as a tensor, one entry a token ({num_tokens})",
                value=tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else tensor,
                remedy="Do not average or sum: the normaliser weighs tokens (docs/hooks.md)",
                key="algorithm.loss",
            )
    return terms


def _corrected(
    terms: Terms, tokens: Tokens, settings: AlgorithmSettings, correction: Correction | None
) -> tuple[Terms, Tensor | None]:
    """Return the terms after correction and sequence mask, and the correction's weights."""
    masked = torch.zeros_like(terms.clipped) if terms.masked is None else terms.masked
    weight = None
    if correction is not None:
        rho = ratio_of_level(tokens.old_logp, tokens.behaviour_logp, tokens.sequences, settings)
        weight = correction(rho, settings).detach()
        terms = terms._replace(per_token=terms.per_token * weight)
        masked = masked | (weight == 0)
    if settings.sequence_mask_delta is not None:
        kept = kept_sequences(
            tokens.old_logp,
            tokens.behaviour_logp,
            tokens.advantages,
            tokens.sequences,
            settings.sequence_mask_delta,
        )
        masked = masked | ~kept
    zero = torch.zeros_like(terms.per_token)
    outside = masked if terms.masked is None else masked & ~terms.masked  # a loss masks its own tokens
    return terms._replace(per_token=torch.where(outside, zero, terms.per_token), masked=masked), weight
