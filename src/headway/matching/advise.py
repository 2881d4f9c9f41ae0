"""`headway advise`: what costs a run time or tokens, ranked, from its journal alone.

Each family of findings has a file in `advice/` with its thresholds and their reasons. A finding's stake is
the part of the run's time that it explains; those below MIN_STAKE are not told, for the rates of a calm
run vary by as much from step to step.

Nothing is told below MIN_STEPS, for the first steps fill the run up, and the trainer waits meanwhile. Of 12
simulated calm runs at bound 2, generation was said to be short in all after 5 steps, in 10 after 6, in 4
after 8 and in none after 10.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from headway.matching.advice import (
    drift,
    engines,
    oversampling,
    serial,
    staleness,
    stations,
    stragglers,
    tasks,
    trainer,
)
from headway.matching.advice.field import BY_METRIC
from headway.matching.advice.finding import Figure, Finding, Unit, WhatIf
from headway.matching.advice.reading import Reading

if TYPE_CHECKING:
    from headway.telemetry.journal import Journal

MIN_STAKE = 0.03
MAX_SIMULATED = 6  # of the first findings, whose gains are worth some seconds each
MIN_STEPS = 10
FAMILIES: tuple[Callable[[Reading], Iterator[Finding]], ...] = (
    serial.findings,
    stragglers.findings,
    staleness.findings,
    stations.findings,
    trainer.findings,
    tasks.findings,
    oversampling.findings,
    engines.findings,
    drift.findings,
)
Bottleneck = Literal["generator", "trainer", "both in turn", "none", "unknown"]


@dataclass(frozen=True, slots=True)
class Advice:
    """What a run is told.

    Attributes:
        bottleneck: the side that holds the other up; `none` where they are matched.
        figures: of the run, beside the field's.
        findings: the most costly first.
    """

    bottleneck: Bottleneck
    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...]

    def to_plain(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "bottleneck": self.bottleneck,
            "figures": [figure.to_plain() for figure in self.figures],
            "findings": [finding.to_plain() for finding in self.findings],
        }


def advise(journal: Journal, whatif: WhatIf | None = None) -> list[Finding]:
    """Return the findings about a run, the most costly first."""
    return list(advice_of(Reading.of(journal), whatif).findings)


def advice_of(reading: Reading, whatif: WhatIf | None = None) -> Advice:
    """Return what a run is told.

    Args:
        reading: the run, read to its end.
        whatif: re-simulates it with the settings that a finding proposes; its answer takes the place of the
            closed form.
    """
    found: list[Finding] = []
    if len(reading.records) >= MIN_STEPS:
        found = [finding for family in FAMILIES for finding in family(reading)]
    ranked = sorted((f for f in found if f.stake >= MIN_STAKE), key=lambda f: (-f.stake, f.code))
    if whatif is not None:
        ranked = [_simulated(f, whatif) if n < MAX_SIMULATED else f for n, f in enumerate(ranked)]
    return Advice(_bottleneck(reading, ranked), figures_of(reading), tuple(ranked))


def _simulated(finding: Finding, whatif: WhatIf) -> Finding:
    settings = finding.change.settings
    gain = whatif(settings) if settings else None
    return finding if gain is None else replace(finding, gain=gain)


def _bottleneck(reading: Reading, found: list[Finding]) -> Bottleneck:
    codes = {finding.code for finding in found}
    if len(reading.records) < MIN_STEPS:
        return "unknown"
    if codes & {"serial", "synchronous"}:
        return "both in turn"
    if reading.starved >= stations.STARVED:
        return "generator"
    return "trainer" if "training_bound" in codes else "none"


_SHOWN: tuple[tuple[str, str, Unit, str], ...] = (
    ("trainer waits", "rl.trainer.wait_fraction", "share", ""),
    ("MFU of the trainer", "rl.trainer.mfu", "share", ""),
    ("groups all solved", "rl.group.all_solved_fraction", "share", ""),
    ("rollouts cut off by a length limit", "rl.rollout.truncated_fraction", "share", ""),
    ("tool calls of a rollout", "rl.rollout.tool_calls", "count", "mean"),
    ("a million trained tokens", "rl.cost.usd_per_mtok", "usd", ""),
)


def figures_of(reading: Reading) -> tuple[Figure, ...]:
    """Return the run's figures that the field has a range for, those that the run has."""
    summary = reading.summary
    shown: list[Figure] = []
    for label, key, unit, part in _SHOWN:
        value = summary[key][part] if part else summary[key]
        if value is not None and (value or key == "rl.trainer.wait_fraction"):
            shown.append(Figure(label, float(value), unit, key, BY_METRIC[key]))
    return tuple(shown)
