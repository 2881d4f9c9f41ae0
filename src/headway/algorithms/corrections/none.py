"""No correction: the loss takes its ratio against the policy that sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def none(ratio: Tensor, settings: AlgorithmSettings) -> Tensor:
    """Return 1."""
    return ratio.new_ones(len(ratio))
