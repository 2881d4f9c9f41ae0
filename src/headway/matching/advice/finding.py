"""What a finding is: what costs time or tokens, how that is known, what to change, what it would gain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

How = Literal["closed form", "re-simulated", "not estimated"]
Unit = Literal["share", "seconds", "ratio", "count", "tokens", "steps", "per_s", "usd"]


@dataclass(frozen=True, slots=True)
class Range:
    """What runs of the field show of a figure."""

    low: float | None  # None where only the highest is known
    high: float
    source: str  # where it is from, in words


@dataclass(frozen=True, slots=True)
class Figure:
    """A number from the journal, with what the field shows of it where that is known."""

    label: str
    value: float
    unit: Unit
    metric: str = ""  # its key in `headway report --json`, "" where it is of the advice alone
    typical: Range | None = None
    note: str = ""  # what to compare it with, or when

    def to_plain(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        typical = self.typical
        shown = None if typical is None else [typical.low, typical.high]
        return {
            "label": self.label,
            "value": self.value,
            "unit": self.unit,
            "metric": self.metric or None,
            "typical": shown,
            "typical_source": None if typical is None else typical.source,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """What to do: settings, or something that no setting does."""

    text: str
    settings: Mapping[str, str] = field(default_factory=dict[str, str])  # key -> value as TOML

    def to_plain(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"text": self.text, "settings": dict(self.settings)}


@dataclass(frozen=True, slots=True)
class Gain:
    """Change of `rl.consumption.wall_samples_per_s`, relative: 0.25 is a quarter more.

    `low` is None for a closed form that says at most how much.
    """

    high: float | None = None  # None where nothing is estimated
    low: float | None = None
    how: How = "not estimated"
    basis: str = ""  # the formula, or what was simulated, in words
    mean: float | None = None  # of simulations, whose interval low and high are

    def to_plain(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        plain: dict[str, Any] = {"low": self.low, "high": self.high, "mean": self.mean}
        return plain | {"how": self.how, "basis": self.basis}


UNKNOWN_GAIN = Gain()


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that costs the run time or tokens.

    Attributes:
        code: stable short name.
        title: one line.
        stake: the part of the run's time, 0 to 1, that it explains; findings are ranked by it.
        evidence: the figures that it rests on, the most telling one first.
        when: the steps that it holds for, in words.
        change: what to do.
        gain: what that would bring.
        caution: what the change costs, one sentence.
    """

    code: str
    title: str
    stake: float
    evidence: tuple[Figure, ...]
    change: Change
    gain: Gain = UNKNOWN_GAIN
    when: str = ""
    caution: str = ""

    def to_plain(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "code": self.code,
            "title": self.title,
            "stake": self.stake,
            "when": self.when,
            "evidence": [figure.to_plain() for figure in self.evidence],
            "change": self.change.to_plain(),
            "gain": self.gain.to_plain(),
            "caution": self.caution,
        }


class WhatIf(Protocol):
    """Re-simulates the run with settings changed."""

    def __call__(self, changes: Mapping[str, str]) -> Gain | None:
        """Return what these settings would gain; None where the simulation cannot say."""
        ...


def factor_without(share: float) -> float:
    """Return 1 / (1 - share), how many times as much is done without what takes this share; at most 100."""
    return 1.0 / (1.0 - min(share, 0.99))


def at_most(factor: float, starved: float, basis: str) -> Gain:
    """Return the gain of rollouts that are made `factor` times as fast.

    The trainer cannot take more than it would without waiting: 1 / (1 - starved) times as much.

    Args:
        factor: of production, 1 or more.
        starved: share of the time in which the trainer waits for rollouts.
        basis: where the factor is from.
    """
    cap = 1.0 / max(0.01, 1.0 - starved)
    limited = ", as much as the trainer takes without waiting" if factor > cap else ""
    return Gain(min(factor, cap) - 1.0, None, "closed form", basis + limited)
