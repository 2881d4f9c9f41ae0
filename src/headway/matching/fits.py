"""The statistics of calibration, by scipy: censored lognormals, lines through the measured, solve rates.

A value that was cut off (a truncated answer, a cancelled rollout) is right-censored: it says that the whole
would have been at least so much. Counts are interval-censored: 3 tokens stand for anything from 2.5 to 3.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy import optimize, stats  # pyright: ignore[reportMissingTypeStubs]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

stats_: Any = cast("Any", stats)  # scipy has no types
optimize_: Any = cast("Any", optimize)

MAX_VALUES = 20_000  # that a fit looks at; of more, evenly spaced ones
GOOD_KS = 0.1  # up to which the lognormal's own mean is taken, above it the mean of the values
MAX_CENSORED = 0.9  # above which a tail cannot be told
_Z = 1.959963984540054  # of a 95 % interval


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A lognormal fitted to values of which some were cut off."""

    mean: float
    sigma: float  # of the logarithm
    low: float  # 95 % interval of the mean
    high: float
    num: int  # cut ones included
    censored: float  # share that was cut
    ks: float  # largest distance to the Kaplan-Meier estimate
    sample_mean: float  # under the Kaplan-Meier curve, restricted to what was seen

    @property
    def is_good(self) -> bool:
        """Whether the shape fits."""
        return self.ks <= GOOD_KS


