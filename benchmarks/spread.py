"""Means over seeds with their 95 % intervals, Student's t."""

from __future__ import annotations

import math
from statistics import fmean, stdev, variance
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

LEVEL = 0.95


class Interval(NamedTuple):
    """A mean and half the width of its interval, which one value alone does not have."""

    mean: float
    half: float | None

    @property
    def low(self) -> float:
        """The lower end; minus infinity where there is no interval."""
        return -math.inf if self.half is None else self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end; infinity where there is no interval."""
        return math.inf if self.half is None else self.mean + self.half

    def text(self, digits: int = 3, *, sign: bool = False) -> str:
        """Return `mean ± half`."""
        mean = f"{self.mean:{'+' if sign else ''}.{digits}f}"
        return mean if self.half is None else f"{mean} ± {self.half:.{digits}f}"


def interval(values: Sequence[float]) -> Interval:
    """Return the mean of values and the t-interval of it; raises ValueError when there are none."""
    if not values:
        raise ValueError("no values")
    if len(values) < 2:
        return Interval(values[0], None)
    half = t_quantile(0.5 + LEVEL / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(fmean(values), half)


def difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the mean of the first values less that of the second, with Welch's interval.

    Raises StatisticsError when a side has less than two values.
    """
    parts = [variance(values) / len(values) for values in (first, second)]
    between = fmean(first) - fmean(second)
    if not sum(parts):
        return Interval(between, 0.0)
    others = len(first) - 1, len(second) - 1
    freedom = sum(parts) ** 2 / sum(part**2 / other for part, other in zip(parts, others, strict=True))
    # A whole number of degrees of freedom, rounded down, makes the interval no narrower.
    half = t_quantile(0.5 + LEVEL / 2, math.floor(freedom)) * math.sqrt(sum(parts))
    return Interval(between, half)


def t_quantile(probability: float, freedom: int) -> float:
    """Invert the distribution of Student's t for a probability of at least 0.5, to about 1e-10.

    >>> round(t_quantile(0.975, 4), 4), round(t_quantile(0.975, 2), 4), round(t_quantile(0.975, 1), 3)
    (2.7764, 4.3027, 12.706)
    """
    # With x = sqrt(f) tan(a) the density is C cos(a)^(f - 1): smooth, and over a bounded range.
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        if 0.5 + scale * _integral_of_cos(middle, freedom - 1) < probability:
            low = middle
        else:
            high = middle
    return math.sqrt(freedom) * math.tan(low)


def _integral_of_cos(end: float, power: int, parts: int = 400) -> float:
    """Integrate cos(a)^power from 0 to `end` by Simpson's rule."""
    width = end / parts
    inner = sum((4 if i % 2 else 2) * math.cos(i * width) ** power for i in range(1, parts))
    return width / 3 * (1 + inner + math.cos(end) ** power)
