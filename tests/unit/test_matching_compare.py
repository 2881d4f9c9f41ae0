"""Comparisons of runs: intervals by hand, and runs that cannot be compared."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

from headway.cli.compare import command
from headway.core.errors import UserError
from headway.matching.advice.reading import Reading
from headway.matching.compare import compare
from headway.matching.compare_rows import AXES, Value, beyond, ratio_of_sums, reward_line
from headway.matching.compare_text import comparison_text
from headway.matching.estimators import fit_line, p_greater, t_quantile
from headway.matching.roles import SimSettings
from headway.telemetry.journal import read_journal
from tests.simulation.journals import simulated_journal

SIM = SimSettings(num_turns=1, uses_sandbox=False, train_s=2.0)
BASE = ("stop.steps=12", "eval.num_tasks=0")


def reading(path, *overrides, sim=SIM, **header) -> Reading:
    path.mkdir(exist_ok=True)
    simulated_journal(path, *BASE, *overrides, sim=sim, **header)
    return Reading.of(read_journal(path))


def test_a_ratio_of_sums_has_the_interval_of_batch_means():
    """Four steps are four batches: r = 10 / 4, residuals -1.5 -.5 .5 1.5, t(3) = 3.1824."""
    found = ratio_of_sums([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 1.0])
    half = 3.182446305284263 * math.sqrt(4 / 3 * 5.0) / 4
    assert found.value == 2.5
    assert found.half == pytest.approx(half, rel=1e-9)


def test_weights_count_in_a_ratio_of_sums():
    assert ratio_of_sums([1.0, 9.0, 1.0, 9.0], [1.0, 3.0, 1.0, 3.0]).value == 2.5


def test_a_few_steps_have_no_interval():
    assert ratio_of_sums([1.0, 2.0], [1.0, 1.0]) == Value(1.5)
    assert ratio_of_sums([], []) == Value(None)


def test_two_numbers_differ_beyond_their_intervals_by_more_than_both_together():
    assert beyond(Value(0.0, -3.0, 3.0), Value(5.1, 1.1, 9.1))
    assert not beyond(Value(0.0, -3.0, 3.0), Value(4.9, 0.9, 8.9))
    assert not beyond(Value(0.0), Value(9.0, 8.0, 10.0))


def test_a_line_has_the_textbook_intervals():
    """Points (0, 1), (1, 3), (2, 4), (3, 4): slope 1, intercept 1.5, residual variance 0.5, Sxx 5."""
    line = fit_line([0.0, 1.0, 2.0, 3.0], [1.0, 3.0, 4.0, 4.0])
    assert line is not None
    assert (line.slope, line.intercept) == pytest.approx((1.0, 1.5))
    error, t = math.sqrt(0.5 / 5), t_quantile(0.975, 2)
    assert line.slope_interval() == pytest.approx((1.0 - t * error, 1.0 + t * error))
    at = math.sqrt(0.5 * (1 / 4 + 1.5**2 / 5))
    assert line.height_interval(3.0) == pytest.approx((4.5 - t * at, 4.5 + t * at))
    assert fit_line([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None


def test_chance_is_told_by_ranks():
    assert p_greater(range(15, 45), range(30)) < 1e-4
    assert p_greater(range(30), range(30)) > 0.4


def test_the_same_run_twice_differs_in_nothing(tmp_path):
    one = reading(tmp_path / "a")
    found = compare([("a", one), ("again", one)])
    assert not any(flag for row in found.rows for flag in row.beyond)
    assert found.settings == {}
    assert "no difference beyond the intervals" in comparison_text(found)


def test_a_synchronous_run_waits_more_and_is_slower_beyond_the_intervals(tmp_path):
    found = compare([("async", reading(tmp_path / "a")), ("sync", reading(tmp_path / "b", "queue.bound=0"))])
    rows = {row.metric: row for row in found.rows}
    for metric in ("rl.trainer.wait_fraction", "rl.consumption.wall_samples_per_s", "rl.staleness.token"):
        assert rows[metric].beyond == (False, True), metric
    assert not rows["rl.rollout.tokens"].beyond[1]
    assert found.settings == {"queue.bound": (2, 0)}
    text = comparison_text(found)
    assert "queue.bound" in text
    assert "trainer waits" in text
    assert max(map(len, text.splitlines())) <= 110


def test_ratios_of_a_comparison_are_the_metrics_of_the_report(tmp_path):
    one = reading(tmp_path / "a")
    rows = {row.metric: row.values[0].value for row in compare([("a", one), ("b", one)]).rows}
    for metric in ("rl.consumption.wall_samples_per_s", "rl.consumption.active_samples_per_s"):
        assert rows[metric] == pytest.approx(one.summary[metric])
    assert rows["rl.staleness.token"] == pytest.approx(one.summary["rl.staleness.token"]["mean"])
    assert rows["rl.trainer.wait_fraction"] == pytest.approx(one.summary["rl.trainer.wait_fraction"])


def test_reward_is_held_against_cost_where_there_is_a_price(tmp_path):
    cheap = reading(tmp_path / "a", usd_per_hour=10.0)
    dear = reading(tmp_path / "b", usd_per_hour=40.0)
    rows = {row.metric: row for row in compare([("a", cheap), ("b", dear)]).rows}
    spent = 10.0 * cheap.records[-1].t / 3600.0
    assert rows["reward.at_common.cost"].label == f"reward at ${spent:,.2f}"
    ratio = rows["rl.cost.usd_per_mtok"].values[1].value / rows["rl.cost.usd_per_mtok"].values[0].value
    assert ratio == pytest.approx(4.0)


def test_learning_has_a_slope_beyond_nothing(tmp_path):
    sim = SimSettings(
        num_turns=1, uses_sandbox=False, train_s=2.0, solve_rates={"1": 0.1, "2": 0.1}, learning=0.03
    )
    learns = reading(tmp_path / "a", "stop.steps=30", "curriculum.levels=[1,2]", sim=sim)
    rows = {row.metric: row.values[0] for row in compare([("a", learns), ("b", learns)]).rows}
    slope = rows["reward.slope.trained_rollouts"]
    assert slope.low is not None
    assert slope.low > 0.0


def test_other_tasks_of_one_environment_are_told(tmp_path):
    one = reading(tmp_path / "a")
    other = reading(tmp_path / "b", "environment.args.levels=[3]")
    found = compare([("a", one), ("b", other)])
    assert found.notes[0].startswith("the tasks differ (environment.args.levels)")


def test_one_run_cannot_be_compared(tmp_path):
    with pytest.raises(UserError, match="two runs or more"):
        compare([("a", reading(tmp_path / "a"))])


def test_runs_of_different_environments_cannot_be_compared(tmp_path):
    one, other = reading(tmp_path / "a"), reading(tmp_path / "b")
    other.settings["environment"]["name"] = "python-code"
    with pytest.raises(UserError, match=r"different environments.*arithmetic.*python-code"):
        compare([("a", one), ("b", other)])


def test_a_run_without_a_step_cannot_be_compared(tmp_path):
    one = reading(tmp_path / "a")
    (tmp_path / "b").mkdir()
    simulated_journal(tmp_path / "b", *BASE, sim=SIM, num_entries=20)
    with pytest.raises(UserError, match="without a step"):
        compare([("a", one), ("b", Reading.of(read_journal(tmp_path / "b")))])


def test_the_command_prints_all_of_it_as_json(tmp_path):
    reading(tmp_path / "a")
    reading(tmp_path / "b", "queue.bound=0")
    result = CliRunner().invoke(command, [str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    found = json.loads(result.output)
    assert found["runs"] == ["a", "b"]
    assert found["settings"] == {"queue.bound": [2, 0]}
    assert {"metric", "unit", "values", "differs_from_first"} <= set(found["metrics"][0])


def test_reward_that_has_come_to_its_end_is_not_continued(tmp_path):
    """Reward of 1 from a third of the run on: no height above it, and no line through it."""
    one = reading(tmp_path / "a", "stop.steps=30")
    done = [replace(step, reward=min(1.0, 0.2 + 0.1 * n)) for n, step in enumerate(one.records)]
    one.metrics.steps.records[:] = done
    found = compare([("a", one), ("b", one)])
    rows = {row.metric: row.values[0] for row in found.rows}
    assert rows["reward.at_common.trained_rollouts"] == Value(1.0, 1.0, 1.0)
    assert rows["reward.at_common.wall_time"].value == 1.0
    assert reward_line(one, AXES[0][2]) is None
    assert "reward.slope.trained_rollouts" not in rows


def test_time_counts_from_the_first_admission(tmp_path):
    one = reading(tmp_path / "a")
    first, last = one.records[0], one.records[-1]
    began = first.t - first.duration_s
    assert began > 0.0
    assert AXES[1][2](one, last, 0.0) == last.t - began


def test_a_simulated_run_beside_a_real_one_is_told(tmp_path):
    one, other = reading(tmp_path / "a"), reading(tmp_path / "b")
    other.header = replace(other.header, simulated=True, machine="simulated from case1")
    notes = compare([("a", one), ("b", other)]).notes
    assert notes[0].startswith("some runs are simulated")
