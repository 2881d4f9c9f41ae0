"""The few statistics that findings and comparisons rest on, by scipy, typed; scipy is loaded when asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line by least squares.

    Attributes:
        slope, intercept: of it.
        slope_error, intercept_error: standard errors, of the residuals' own spread.
        num: points.
        mean_x: of the points.
    """

    slope: float
    intercept: float
    slope_error: float
    intercept_error: float
    num: int
    mean_x: float

    def at(self, x: float) -> float:
        """Return the line's height."""
        return self.intercept + self.slope * x

    def height_interval(self, x: float) -> tuple[float, float]:
        """Return the 95 % interval of the line's height."""
        spread = max(0.0, self.intercept_error**2 - (self.slope_error * self.mean_x) ** 2)  # of the mean
        error = math.sqrt(spread + (self.slope_error * (x - self.mean_x)) ** 2)
        half = t_quantile(0.975, self.num - 2) * error
        return self.at(x) - half, self.at(x) + half

    def slope_interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the slope."""
        half = t_quantile(0.975, self.num - 2) * self.slope_error
        return self.slope - half, self.slope + half


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> Line | None:
    """Fit a straight line; None with fewer than three points, or where all stand at one x."""
    if len(xs) < 3 or min(xs) == max(xs):
        return None
    fit = _stats().linregress(list(xs), list(ys))
    numbers = (float(fit.slope), float(fit.intercept), float(fit.stderr), float(fit.intercept_stderr))
    return Line(*numbers, len(xs), sum(xs) / len(xs))


def t_quantile(share: float, degrees: int) -> float:
    """Return a quantile of Student's t."""
    return float(_stats().t.ppf(share, degrees))


def p_greater(mine: Sequence[float], others: Sequence[float]) -> float:
    """Return how likely chance makes the first values this much greater (Mann-Whitney, one-sided)."""
    return float(_stats().mannwhitneyu(mine, others, alternative="greater").pvalue)


@cache
def _stats() -> Any:
    return import_module("scipy.stats")