def lognormal(seen: Sequence[float], cut: Sequence[float] = (), *, counts: bool = False) -> LogNormal | None:
    """Fit a lognormal by maximum likelihood; None without a value that was seen whole.

    Args:
        seen: values above 0 that were seen whole.
        cut: values that were cut off.
        counts: whether they are whole numbers of a rounded quantity.

    Where the shape does not fit (`GOOD_KS`) and little was cut, the mean is the values' own.
    """
    whole, partial = _positive(seen), _positive(cut)
    num = len(whole) + len(partial)
    if not len(whole):
        return None
    censored = len(partial) / num
    logs = np.log(whole)
    if float(np.ptp(logs)) < 1e-9 and (not len(partial) or partial.max() <= whole.max() * (1 + 1e-9)):
        value = float(whole[0])
        return LogNormal(value, 0.0, value, value, num, censored, 0.0, value)
    share = max(1, -(-num // MAX_VALUES))
    whole, partial = np.sort(whole)[::share], np.sort(partial)[::share]
    if counts:
        edges = np.stack([np.maximum(whole - 0.5, 1e-9), whole + 0.5], axis=1)
        data = stats_.CensoredData(interval=edges, right=partial)
    else:
        data = stats_.CensoredData(uncensored=whole, right=partial)
    with np.errstate(divide="ignore"):  # a value far in the tail, on the search's way
        sigma, _, scale = stats_.lognorm.fit(data, floc=0)
    sigma, mu = max(float(sigma), 1e-6), math.log(float(scale))
    ks, restricted = _against_kaplan_meier(whole, partial, mu, sigma, 0.5 if counts else 0.0)
    mean = math.exp(mu + sigma * sigma / 2)
    if ks > GOOD_KS and censored < 0.02:
        mean = restricted
    # The mean's variance in logs: that of mu and that of sigma^2 / 2, by the values that were seen whole.
    spread = sigma * math.sqrt((1 + sigma * sigma / 2) / (len(seen) or 1))
    return LogNormal(
        mean,
        sigma,
        mean * math.exp(-_Z * spread),
        mean * math.exp(_Z * spread),
        num,
        censored,
        ks,
        restricted,
    )


def _positive(values: Sequence[float]) -> Array:
    return np.maximum(np.asarray(values, dtype=np.float64), 1e-6)


def _against_kaplan_meier(
    whole: Array, partial: Array, mu: float, sigma: float, half: float
) -> tuple[float, float]:
    """Return the largest distance between the fit and the Kaplan-Meier curve, and that curve's mean."""
    curve = stats_.ecdf(stats_.CensoredData(uncensored=whole, right=partial)).cdf
    at = np.asarray(curve.quantiles, dtype=np.float64)
    estimate = np.asarray(curve.probabilities, dtype=np.float64)
    model = np.asarray(stats_.norm.cdf((np.log(at + half) - mu) / sigma), dtype=np.float64)
    distance = np.abs(model - estimate)
    if not half:
        distance = np.maximum(distance, np.abs(model - np.concatenate([[0.0], estimate[:-1]])))
    jumps = np.diff(np.concatenate([[0.0], estimate]))
    mean = float(np.sum(jumps * at) + (1 - estimate[-1]) * at[-1])
    return float(distance.max()), mean


@dataclass(frozen=True, slots=True)
class Line:
    """A non-negative least-squares fit of a sum of terms."""

    coefficients: tuple[float, ...]
    r2: float  # of the weighted values
    condition: float  # of the columns, each scaled to length 1
    num: int
    error: float  # median relative error


def line(columns: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]) -> Line:
    """Fit values = sum of coefficient * column with coefficients of at least 0 (Lawson and Hanson's NNLS)."""
    matrix = np.asarray(columns, dtype=np.float64).T
    wanted, scale = np.asarray(values, dtype=np.float64), np.sqrt(np.asarray(weights, dtype=np.float64))
    norms = np.linalg.norm(matrix * scale[:, None], axis=0)
    norms[norms == 0] = 1.0
    scaled = matrix * scale[:, None] / norms
    found, _ = optimize_.nnls(scaled, wanted * scale)
    coefficients = np.asarray(found, dtype=np.float64) / norms
    told = matrix @ coefficients
    mean = float(np.average(wanted, weights=scale * scale))
    around = float(np.sum(scale**2 * (wanted - mean) ** 2))
    left = float(np.sum(scale**2 * (wanted - told) ** 2))
    r2 = 1.0 - left / around if around > 0 else 1.0
    error = float(np.median(np.abs(told - wanted) / np.maximum(wanted, 1e-12)))
    return Line(
        tuple(float(value) for value in coefficients), r2, float(np.linalg.cond(scaled)), len(wanted), error
    )


def varies(values: Sequence[float], share: float = 0.05) -> bool:
    """Say whether values differ enough to tell a slope: by their standard deviation over their mean."""
    found = np.asarray(values, dtype=np.float64)
    return len(found) > 2 and float(np.std(found)) > share * abs(float(np.mean(found)))


@dataclass(frozen=True, slots=True)
class SolveRates:
    """Tasks' solve rates are Beta(alpha, beta); each step adds `learning` to their log-odds."""

    alpha: float
    beta: float
    learning: float
    learning_low: float  # 95 % interval
    learning_high: float
    num: int  # groups
    ks: float  # largest distance between the shares of groups with so many solved


MAX_CONCENTRATION = 1e3  # alpha + beta; above it all tasks are alike


def solve_rates(solved: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> SolveRates | None:
    """Fit a beta-binomial to groups' counts by maximum likelihood, with a slope of the log-odds over steps.

    None without groups of two rollouts or more.
    """
    rows = [(k, n, s) for k, n, s in zip(solved, sizes, steps, strict=True) if n > 1]
    if len(rows) < 5:
        return None
    hits, tries, when = (np.asarray(column, dtype=np.float64) for column in zip(*rows, strict=True))
    span = max(1.0, float(np.ptp(when)))

    def shape(values: Any) -> tuple[Array, Array]:
        centre = 1 / (1 + np.exp(-np.clip(values[0] + values[2] * when / span, -12, 12)))
        total = np.exp(np.clip(values[1], -3.0, math.log(MAX_CONCENTRATION)))
        return centre * total, (1 - centre) * total

    def loss(values: Any) -> float:
        alpha, beta = shape(values)
        told = float(np.sum(stats_.betabinom.logpmf(hits, tries, alpha, beta)))
        return -told + 1e-3 * sum(
            float(value) ** 2 for value in values
        )  # a faint pull, where all groups are alike

    mean = min(0.99, max(0.01, float(hits.sum() / tries.sum())))
    start = np.asarray([math.log(mean / (1 - mean)), 1.0, 0.0])

    def without_slope(values: Any) -> float:
        return loss([values[0], values[1], 0.0])

    level: Any = optimize_.minimize(without_slope, start[:2], method="BFGS")
    found: Any = optimize_.minimize(loss, [*level.x, 0.0], method="BFGS")
    centre, total, slope = float(found.x[0]), float(found.x[1]), float(found.x[2])
    # The slope's error by the likelihood that it gains: (slope / error)^2 = 2 * gain.
    error = abs(slope) / math.sqrt(max(1e-9, 2 * (float(level.fun) - float(found.fun))))
    if abs(slope) <= _Z * error:
        centre, total, slope, error = float(level.x[0]), float(level.x[1]), 0.0, 0.0
    concentration = math.exp(min(max(total, -3.0), math.log(MAX_CONCENTRATION)))
    first = 1 / (1 + math.exp(-centre))
    alpha, beta = shape(np.asarray([centre, total, slope]))
    ks = 0.0
    most = int(tries.max())
    for k in range(most):
        told: Array = np.asarray(stats_.betabinom.cdf(np.minimum(k, tries), tries, alpha, beta))
        ks = max(ks, abs(float(np.mean(told)) - float(np.mean(hits <= k))))
    return SolveRates(
        first * concentration, (1 - first) * concentration, slope / span, (slope - _Z * error) / span,
        (slope + _Z * error) / span, len(rows), ks,
    )  # fmt: skip
