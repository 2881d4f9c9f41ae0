"""Oversampling that wastes more than it gains.

Threshold: of the sampled tokens at least WASTE was thrown away, and either the trainer hardly waits (below
IDLE: there is nothing to gain), or the engines are full (slots above FULL, or a line before them): then
what is thrown away is what production lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.matching.advice.field import DROPPED
from headway.matching.advice.finding import Change, Figure, Finding, at_most
from headway.telemetry.oversampling import KINDS

if TYPE_CHECKING:
    from headway.matching.advice.reading import Reading

WASTE = 0.15
IDLE = 0.10
FULL = 0.85
LINE = 0.10  # of a rollout's time before a slot


def findings(reading: Reading) -> Iterator[Finding]:
    """Yield the finding, if it holds."""
    extra = (
        int(reading.get("oversampling.rollouts_extra", 0)),
        int(reading.get("oversampling.groups_extra", 0)),
    )
    if not any(extra) or not reading.records:
        return
    summary = reading.summary
    waste = sum(
        summary[f"rl.oversampling.{kind}.token_fraction"] or 0.0 for kind in KINDS if kind != "errored"
    )
    dropped = sum(summary[f"rl.oversampling.{kind}.rollout_fraction"] or 0.0 for kind in KINDS)
    line = reading.waits.engine_s / reading.end_to_end_s if reading.end_to_end_s else 0.0
    used = reading.slots_used
    full = line >= LINE or (used is not None and used >= FULL)
    if waste < WASTE or (reading.starved >= IDLE and not full):
        return
    evidence = [
        Figure("of the sampled tokens, thrown away", waste, "share", "rl.oversampling.{kind}.token_fraction"),
        Figure("of the rollouts", dropped, "share", "rl.oversampling.{kind}.rollout_fraction", DROPPED),
        Figure("the trainer waits for rollouts", reading.starved, "share"),
    ]
    if used is not None:
        evidence.append(Figure("of the generator's slots in use", used, "share"))
    if (bias := summary["rl.oversampling.length_ratio"]) is not None:
        evidence.append(
            Figure("tokens of a kept rollout against all", bias, "ratio", "rl.oversampling.length_ratio")
        )
    names = ("oversampling.rollouts_extra", "oversampling.groups_extra")
    settings = {name: str(count // 2) for name, count in zip(names, extra, strict=True) if count}
    yield Finding(
        code="oversampling",
        title="Oversampling wastes more than it gains",
        stake=waste * (max(reading.starved, 0.5) if full else 0.5),
        evidence=tuple(evidence),
        change=Change(
            "half as many extra; or keep the rest for later batches (oversampling.when_met = park)", settings
        ),
        gain=at_most(
            1.0 / (1.0 - waste / 2), reading.starved, "half of the thrown-away tokens spent on kept ones"
        ),
    )
