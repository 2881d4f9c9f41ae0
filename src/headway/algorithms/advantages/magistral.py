"""Magistral: rewards centred within their group, then scaled by the batch (Mistral 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.advantages import Advantage, BatchTokens
from headway.algorithms.advantages.dr_grpo import dr_grpo

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def scaled_by_the_batch(tokens: BatchTokens, settings: AlgorithmSettings) -> Tensor:
    """Return A / (std + std_eps), [t].

    The std is taken over the batch's rollouts, one value each whatever their lengths, of the centred
    rewards, with n - 1; sources differ on all three. No mean is subtracted: that of centred rewards is 0
    where groups are whole.
    """
    values, rollouts = tokens.advantages, tokens.rollouts
    if len(values) == 0:
        return values
    num = int(rollouts.max()) + 1
    counts = values.new_zeros(num).index_add(0, rollouts, values.new_ones(len(values)))
    each = values.new_zeros(num).index_add(0, rollouts, values) / counts
    if num < 2 or not bool(each.max() > each.min()):
        return values.new_zeros(len(values))
    return values / (each.std() + settings.std_eps)


magistral = Advantage(dr_grpo, batch=scaled_by_the_batch)
