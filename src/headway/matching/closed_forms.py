"""Exact results of queueing and order statistics: a plan rests on them, the simulator is held against them.

Distributions are given by their value at a standard normal score z, which keeps the far tail exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from scipy import integrate, optimize, special  # pyright: ignore[reportMissingTypeStubs]

_Z_MAX = 12.0  # scores beyond it have no weight in double precision
_special = cast("Any", special)
_integrate = cast("Any", integrate)
_optimize = cast("Any", optimize)


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


class ZeroAdvantage(NamedTuple):
    """Shares of groups without signal."""

    all_solved: float
    all_failed: float
    total: float


def zero_advantage(alpha: float, beta: float, group_size: int) -> ZeroAdvantage:
    """Return the shares for solve rates that are Beta(alpha, beta): B(a + N, b) / B(a, b) and its mirror."""
    none = float(_special.betaln(alpha, beta))
    solved = math.exp(float(_special.betaln(alpha + group_size, beta)) - none)
    failed = math.exp(float(_special.betaln(alpha, beta + group_size)) - none)
    return ZeroAdvantage(solved, failed, solved + failed)


def zero_advantage_at(rate: float, group_size: int) -> float:
    """Return the share for tasks that all have this solve rate: p^N + (1 - p)^N."""
    return rate**group_size + (1.0 - rate) ** group_size


def moved_rates(alpha: float, beta: float, shift: float, num: int = 400) -> list[float]:
    """Return quantiles of Beta(alpha, beta) whose log-odds have moved by `shift`, evenly spread."""
    rates: list[float] = []
    for index in range(num):
        rate = float(_special.betaincinv(alpha, beta, (index + 0.5) / num))
        rate = min(1.0 - 1e-12, max(1e-12, rate))
        odds = rate / (1.0 - rate) * math.exp(shift)
        rates.append(odds / (1.0 + odds))
    return rates


def beta_of_shares(all_solved: float, all_failed: float, group_size: int) -> tuple[float, float]:
    """Return the alpha and beta with these shares of all-solved and all-failed groups."""

    def off(logs: Any) -> list[float]:
        shares = zero_advantage(math.exp(logs[0]), math.exp(logs[1]), group_size)
        return [math.log(shares.all_solved / all_solved), math.log(shares.all_failed / all_failed)]

    solved = _optimize.root(off, [-1.0, -1.0], tol=1e-13)
    return math.exp(solved.x[0]), math.exp(solved.x[1])


class TwoRates(NamedTuple):
    """A producer and a consumer with a long queue between them."""

    wait: float  # share of time that the consumer waits
    rate: float  # of both together


def two_rates(production: float, consumption: float) -> TwoRates:
    """Return the fluid limit: wait = max(0, 1 - production / consumption), throughput the smaller."""
    return TwoRates(max(0.0, 1.0 - production / consumption), min(production, consumption))


class FiniteQueue(NamedTuple):
    """M/M/1/K: the consumer's idle share, the producer's blocked share, throughput, mean number and time."""

    idle: float
    blocked: float
    rate: float
    number: float
    time: float


def mm1k(arrivals: float, services: float, room: int) -> FiniteQueue:
    """Return M/M/1 with room for `room` customers, the one in service included."""
    rho = arrivals / services
    weights = [rho**count for count in range(room + 1)]
    total = sum(weights)
    idle, blocked = weights[0] / total, weights[-1] / total
    number = sum(count * weight for count, weight in enumerate(weights)) / total
    rate = arrivals * (1.0 - blocked)
    return FiniteQueue(idle, blocked, rate, number, number / rate)


class ClosedQueue(NamedTuple):
    """One server and a delay: throughput, time at the server, number there, utilisation."""

    rate: float
    time: float
    number: float
    used: float


def mean_value_analysis(customers: int, think_s: float, service_s: float) -> ClosedQueue:
    """Return a closed network of one exponential server and a delay of `think_s`, exactly."""
    number, rate, time = 0.0, 0.0, service_s
    for count in range(1, customers + 1):
        time = service_s * (1.0 + number)
        rate = count / (think_s + time)
        number = rate * time
    return ClosedQueue(rate, time, number, rate * service_s)


class Waiting(NamedTuple):
    """M/G/c: the share that waits (Erlang C), the mean wait in line, and the same for general service."""

    waits: float
    mean_s: float
    general_s: float


def erlang_c(servers: int, arrivals: float, service_s: float, cs2: float = 1.0) -> Waiting:
    """Return M/M/c, and the Allen-Cunneen mean wait for service times of squared variation `cs2`."""
    load = arrivals * service_s
    term = full = 1.0
    for count in range(1, servers):
        term *= load / count
        full += term
    term *= load / servers / (1.0 - load / servers)
    waits = term / (full + term)
    mean_s = waits * service_s / (servers - load)
    return Waiting(waits, mean_s, mean_s * (1.0 + cs2) / 2.0)


def more_than(cap: int, arrivals: float, duration_s: float) -> float:
    """Return M/G/inf: the probability that more than `cap` are there at once; Poisson with mean load."""
    return float(_special.pdtrc(cap, arrivals * duration_s))


class Crossed(NamedTuple):
    """Updates that fall into a rollout of random phase: their mean number, and the share without any."""

    mean: float
    none: float


def updates_during(distribution: Lognormal, period_s: float) -> Crossed:
    """Return E[D] / T, and E[(1 - D / T)+], of durations D and updates every T seconds."""
    return Crossed(distribution.mean / period_s, 1.0 - crosses_at_least(distribution, period_s, 1))


def crosses_at_least(distribution: Lognormal, period_s: float, num: int) -> float:
    """Return the share of rollouts that at least `num` updates fall into: E[min(1, (D / T - num + 1)+)]."""

    def above(level: float) -> float:
        """E[(D - level)+] / T."""
        if level <= 0:
            return distribution.mean / period_s
        z = (math.log(level / distribution.mean) + 0.5 * distribution.sigma**2) / distribution.sigma
        beyond = distribution.mean * float(_special.ndtr(distribution.sigma - z))
        return (beyond - level * float(_special.ndtr(-z))) / period_s

    return above((num - 1) * period_s) - above(num * period_s)
