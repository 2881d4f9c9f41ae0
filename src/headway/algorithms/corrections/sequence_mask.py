"""Off-policy sequence masking: bad sequences that the policy has left are not learnt from (DeepSeek-V3.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.losses.ratios import sequence_mean

if TYPE_CHECKING:
    from torch import Tensor


def kept_sequences(
    old_logp: Tensor, behaviour_logp: Tensor, advantages: Tensor, sequences: Tensor, delta: float
) -> Tensor:
    """Return which tokens are kept, bool [t]: A >= 0, or mean_t(log mu - log pi_old) <= delta.

    The mean is over the token's sequence, one training sample.
    """
    return (advantages >= 0) | (sequence_mean(behaviour_logp - old_logp, sequences) <= delta)
