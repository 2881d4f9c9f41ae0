"""Order statistics: what a group waits for, and what keeping the first to finish costs.

Distributions are given by their value at a standard normal score z, which keeps the far tail exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from scipy import integrate, special  # pyright: ignore[reportMissingTypeStubs]

_Z_MAX = 12.0  # scores beyond it have no weight in double precision
_special = cast("Any", special)
_integrate = cast("Any", integrate)


class Distribution(Protocol):
    """A positive quantity."""

    @property
    def mean(self) -> float:
        """Its mean."""
        ...

    def at(self, z: float) -> float:
        """Return its value at a standard normal score: the same quantile."""
        ...


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal with this mean; sigma is of the logarithm."""

    mean: float
    sigma: float

    def at(self, z: float) -> float:
        """Return mean * exp(sigma z - sigma^2 / 2)."""
        return self.mean * math.exp(self.sigma * z - 0.5 * self.sigma * self.sigma)


@dataclass(frozen=True, slots=True)
class Weibull:
    """Weibull with this mean and shape k; k = 1 is the exponential distribution."""

    mean: float
    shape: float

    def at(self, z: float) -> float:
        """Return scale * (-log P(Z > z))^(1/k)."""
        scale = self.mean / math.gamma(1.0 + 1.0 / self.shape)
        return scale * (-float(_special.log_ndtr(-z))) ** (1.0 / self.shape)


def expected_order_statistic(distribution: Distribution, rank: int, num: int) -> float:
    """Return the mean of the `rank`-th smallest of `num` independent draws.

    E[X_(k:n)] = integral of x(z) n! / ((k-1)! (n-k)!) F^(k-1) (1-F)^(n-k) dF.
    """
    constant = -float(_special.betaln(rank, num - rank + 1))

    def density(z: float) -> float:
        below, above = float(_special.log_ndtr(z)), float(_special.log_ndtr(-z))
        log = constant + (rank - 1) * below + (num - rank) * above - 0.5 * z * z
        return distribution.at(z) * math.exp(log) / math.sqrt(2 * math.pi)

    return _integral(density, float(_special.ndtri(rank / (num + 1.0))))


def expected_max(distribution: Distribution, num: int) -> float:
    """Return the mean of the largest of `num` draws: what a group or a batch waits for."""
    return expected_order_statistic(distribution, num, num)


def _integral(function: Any, centre: float) -> float:
    """Return the integral over all scores; `centre` is where most of the weight is."""
    total = 0.0
    for low, high in ((-_Z_MAX, centre - 1.0), (centre - 1.0, centre + 1.0), (centre + 1.0, _Z_MAX)):
        total += float(_integrate.quad(function, low, high, limit=400, epsabs=1e-13, epsrel=1e-11)[0])
    return total


class Kept(NamedTuple):
    """What keeping the first finishers costs."""

    discarded: float  # of the rollouts
    wasted: float  # of the work: time spent on those that are stopped
    mean: float  # of those that are kept


def keep_first(distribution: Distribution, kept: int, num: int) -> Kept:
    """Return what it costs to start `num` at once and stop when `kept` have finished."""
    last = expected_order_statistic(distribution, kept, num)
    total = sum(expected_order_statistic(distribution, rank, num) for rank in range(1, kept + 1))
    stopped = (num - kept) * last
    return Kept(1.0 - kept / num, stopped / (total + stopped), total / kept)


class Cutoff(NamedTuple):
    """What keeping the fastest share costs, in the limit of many."""

    at: float  # the longest that is kept
    mean: float  # of those that are kept
    wasted: float  # of the work


def keep_fastest_share(distribution: Lognormal, share: float) -> Cutoff:
    """Return what stopping all but the fastest `share` costs."""
    z = float(_special.ndtri(share))
    at, mean = distribution.at(z), truncated_mean(distribution, z)
    stopped = (1.0 - share) * at
    return Cutoff(at, mean, stopped / (stopped + share * mean))


def truncated_mean(distribution: Lognormal, z: float) -> float:
    """Return the mean below the value at score z: mean * Phi(z - sigma) / Phi(z)."""
    below = float(_special.ndtr(z - distribution.sigma)) / float(_special.ndtr(z))
    return distribution.mean * below


def length_biased_mean(distribution: Lognormal) -> float:
    """Return the mean of what an observer finds in progress: E[X^2] / E[X] = mean * exp(sigma^2)."""
    return distribution.mean * math.exp(distribution.sigma**2)
