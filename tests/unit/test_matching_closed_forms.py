"""Every row of the exact queueing cases, to 1e-6."""

import csv
import math
from ast import literal_eval
from pathlib import Path

import pytest

from headway.matching import closed_forms, order_statistics
from headway.matching.order_statistics import Lognormal, Weibull

CASES = Path(__file__).parent / "matching" / "queueing-cases.csv"


def value(text):
    try:
        return literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def rows():
    with CASES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield tuple(value(row[name]) for name in ("case", "parameter", "parameter2", "value"))


def lognormal(sigma):
    return Lognormal(1.0, sigma)


def t3c(fitted, _):
    alpha, beta = closed_forms.beta_of_shares(0.55, 0.05, 16)
    assert (alpha, beta) == pytest.approx(fitted, abs=1e-6)
    return alpha / (alpha + beta), tuple(closed_forms.zero_advantage(alpha, beta, 16))


def erlang(parameters, _):
    servers, arrivals, service_s = parameters
    return tuple(closed_forms.erlang_c(servers, arrivals, service_s, math.e - 1.0))


FORMS = {
    "T1 ": lambda sigma, n: order_statistics.expected_max(lognormal(sigma), n),
    "T1b": lambda shape, n: order_statistics.expected_max(Weibull(1.0, shape), n),
    "check": lambda n, _: sum(1.0 / k for k in range(1, n + 1)),
    "T2 ": lambda n, k: order_statistics.expected_order_statistic(lognormal(1.0), k, n),
    "T2b": lambda n, k: order_statistics.expected_order_statistic(lognormal(1.0), k, n),
    "T2c": lambda n, k: tuple(order_statistics.keep_first(lognormal(1.0), k, n)),
    "T3 ": lambda shape, n: tuple(closed_forms.zero_advantage(*shape, n)),
    "T3b": closed_forms.zero_advantage_at,
    "T3c": t3c,
    "T4 ": lambda lam, mu: tuple(closed_forms.two_rates(lam, mu)),
    "T5 ": lambda parameters, _: tuple(closed_forms.mm1k(*parameters)),
    "T6 ": lambda parameters, _: tuple(closed_forms.mean_value_analysis(*parameters)),
    "T7 ": erlang,
    "T7b": lambda parameters, _: closed_forms.more_than(parameters[2], parameters[0], parameters[1]),
    "T8 ": lambda times, sigma: tuple(closed_forms.updates_during(Lognormal(times[0], sigma), times[1])),
    "T8b": lambda times, sigma: closed_forms.crosses_at_least(Lognormal(times[0], sigma), times[1], 17),
    "T10": lambda sigma, _: order_statistics.length_biased_mean(lognormal(sigma)),
    "T11": lambda share, _: tuple(order_statistics.keep_fastest_share(lognormal(1.0), share)),
}


@pytest.mark.parametrize("row", list(rows()), ids=lambda row: f"{row[0].partition(',')[0]} {row[1]} {row[2]}")
def test_a_closed_form_is_exact(row):
    case, first, second, expected = row
    name = next(name for name in sorted(FORMS, key=len, reverse=True) if case.startswith(name))
    if name == "T2c":
        second = 16
    flat = pytest.approx(expected, rel=1e-6, abs=1e-9) if not isinstance(expected, tuple) else None
    found = FORMS[name](first, second)
    if flat is not None:
        assert found == flat
        return
    for one, wanted in zip(found, expected, strict=True):
        assert one == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_a_hundred_updates_are_as_many_as_the_mean_says():
    durations = Lognormal(200.0, 1.0)
    total = sum(closed_forms.crosses_at_least(durations, 50.0, n) for n in range(1, 400))
    assert total == pytest.approx(closed_forms.updates_during(durations, 50.0).mean, rel=1e-4)
