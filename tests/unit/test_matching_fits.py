"""The statistics of calibration: exact where a case is exact, within stated tolerances on drawn data."""

import math
import random
from statistics import fmean

import numpy as np
import pytest

from headway.matching.components import Value, components
from headway.matching.fits import line, lognormal, solve_rates, varies


def draw(mean, sigma, num, seed=0):
    rng = np.random.default_rng(seed)
    return list(np.exp(rng.normal(math.log(mean) - sigma**2 / 2, sigma, num)))


def test_values_that_are_all_alike_have_no_spread():
    found = lognormal([3.0, 3.0, 3.0], [2.0], counts=True)
    assert (found.mean, found.sigma, found.ks, found.censored) == (3.0, 0.0, 0.0, 0.25)


def test_nothing_seen_whole_tells_nothing():
    assert lognormal([], [5.0, 6.0]) is None


def test_cut_values_are_longer_than_where_they_were_cut():
    """Three quarters cut at the limit: the fit is within 5 %, the naive mean is off by more than half."""
    values = draw(300.0, 0.7, 20_000)
    limit = float(np.quantile(values, 0.25))
    seen, cut = [value for value in values if value < limit], [limit] * sum(v >= limit for v in values)
    found = lognormal(seen, cut)
    assert found.censored == pytest.approx(0.75, abs=0.01)
    assert found.mean == pytest.approx(300.0, rel=0.05)
    assert found.sigma == pytest.approx(0.7, rel=0.05)
    assert found.low < 300.0 < found.high
    assert found.ks < 0.02
    assert fmean([*seen, *cut]) < 0.55 * 300.0


def test_short_counts_are_rounded_values():
    """Lengths of two or three tokens: without the rounding the spread would be that of the rounded ones."""
    values = draw(2.5, 0.3, 5_000)
    found = lognormal([float(max(1, round(value))) for value in values], counts=True)
    assert found.mean == pytest.approx(2.5, rel=0.02)
    assert found.sigma == pytest.approx(0.3, rel=0.05)


def test_a_shape_that_does_not_fit_keeps_the_mean_of_its_values():
    values = [0.01] * 500 + [10.0] * 500 + [0.011, 9.9]
    found = lognormal(values)
    assert not found.is_good
    assert found.mean == pytest.approx(fmean(values), rel=1e-9)


def test_a_line_is_found_exactly():
    columns = ([1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 2.0, 8.0])
    values = [2.0 + 0.5 * b + 0.25 * c for _, b, c in zip(*columns, strict=True)]
    found = line(columns, values, [1.0, 2.0, 1.0, 1.0])
    assert found.coefficients == pytest.approx((2.0, 0.5, 0.25), rel=1e-12)
    assert found.r2 == pytest.approx(1.0, abs=1e-12)
    assert found.error == pytest.approx(0.0, abs=1e-12)


def test_no_coefficient_is_negative():
    found = line(([1.0] * 3, [1.0, 2.0, 3.0]), [3.0, 2.0, 1.0], [1.0] * 3)
    assert found.coefficients == pytest.approx((2.0, 0.0))


def test_columns_that_go_together_show_in_the_condition():
    rows = [float(n) for n in range(1, 40)]
    together = line(([1.0] * 39, rows, [100.0 * row for row in rows]), rows, [1.0] * 39)
    assert together.condition > 1e6


def test_what_hardly_varies_tells_no_slope():
    assert not varies([100.0, 101.0, 99.0])
    assert varies([100.0, 150.0, 50.0])
    assert not varies([1.0, 2.0])


def groups(alpha, beta, num, size=8, learning=0.0, steps=40, seed=3):
    rng = random.Random(seed)
    solved, when = [], []
    for number in range(num):
        step = number * steps // num
        odds = math.log((rate := rng.betavariate(alpha, beta)) / (1 - rate)) + learning * step
        chance = 1 / (1 + math.exp(-odds))
        solved.append(sum(rng.random() < chance for _ in range(size)))
        when.append(step)
    return solved, [size] * num, when


