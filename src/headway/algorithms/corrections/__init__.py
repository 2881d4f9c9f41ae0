"""Corrections for the gap between the policy that sampled (mu) and the trainer's own at the step (pi_old).

A correction is a function of the ratio rho = pi_old/mu of t tokens, [t], and the [algorithm] settings; it
returns the weight of each token, [t], which multiplies any loss. `algorithm.correction_level` says whose
ratio it is: the token's, or its sequence's. No gradient flows through it. With a correction the loss takes
its own ratio against pi_old, so that nothing is corrected twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from headway.algorithms.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from headway.algorithms.settings import AlgorithmSettings

Correction: TypeAlias = "Callable[[Tensor, AlgorithmSettings], Tensor]"

NONE = "none"

CORRECTIONS: Registry[Correction] = Registry(
    "correction",
    ("ratio", "settings"),
    {name: f"headway.algorithms.corrections.{name}:{name}" for name in (NONE, "tis", "mis", "icepop")},
)


def load_correction(settings: AlgorithmSettings) -> Correction | None:
    """Return the configured correction, None for none; UserError when there is no such."""
    return None if settings.correction == NONE else CORRECTIONS.load(settings.correction)
