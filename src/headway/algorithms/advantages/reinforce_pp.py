"""REINFORCE++: discounted returns whitened over all trained tokens of the batch (Hu et al. 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.algorithms.advantages import Advantage, BatchTokens, whitened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def plain(rewards: Sequence[float], settings: AlgorithmSettings) -> list[float]:
    """Return the rewards: nothing is compared within the group, so equal rewards have a signal too."""
    return list(rewards)


def whitened_returns(tokens: BatchTokens, settings: AlgorithmSettings) -> Tensor:
    """Return (G - mean) / (std + std_eps) with G = discount^n A of a token that n trained ones follow, [t].

    Mean and std are over tokens, so that long rollouts count for more; the std has n - 1. Advantages of a
    group no longer sum to zero.
    """
    returns = tokens.advantages
    if settings.discount < 1:
        returns = returns * settings.discount ** tokens.from_end.to(returns.dtype)
    return whitened(returns, settings.std_eps)


reinforce_pp = Advantage(plain, batch=whitened_returns)
