"""Distributions in flat memory: exact mean and maximum, percentiles within one per cent."""

from __future__ import annotations

from math import ceil, exp, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.telemetry.tails import Summary

_WIDTH = 0.01  # of a bin, relative
_SCALE = 1.0 / _WIDTH
_LEAST = 1e-9  # smaller values are 0


class Sketch:
    """Collects values that are not negative in bins of equal relative width."""

    def __init__(self) -> None:
        self.num = 0
        self.total = 0.0
        self._max = 0.0
        self._bins: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Add one value."""
        self.num += 1
        self.total += value
        if value > self._max:
            self._max = value
        place = int(log(value) * _SCALE + 1e6) if value > _LEAST else -1
        self._bins[place] = self._bins.get(place, 0) + 1

    def summary(self) -> Summary:
        """Return mean, p50, p90, p99 and max; all None when there is no value."""
        if not self.num:
            return dict.fromkeys(("mean", "p50", "p90", "p99", "max"))
        return {
            "mean": self.total / self.num,
            "p50": self._percentile(0.50),
            "p90": self._percentile(0.90),
            "p99": self._percentile(0.99),
            "max": self._max,
        }

    def _percentile(self, share: float) -> float:
        wanted, seen = ceil(share * self.num), 0
        for place in sorted(self._bins):
            seen += self._bins[place]
            if seen >= wanted:
                return 0.0 if place < 0 else min(self._max, exp((place + 0.5 - 1e6) * _WIDTH))
        return self._max
