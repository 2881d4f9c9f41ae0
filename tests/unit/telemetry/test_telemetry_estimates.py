"""Estimates over tasks, against values that can be worked out on paper or were computed elsewhere."""

import itertools
import math
import random
from statistics import NormalDist, fmean, stdev

import pytest

from headway.telemetry.estimates import (
    Estimate,
    difference,
    mean_estimate,
    pass_at_k,
    pass_estimate,
    reward_estimate,
    wilson,
)

Z = NormalDist().inv_cdf(0.975)


@pytest.mark.parametrize(
    ("num", "solved", "k", "expected"),
    [
        (10, 3, 1, 0.3),
        (10, 3, 5, 1 - 21 / 252),
        (10, 3, 8, 1.0),
        (10, 0, 10, 0.0),
        (4, 2, 2, 5 / 6),
        (1, 1, 1, 1.0),
        (100, 1, 10, 0.1),
    ],
)
def test_pass_at_k_is_chen_s_estimator(num, solved, k, expected):
    assert pass_at_k(num, solved, k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_k_is_the_mean_over_all_choices_of_k_rollouts():
    outcomes = [1, 0, 0, 1, 0, 0]
    for k in range(1, 7):
        chosen = list(itertools.combinations(outcomes, k))
        assert pass_at_k(6, 2, k) == pytest.approx(fmean(max(choice) for choice in chosen))


def test_wilson_s_interval():
    # 8 of 10, z = 1.959964: Newcombe 1998's method 3
    assert wilson(0.8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775328), abs=1e-6)
    assert wilson(1.0, 64) == pytest.approx((0.9433760, 1.0), abs=1e-6)


def test_one_rollout_a_task_gives_wilson_s_interval_itself():
    tasks = [(1, 1)] * 41 + [(1, 0)] * 23
    found = pass_estimate(tasks, 1)
    assert found is not None
    assert (found.value, found.num_tasks) == (41 / 64, 64)
    assert (found.low, found.high) == pytest.approx(wilson(41 / 64, 64), abs=1e-12)


def test_tasks_that_agree_within_themselves_count_once_however_many_rollouts_they_have():
    once = pass_estimate([(1, 1)] * 10 + [(1, 0)] * 10, 1)
    often = pass_estimate([(8, 8)] * 10 + [(8, 0)] * 10, 1)
    assert once == often


def test_rollouts_that_are_independent_count_each_at_most():
    found = pass_estimate([(4, 2)] * 20, 1)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(wilson(0.5, 80), abs=1e-12)
    found = pass_estimate([(4, 2)] * 20, 2)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(wilson(5 / 6, 40), abs=1e-12)


def test_all_solved_is_no_point_and_none_solved_neither():
    assert pass_estimate([(8, 8)] * 30, 1) == Estimate(1.0, *wilson(1.0, 30), 30)
    assert pass_estimate([(8, 0)] * 30, 8) == Estimate(0.0, *wilson(0.0, 30), 30)


def test_a_task_with_too_few_rollouts_for_k_is_left_out():
    found = pass_estimate([(4, 4), (3, 0), (4, 0)], 4)
    assert found is not None
    assert (found.value, found.num_tasks) == (0.5, 2)
    assert pass_estimate([(3, 1)], 4) is None


def test_one_task_or_tasks_that_are_all_alike_have_no_interval():
    assert mean_estimate([[1.0, 1.0], [1.0, 1.0]]) == Estimate(1.0, None, None, 2)
    assert pass_estimate([(4, 1)], 1) == Estimate(0.25, None, None, 1)
    assert mean_estimate([[0.5, 1.0]]) == Estimate(0.75, None, None, 1)
    assert mean_estimate([[], []]) is None


def test_the_mean_reward_with_equal_tasks_has_the_error_of_task_means():
    tasks = [[0.0, 1.0], [0.5, 0.5], [1.0, 1.0], [0.25, 0.0]]
    means = [fmean(values) for values in tasks]
    found = mean_estimate(tasks)
    assert found is not None
    half = Z * stdev(means) / math.sqrt(4)
    assert found.value == pytest.approx(fmean(means))
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))


def test_the_mean_reward_is_over_rollouts_where_tasks_lost_some():
    # mean 3/5; residuals 2 - 3 * 0.6 = 0.2 and 1 - 2 * 0.6 = -0.2
    found = mean_estimate([[1.0, 1.0, 0.0], [1.0, 0.0]])
    assert found is not None
    half = Z * math.sqrt(2 / 1 * (0.04 + 0.04)) / 5
    assert (found.value, found.high) == pytest.approx((0.6, 0.6 + half))


def test_paired_differences():
    found = difference([(1.0, 0.0), (1.0, 1.0), (0.0, 0.0), (1.0, 0.0)])
    assert found is not None
    half = Z * stdev([1.0, 0.0, 0.0, 1.0]) / 2
    assert (found.value, found.low) == pytest.approx((0.5, 0.5 - half))
    assert difference([]) is None
    assert difference([(1.0, 1.0), (0.0, 0.0)]) == Estimate(0.0, None, None, 2)


def test_the_intervals_hold_what_they_promise():
    """Tasks with rates of their own: the interval of pass@1 covers the true mean about 95 % of the time."""
    rng = random.Random(1)
    num_covered = 0
    for _ in range(400):
        rates = [rng.choice([0.1, 0.5, 0.9]) for _ in range(40)]
        tasks = [(4, sum(rng.random() < rate for _ in range(4))) for rate in rates]
        found = pass_estimate(tasks, 1)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        num_covered += found.low <= 0.5 <= found.high
    assert 0.92 <= num_covered / 400 <= 0.98


def test_rewards_of_0_and_1_have_an_interval_within_these():
    tasks = [[1.0]] * 45 + [[0.0]] * 3
    assert reward_estimate(tasks) == pass_estimate([(1, 1)] * 45 + [(1, 0)] * 3, 1)
    assert mean_estimate(tasks).high > 1.0
    partial = [[0.5], [1.0], [0.0]]
    assert reward_estimate(partial) == mean_estimate(partial)
