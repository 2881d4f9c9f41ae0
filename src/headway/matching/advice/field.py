"""Typical ranges of the field: four runs of 56 to 256 GPUs, and the summary that was given of them.

Source of all: the field report on RL systems of 2026-06-16 (SemiAnalysis, "RL Systems: Mind the Gap"), by
case. Ranges are of what was observed there, not of what is good.
"""

from __future__ import annotations

from headway.matching.advice.finding import Range

_SUMMARY = "field report 2026-06, all runs"

WAIT = Range(0.30, 0.74, "field report 2026-06: 30 to 70 % typical, up to 74 % (case 2)")
MFU = Range(0.10, 0.15, f"{_SUMMARY}; forward and backward alone")
ALL_SOLVED = Range(None, 0.55, "field report 2026-06, case 2: up to 55 % of the tasks solved 16 of 16")
DROPPED = Range(None, 0.60, "field report 2026-06, case 1: up to 60 % of the dispatched rollouts")
TRUNCATED = Range(0.03, 0.08, "field report 2026-06, case 3: 3 to 8 % at 128K tokens")
USD_PER_MTOK = Range(6.90, 16.23, "field report 2026-06: 6.90 to 16.23 USD a million trained tokens")
TOOL_CALLS = Range(12.0, 51.0, "field report 2026-06: 12 (case 4) to 51 (case 2) a rollout")

BY_METRIC = {
    "rl.trainer.wait_fraction": WAIT,
    "rl.trainer.mfu": MFU,
    "rl.group.all_solved_fraction": ALL_SOLVED,
    "rl.oversampling.thrown_away_fraction": DROPPED,
    "rl.rollout.truncated_fraction": TRUNCATED,
    "rl.cost.usd_per_mtok": USD_PER_MTOK,
    "rl.rollout.tool_calls": TOOL_CALLS,
}
