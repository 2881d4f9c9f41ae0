"""The drawn workload and the sandbox fleet: means, cuts, drift, and what limits do to a burst."""

import random
from dataclasses import replace

import pytest

from headway.matching.fleet import FleetOf
from headway.matching.spec import FleetSettings, WorkloadSettings
from headway.matching.workload import DrawnWorkload

WORK = WorkloadSettings(
    prompt_tokens=100, turns=6.0, turns_sigma=0.5, answer_tokens=200.0, answer_sigma=0.7, rollout_sigma=0.4,
    task_sigma=0.3, observation_tokens=50.0, tool_s=2.0, tool_sigma=1.0, score_s=3.0, score_sigma=0.5,
)  # fmt: skip


def plans(settings, num=4000, step=0, tasks=400, **arguments):
    work, rng = DrawnWorkload(settings, **arguments), random.Random(5)
    return [work.plan(rng, f"train/{i % tasks}", f"r{i}", 0, step, "train") for i in range(num)]


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def test_means_are_those_of_the_settings():
    drawn = plans(WORK, 20_000, tasks=20_000)
    assert mean(len(plan.turns) for plan in drawn) == pytest.approx(6.0, rel=0.03)
    assert mean(t.answer_tokens for p in drawn for t in p.turns) == pytest.approx(200.0, rel=0.03)
    assert mean(t.tool_s for p in drawn for t in p.turns if t.tool_s is not None) == pytest.approx(
        2.0, rel=0.05
    )
    assert mean(plan.score_s for plan in drawn) == pytest.approx(3.0, rel=0.03)


def test_the_last_turn_has_no_tool_call_and_all_others_have_one():
    for plan in plans(WORK, 200):
        assert plan.turns[-1].tool_s is None
        assert all(turn.tool_s is not None and turn.observation_tokens == 50 for turn in plan.turns[:-1])


def test_a_context_that_is_full_truncates():
    drawn = plans(replace(WORK, max_tokens=800))
    assert max(plan.num_tokens for plan in drawn) <= 850  # an observation may come after the last answer
    assert all(plan.truncated == (plan.num_tokens >= 800) for plan in drawn)
    assert 0.5 < mean(plan.truncated for plan in drawn) < 1.0
    assert [p.num_tokens for p in plans(WORK, 99, max_context_tokens=800)] == [
        p.num_tokens for p in drawn[:99]
    ]


def test_too_many_turns_truncate():
    drawn = plans(replace(WORK, max_turns=5))
    assert {len(plan.turns) for plan in drawn if plan.truncated} == {5}
    assert 0.4 < mean(plan.truncated for plan in drawn) < 0.7


def test_a_tasks_solve_rate_is_its_own_and_learning_moves_its_log_odds():
    work = DrawnWorkload(replace(WORK, solve_alpha=2.0, solve_beta=3.0, learning=0.1))
    rates = [work.solve_rate(f"train/{i}", 0) for i in range(4000)]
    assert mean(rates) == pytest.approx(0.4, abs=0.01)
    assert mean(rate * rate for rate in rates) == pytest.approx(2 * 3 / (5 * 6), abs=0.01)
    before, after = work.solve_rate("train/7", 0), work.solve_rate("train/7", 10)
    assert after / (1 - after) == pytest.approx(before / (1 - before) * 2.718281828, rel=1e-6)
    again = DrawnWorkload(replace(WORK, solve_alpha=2.0, solve_beta=3.0))
    assert again.solve_rate("train/7", 0) == before


def test_drift_goes_along_a_line_and_stays():
    work = replace(WORK, turns_sigma=0.0, answer_sigma=0.0, rollout_sigma=0.0, task_sigma=0.0)
    work = replace(work, drift={"answer_tokens": 3.0, "turns": 2.0}, drift_steps=100)
    for step, answer, turns in ((0, 200, 6), (50, 400, 9), (100, 600, 12), (1000, 600, 12)):
        (plan,) = plans(work, 1, step=step)
        assert (plan.turns[0].answer_tokens, len(plan.turns)) == (answer, turns)


def test_a_share_of_the_rollouts_fails_on_its_way():
    drawn = plans(replace(WORK, failure_rate=0.2, failure_after=0.5))
    assert mean(plan.fails_after is not None for plan in drawn) == pytest.approx(0.2, abs=0.02)
    for plan in drawn:
        assert plan.fails_after is None or plan.fails_after == max(1, round(0.5 * len(plan.turns)))


def starts(settings, times, seed=0):
    provider, rng = FleetOf(settings).begin(), random.Random(seed)
    return [provider.start(rng, at_s) for at_s in times]


def test_without_limits_each_start_takes_its_time():
    assert [s.at_s for s in starts(FleetSettings(start_s=2.0), [0.0, 0.5, 7.0])] == [2.0, 2.5, 9.0]


def test_creates_beyond_the_burst_come_at_the_providers_rate():
    fleet = FleetSettings(start_s=1.0, creates_per_s=2.0, burst=3)
    assert [s.at_s for s in starts(fleet, [0.0] * 6)] == [1.0, 1.0, 1.0, 1.5, 2.0, 2.5]
    assert [s.at_s for s in starts(fleet, [0.0] * 4 + [10.0] * 4)][4:] == [11.0, 11.0, 11.0, 11.5]


def test_a_place_among_those_that_start_is_waited_for():
    fleet = FleetSettings(start_s=4.0, max_starting=2)
    assert [s.at_s for s in starts(fleet, [0.0, 1.0, 1.0, 1.0, 20.0])] == [4.0, 5.0, 8.0, 9.0, 24.0]


def test_a_start_that_is_given_up_is_tried_again_in_its_place():
    fleet = FleetSettings(start_s=10.0, start_timeout_s=3.0, retries=2, max_starting=1)
    first, second = starts(fleet, [0.0, 0.0])
    assert (first.at_s, first.fails, second.at_s, second.fails) == (9.0, True, 18.0, True)


def test_failures_after_retries():
    fleet = FleetSettings(start_s=1.0, failure_rate=0.5, retries=1)
    found = starts(fleet, [float(i) for i in range(4000)])
    assert mean(s.fails for s in found) == pytest.approx(0.25, abs=0.03)
    assert {round(s.at_s - i, 9) for i, s in enumerate(found)} == {1.0, 2.0}
