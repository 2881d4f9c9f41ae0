"""Exact results of queueing: a plan rests on them, and the simulator is held against them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from scipy import optimize, special  # pyright: ignore[reportMissingTypeStubs]

if TYPE_CHECKING:
    from headway.matching.order_statistics import Lognormal

_special = cast("Any", special)
_optimize = cast("Any", optimize)


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
        log_odds = min(700.0, max(-700.0, math.log(rate / (1.0 - rate)) + shift))  # where exp ends
        rates.append(1.0 / (1.0 + math.exp(-log_odds)))
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
