"""IcePop: masks the tokens on which the two policies disagree (Ling team 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings


def icepop(ratio: Tensor, settings: AlgorithmSettings) -> Tensor:
    """Return rho where icepop_min <= rho <= icepop_max, else 0.

    The formula is that of mis; the bounds are wider, for it is meant for numerics rather than for staleness.
    """
    return ratio * ((ratio >= settings.icepop_min) & (ratio <= settings.icepop_max))