def test_solve_rates_come_back():
    found = solve_rates(*groups(2.0, 3.0, 2_000))
    assert found.alpha == pytest.approx(2.0, rel=0.1)
    assert found.beta == pytest.approx(3.0, rel=0.1)
    assert found.learning == 0.0
    assert found.ks < 0.03


def test_tasks_that_are_all_alike_have_a_narrow_beta():
    found = solve_rates(*groups(400.0, 600.0, 500))
    assert found.alpha / (found.alpha + found.beta) == pytest.approx(0.4, abs=0.02)
    assert found.alpha + found.beta > 50


def test_learning_is_told_with_its_interval_when_it_is_there():
    found = solve_rates(*groups(4.0, 6.0, 1_000, learning=0.03))
    assert found.learning_low < 0.03 < found.learning_high
    assert found.learning_low > 0
    assert found.alpha / (found.alpha + found.beta) == pytest.approx(0.4, abs=0.03)


def test_too_few_groups_tell_nothing():
    assert solve_rates([1, 2], [8, 8], [0, 0]) is None


def lengths(tasks, members, turns, *, answer, rollout, task, slope=0.0, limit=math.inf, steps=40, seed=5):
    rng = random.Random(seed)
    values = []
    for number in range(tasks):
        step, of_task = number * steps // tasks, rng.gauss(0, task)
        for member in range(members):
            of_rollout = rng.gauss(0, rollout)
            for _ in range(turns):
                raw = math.exp(5.5 + slope * step + of_task + of_rollout + rng.gauss(0, answer))
                length = max(1.0, float(round(raw)))
                name = f"{number}.{member}"
                values.append(Value(min(length, limit), length >= limit, name, str(number), step))
    return values


def test_the_spread_is_told_apart_by_answer_rollout_and_task():
    values = lengths(120, 6, 4, answer=0.5, rollout=0.35, task=0.25)
    found = components(values, counts=True)
    assert found.answer_sigma.value == pytest.approx(0.5, rel=0.06)
    assert found.rollout_sigma.value == pytest.approx(0.35, rel=0.12)
    assert found.task_sigma.value == pytest.approx(0.25, rel=0.25)
    mean = math.exp(5.5 + (0.5**2 + 0.35**2 + 0.25**2) / 2)
    assert found.mean.value == pytest.approx(mean, rel=0.08)
    assert found.slope is not None
    assert not found.slope.differs_from_zero


def test_parts_come_back_from_heavily_cut_answers():
    """More than half is cut at the limit: the mean is within 12 %, the naive one is off by more than 35 %."""
    values = lengths(150, 6, 3, answer=0.5, rollout=0.35, task=0.25, limit=220.0)
    found = components(values, counts=True)
    assert found.censored > 0.45
    mean = math.exp(5.5 + (0.5**2 + 0.35**2 + 0.25**2) / 2)
    assert found.mean.value == pytest.approx(mean, rel=0.12)
    assert found.mean.low < mean < found.mean.high
    assert found.rollout_sigma.value == pytest.approx(0.35, rel=0.2)
    assert fmean(value.value for value in values) < 0.65 * mean


def test_drift_is_told_with_an_interval_that_holds_it():
    values = lengths(120, 4, 2, answer=0.4, rollout=0.2, task=0.2, slope=0.02, limit=400.0)
    found = components(values, counts=True)
    assert found.slope.low < 0.02 < found.slope.high
    assert found.slope.low > 0
    assert found.mean.value == pytest.approx(math.exp(5.5 + (0.16 + 0.04 + 0.04) / 2), rel=0.12)


def test_one_answer_a_rollout_does_not_tell_the_rollouts_part():
    found = components(lengths(60, 4, 1, answer=0.4, rollout=0.3, task=0.0), counts=True)
    assert found.rollout_sigma is None
    assert found.answer_sigma.value == pytest.approx(0.5, rel=0.1)


def test_the_same_values_give_the_same_parts():
    values = lengths(20, 4, 2, answer=0.4, rollout=0.2, task=0.2)
    assert components(values) == components(values)


def test_few_values_tell_no_parts():
    assert components(lengths(3, 3, 2, answer=0.4, rollout=0.2, task=0.2)) is None
