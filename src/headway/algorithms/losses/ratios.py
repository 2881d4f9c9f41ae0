"""Importance ratios of tokens and sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MAX_LOG_RATIO = 20.0  # nats


def importance_ratio(logp: Tensor, other_logp: Tensor) -> Tensor:
    """Return the ratio of the two probabilities, [t].

    The log-ratio is cut at +-MAX_LOG_RATIO: an infinite ratio under a clip has the gradient 0 * inf = NaN.
    """
    return (logp - other_logp).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def sequence_sum(values: Tensor, sequences: Tensor) -> Tensor:
    """Return for each token the sum over its sequence, [t]."""
    if len(values) == 0:
        return values
    num = int(sequences.max()) + 1
    return values.new_zeros(num).index_add(0, sequences, values)[sequences]


def sequence_mean(values: Tensor, sequences: Tensor) -> Tensor:
    """Return for each token the mean over its sequence, [t]."""
    return sequence_sum(values, sequences) / sequence_sum(values.new_ones(len(values)), sequences)
