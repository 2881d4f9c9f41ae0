"""Distributions with their tails, because a mean hides the stragglers."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Summary = dict[str, "float | None"]


class Tails:
    """Collects values; keeps every one, eight bytes each."""

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._values = array("d", values)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Add one value."""
        self._values.append(value)

    def summary(self) -> Summary:
        """Return mean, p50, p90, p99 and max; all None when there is no value.

        Percentiles interpolate linearly between order statistics (numpy's default).
        """
        if not self._values:
            return dict.fromkeys(("mean", "p50", "p90", "p99", "max"))
        ordered = sorted(self._values)
        return {
            "mean": math.fsum(ordered) / len(ordered),
            "p50": _percentile(ordered, 0.50),
            "p90": _percentile(ordered, 0.90),
            "p99": _percentile(ordered, 0.99),
            "max": ordered[-1],
        }


class Mean:
    """A running mean."""

    def __init__(self) -> None:
        self._num = 0
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Add one value."""
        self._num += 1
        self._sum += value

    @property
    def value(self) -> float | None:
        """The mean, None before the first value."""
        return ratio(self._sum, self._num)


def course(values: Sequence[float]) -> Summary:
    """Return how a series went: first, last, mean and max; first and last are means over its ends.

    An end is a tenth of the values, rounded up. All None when there is no value.
    """
    if not values:
        return dict.fromkeys(("first", "last", "mean", "max"))
    tenth = -(-len(values) // 10)
    return {
        "first": math.fsum(values[:tenth]) / tenth,
        "last": math.fsum(values[-tenth:]) / tenth,
        "mean": math.fsum(values) / len(values),
        "max": max(values),
    }


def _percentile(ordered: list[float], share: float) -> float:
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def histogram(counts: Mapping[int, int]) -> dict[str, object]:
    """Return {"counts": {"0": n, ...}, "mean": m, "max": x} of (value -> how often)."""
    total = sum(counts.values())
    mean = sum(value * count for value, count in counts.items()) / total if total else None
    return {
        "counts": {str(value): counts[value] for value in sorted(counts)},
        "mean": mean,
        "max": max(counts, default=None),
    }


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole, None when the whole is 0."""
    return part / whole if whole else None
