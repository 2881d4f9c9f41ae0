"""When generator and trainer disagree about the log-probs of tokens of the newest version, and what helps."""

from __future__ import annotations

LARGE = 0.01
"""Nats, mean over a step's fresh tokens. Rounding gives 1e-6; from here on importance ratios are off by a
per cent, as much as a clip range of a few per cent can bear."""

REMEDY = (
    'generator.kv_on_update = "recompute" computes running contexts anew with each version, '
    "trainer.replay_routing = true sends tokens to the experts that generation chose, and "
    'generator.numerics = "exact" leaves no difference at all (docs/numerics.md)'
)
