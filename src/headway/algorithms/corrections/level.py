"""Whose ratio a correction sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.losses.ratios import MAX_LOG_RATIO, sequence_mean, sequence_sum

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def ratio_of_level(
    old_logp: Tensor, behaviour_logp: Tensor, sequences: Tensor, settings: AlgorithmSettings
) -> Tensor:
    """Return rho of each token, [t]: its own; the product over its sequence; or their geometric mean."""
    gap = old_logp - behaviour_logp
    if settings.correction_level == "sequence":
        gap = sequence_sum(gap, sequences)
    elif settings.correction_level == "geometric":
        gap = sequence_mean(gap, sequences)
    return gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
