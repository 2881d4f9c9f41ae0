"""What plan, simulate, cost, calibrate and whatif refuse: one line with key, rule and remedy, exit code 2."""

import json
from pathlib import Path

import pytest

from headway.cli.main import main
from headway.core.errors import JournalError
from headway.matching.closed_forms import moved_rates
from headway.matching.cost import CostSettings, ownership
from headway.matching.spec import WorkloadSettings
from headway.matching.workload import DrawnWorkload
from headway.telemetry.journal import read_journal
from tests.unit.test_cli_simulate import SPEC

CASES = Path(__file__).parents[2] / "examples" / "cases"
NO_DECODE = ("timings.decode_base_s=0.0", "timings.decode_row_s=0.0", "timings.decode_token_s=0.0")
NO_STEP = ("timings.step_base_s=0.0", "timings.step_row_s=0.0", "timings.step_token_s=0.0")

REFUSED = [
    (("workload.learning=400",), "workload.learning", "at most 10"),
    (("workload.failure_rate=1",), "workload.failure_rate", "at most 0.99"),
    (("workload.solve_alpha=1e300",), "workload.solve_alpha", "at most 1e+06"),
    (("workload.solve_beta=1e300",), "workload.solve_beta", "at most 1e+06"),
    (("workload.task_sigma=1e9",), "workload.task_sigma", "at most 4"),
    (("workload.drift={prompt_tokens=1e300}",), "workload.drift", "at most 1000"),
    (("workload.drift={answer_token=2.0}",), "workload.drift", "Did you mean answer_tokens?"),
    (("hardware.trainer.mfu=1e-300",), "hardware.trainer.mfu", "at least 0.0001"),
    (("hardware.trainer.mfu=2",), "hardware.trainer.mfu", "at most 1"),
    (("hardware.generator.count=1000000000",), "hardware.generator.count", "at most 100000"),
    (("timings.step_row_s=1e300",), "timings.step_row_s", "at most 1e+06"),
    (("timings.publish_s=1e300",), "timings.publish_s", "at most 1e+06"),
    (NO_DECODE, "timings.decode_base_s", "an iteration takes time"),
    (NO_STEP, "timings.step_base_s", "a step takes time"),
    (("timings.kv_tokens=1",), "timings.kv_tokens", "must be above 100"),
    (("timings.kv_tokens=150", "workload.drift={prompt_tokens=2.0}"), "timings.kv_tokens", "above 200"),
    (("workload.prompt_tokens=512",), "workload.prompt_tokens", "below generator.max_context_tokens (512)"),
    (("workload.max_tokens=100",), "workload.prompt_tokens", "below workload.max_tokens (100)"),
    (("oversampling.groups_extra=100000",), "oversampling.groups_extra", "at most 65536"),
    (("queue.bound=1000000", "queue.depth=1000000"), "queue.depth", "at most 65536"),
    (("queue.batch_size=8000000",), "queue.batch_size", "at most 65536"),
    (("control.mode=on", "control.levers=[]"), "control.levers", "must name a lever"),
    (('control.levers=["depth","depth"]',), "control.levers", "more than once"),
]


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return path


def said(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize(("overrides", "key", "rule"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_spec_that_cannot_be_is_refused(spec, capsys, overrides, key, rule):
    for command in (("plan",), ("simulate", "--no-run")):
        error = said(capsys, command[0], spec, *command[1:], *overrides)
        assert f" {key}: " in error
        assert rule in error


CUTS = [
    ("case1.toml", "hardware.trainer.expert_parallel=7", "hardware.trainer.count", "Use 63"),
    ("case1.toml", "hardware.trainer.expert_parallel=1000", "hardware.trainer.count", "Use 1000"),
    ("case1.toml", "hardware.generator.tensor_parallel=7", "hardware.generator.tensor_parallel", "Use 8"),
]


@pytest.mark.parametrize(("case", "override", "key", "remedy"), CUTS)
def test_parallel_cuts_divide_and_the_remedy_fits(capsys, case, override, key, remedy):
    error = said(capsys, "plan", CASES / case, override)
    assert key in error
    assert remedy in error


COST = [
    ("cost.years=1e-300", "cost.years", "at least 0.01"),
    ("cost.capital_usd=1e300", "cost.capital_usd", "at most 1e+09"),
    ("cost.used_fraction=1e-300", "cost.used_fraction", "at least 0.001"),
]


@pytest.mark.parametrize(("override", "key", "rule"), COST)
def test_a_cost_without_an_end_is_refused(capsys, override, key, rule):
    error = said(capsys, "cost", override)
    assert key in error
    assert rule in error


def test_a_rate_near_nothing_costs_as_none():
    near = ownership(CostSettings(capital_rate=1e-17)).total
    assert near == pytest.approx(ownership(CostSettings(capital_rate=0.0)).total)


def test_learning_that_goes_on_for_ever_stays_a_rate():
    workload = DrawnWorkload(WorkloadSettings(learning=10.0))
    assert workload.solve_rate("train/0", 8000) == 1.0
    assert DrawnWorkload(WorkloadSettings(learning=-10.0)).solve_rate("train/0", 8000) == 0.0
    assert set(moved_rates(1.0, 1.0, 8000.0, 4)) == {1.0}
    assert max(moved_rates(1.0, 1.0, -8000.0, 4)) < 1e-300


def test_options_that_cannot_be(spec, tmp_path, capsys):
    (tmp_path / "there").mkdir()
    assert "--run: exists already" in said(capsys, "simulate", spec, "--run", "there")
    assert "--warmup: must be below the 3 steps" in said(
        capsys, "simulate", spec, "--no-run", "--steps", 3, "--warmup", 3
    )
    assert "--step" in said(capsys, "plan", spec, "--step", "-5")


def test_a_directory_is_no_spec_and_a_fit_needs_a_step(spec, tmp_path, capsys):
    assert main(["simulate", str(spec), "--run", "ran"]) == 0
    capsys.readouterr()
    assert "`headway calibrate ran --out spec.toml`" in said(capsys, "plan", "ran")
    assert "--out: must be in a directory" in said(capsys, "calibrate", "ran", "--out", "none/x.toml")
    assert "must be a run with a price" in said(capsys, "cost", "ran")
    assert "timings.decode_base_s" in said(capsys, "whatif", "ran", *NO_DECODE)
    assert "at most 65536" in said(capsys, "whatif", "ran", "queue.batch_size=100000")
    journal = tmp_path / "ran" / "journal.jsonl"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0])
    assert "must be a run that has trained something" in said(capsys, "calibrate", "ran")


@pytest.mark.parametrize(("lines", "fault"), [([0, 1, 2, 2, 3], "there twice"), ([0, 1, 3, 4], "missing")])
def test_a_journal_with_lines_twice_or_missing_is_refused(spec, tmp_path, capsys, lines, fault):
    assert main(["simulate", str(spec), "--run", "ran"]) == 0
    capsys.readouterr()
    path = tmp_path / "ran" / "journal.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    assert json.loads(whole[1])["seq"] == 0
    path.write_text("".join(whole[index] for index in lines))
    with pytest.raises(JournalError, match=fault):
        list(read_journal(path))
