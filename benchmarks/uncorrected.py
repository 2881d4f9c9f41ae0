"""The policy gradient without any correction for staleness, for the benchmarks that ask what correction gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def loss(
    logp: Tensor, behaviour_logp: Tensor, advantages: Tensor, settings: AlgorithmSettings
) -> tuple[Tensor, Tensor]:
    """-A log pi of each token: no ratio to the policy that sampled it, and no clipping."""
    return -advantages * logp, advantages.new_zeros(len(advantages), dtype=bool)
