"""The policy gradient without any correction for staleness, to measure what correction gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def loss(
    logp: Tensor, behaviour_logp: Tensor, advantages: Tensor, settings: AlgorithmSettings
) -> tuple[Tensor, Tensor]:
    """-A log pi of each token: no ratio to the policy that sampled it, and no clipping."""
    return -advantages * logp, torch.zeros_like(advantages, dtype=torch.bool)
