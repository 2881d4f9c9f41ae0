"""TIS, truncated importance sampling (Yao et al. 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def tis(ratio: Tensor, settings: AlgorithmSettings) -> Tensor:
    """Return min(rho, tis_cap): nothing is dropped, nothing weighs more than the cap."""
    return ratio.clamp(max=settings.tis_cap)
