"""Gains of findings by re-simulating the run (`headway.matching.whatif`), in place of closed forms.

A simulation of the unchanged run that is further than MAX_ERROR from what was measured is not believed, and a
setting that it cannot predict has none: the closed form stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.errors import UserError
from headway.matching.advice.finding import Gain
from headway.matching.whatif import Replay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.matching.advice.finding import WhatIf
    from headway.telemetry.journal import Journal

MAX_ERROR = 0.2
SEEDS = 5
KEY = "rl.consumption.wall_samples_per_s"


def simulated_gains(journal: Journal, seeds: int = SEEDS) -> WhatIf | None:
    """Return what predicts the gain of settings; None for a run that is too short to be simulated."""
    try:
        replay = Replay(journal)
    except UserError:
        return None

    def gain(changes: Mapping[str, str]) -> Gain | None:
        try:
            found = replay.whatif([f"{key}={value}" for key, value in changes.items()], seeds).of(KEY)
        except UserError:
            return None  # it cannot be predicted, or not together with the run's other settings
        error = found.error
        if error is None or abs(error) > MAX_ERROR or not found.before or found.low is None:
            return None
        low, high = found.low / found.before, (found.high or found.low) / found.before
        basis = f"{seeds} seeds, 95 %; the unchanged run is simulated {100 * error:+.0f}% off"
        mean = None if found.difference is None else found.difference / found.before
        return Gain(high, low, "re-simulated", basis, mean)

    return gain
