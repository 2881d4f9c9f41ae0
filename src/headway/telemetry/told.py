"""Findings as a report shows them. Who finds them is above this room: they come in as words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Told:
    """One finding in words."""

    title: str
    stake: float  # the part of the run's time that it explains, 0 to 1
    when: str  # the steps that it holds for, "" where that says nothing
    evidence: tuple[str, ...]  # figures, the most telling one first
    change: str  # what to do
    gain: str  # what that would bring
    caution: str = ""  # what it costs


@dataclass(frozen=True, slots=True)
class Findings:
    """What a report says of a run beyond its numbers.

    Attributes:
        verdict: one sentence: which side holds the other up.
        told: the most costly first.
        typical: metric -> the field's range, in words.
    """

    verdict: str
    told: tuple[Told, ...] = ()
    typical: tuple[tuple[str, str], ...] = ()
