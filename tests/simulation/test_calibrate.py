"""Calibration gives back what a simulated run was made with, also where most of it was cut off."""

import json
import math
from statistics import fmean

import pytest

from headway.cli.main import main
from headway.matching.calibrate import calibrate, calibrate_recording
from headway.matching.calibrate_lengths import answers
from headway.matching.calibrate_text import calibration_text, spec_text
from headway.matching.recording import record
from headway.matching.spec import FleetSettings, TimingSettings, WorkloadSettings
from headway.matching.spec_load import load_spec
from headway.telemetry.journal_writer import JournalWriter
from tests.simulation.modelled_runs import TIMINGS, modelled_run

TRUTH = WorkloadSettings(
    prompt_tokens=200, turns=4.0, turns_sigma=0.4, answer_tokens=120, answer_sigma=0.5, rollout_sigma=0.3,
    task_sigma=0.25, observation_tokens=40, tool_s=1.5, tool_sigma=0.8, score_s=0.4, score_sigma=0.5,
    solve_alpha=2.0, solve_beta=3.0, uses_sandbox=True,
)  # fmt: skip
FLEET = FleetSettings(start_s=2.0, start_sigma=0.5)
LARGE = (
    "generator.max_context_tokens=4096", "generator.max_answer_tokens=2048", "generator.max_running=64",
    "queue.batch_size=64", "sandbox.max_live=400",
)  # fmt: skip


@pytest.fixture(scope="module")
def journal():
    return modelled_run(TRUTH, *LARGE, fleet=FLEET)


@pytest.fixture(scope="module")
def found(journal):
    return calibrate(journal)


@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("prompt_tokens", 0.0), ("observation_tokens", 0.0), ("turns", 0.05), ("turns_sigma", 0.1),
        ("answer_tokens", 0.07), ("answer_sigma", 0.05), ("rollout_sigma", 0.15), ("task_sigma", 0.25),
        ("tool_s", 0.05), ("tool_sigma", 0.05), ("score_s", 0.05), ("score_sigma", 0.05),
    ],
)  # fmt: skip
def test_the_workload_comes_back(found, name, within):
    assert getattr(found.workload, name) == pytest.approx(getattr(TRUTH, name), rel=within)


def test_solve_rates_and_starts_come_back(found):
    workload = found.workload
    assert workload.solve_alpha / (workload.solve_alpha + workload.solve_beta) == pytest.approx(0.4, abs=0.04)
    assert workload.learning == 0.0
    assert workload.uses_sandbox
    assert not workload.final_tool
    assert found.fleet.start_s == pytest.approx(2.0, rel=0.05)
    assert found.fleet.start_sigma == pytest.approx(0.5, rel=0.05)


def test_no_drift_is_told_where_there_is_none(found):
    assert found.workload.drift == {}


def test_the_engine_comes_back_over_the_loads_that_were_seen(found):
    timings = found.timings
    for running, resident in ((10, 5_000), (40, 16_000), (64, 24_000)):
        told = timings.decode_base_s + timings.decode_row_s * running + timings.decode_token_s * resident
        true = TIMINGS.decode_base_s + TIMINGS.decode_row_s * running + TIMINGS.decode_token_s * resident
        assert told == pytest.approx(true, rel=0.04)
    assert found.parameter("timings.decode_base_s").r2 > 0.8
    assert timings.prefill_base_s == pytest.approx(TIMINGS.prefill_base_s, rel=0.05)
    assert timings.prefill_token_s == pytest.approx(TIMINGS.prefill_token_s, rel=0.05)


def test_the_trainer_comes_back(found):
    timings = found.timings
    for rows, tokens in ((64, 40_000), (64, 60_000)):
        told = timings.step_base_s + timings.step_row_s * rows + timings.step_token_s * tokens
        true = TIMINGS.step_base_s + TIMINGS.step_token_s * tokens
        assert told == pytest.approx(true, rel=0.02)
    assert timings.load_s == pytest.approx(0.25, abs=1e-6)
    assert timings.publish_s == pytest.approx(0.5, abs=1e-9)


def test_heavily_truncated_answers_are_longer_than_what_was_seen():
    """The context cuts more than half of the rollouts: the fit is within 12 %, the naive mean off by 25 %."""
    truth = WorkloadSettings(
        prompt_tokens=100, answer_tokens=600, answer_sigma=0.6, task_sigma=0.3, solve_alpha=2, solve_beta=2
    )
    cut = ("generator.max_context_tokens=600", "generator.max_answer_tokens=500", "generator.max_running=64")
    journal = modelled_run(truth, *cut, steps=60)
    found = calibrate(journal)
    seen = [value.value for value in answers(record(journal).train())]
    assert found.parameter("workload.answer_tokens").censored > 0.4
    assert found.workload.answer_tokens == pytest.approx(600, rel=0.12)
    assert math.hypot(found.workload.answer_sigma, found.workload.task_sigma) == pytest.approx(
        math.hypot(0.6, 0.3), rel=0.12
    )
    assert fmean(seen) < 0.75 * 600


def test_cancelled_rollouts_count_as_longer():
    """Oversampling cancels the slowest third of each group: without them the mean is biased."""
    truth = WorkloadSettings(
        prompt_tokens=50, answer_tokens=400, answer_sigma=0.8, solve_alpha=2, solve_beta=2
    )
    more = (
        "generator.max_context_tokens=8192", "generator.max_answer_tokens=8000", "generator.max_running=128",
        "queue.batch_size=64", "oversampling.rollouts_extra=4",
    )  # fmt: skip
    journal = modelled_run(truth, *more, steps=30)
    recording = record(journal)
    stopped = [one for one in recording.train() if one.outcome == "stopped"]
    assert len(stopped) > 0.2 * len(recording.train())
    found = calibrate_recording(recording)
    ended = [turn.num_tokens for one in recording.train() for turn in one.turns]
    assert found.workload.answer_tokens == pytest.approx(400, rel=0.08)
    assert fmean(ended) < 0.8 * 400


def test_drift_is_told_as_the_factor_at_the_end():
    truth = WorkloadSettings(
        prompt_tokens=50, answer_tokens=200, answer_sigma=0.4, drift={"answer_tokens": 2.0}, drift_steps=40,
        solve_alpha=4, solve_beta=4, learning=0.03,
    )  # fmt: skip
    more = ("generator.max_context_tokens=8192", "generator.max_answer_tokens=8000")
    found = calibrate(modelled_run(truth, *more, steps=40))
    parameter = found.parameter("workload.drift.answer_tokens")
    assert parameter.value == pytest.approx(2.0, rel=0.15)
    assert found.workload.answer_tokens == pytest.approx(200, rel=0.12)
    assert found.workload.drift_steps == pytest.approx(40, abs=2)
    learning = found.parameter("workload.learning")
    assert learning.low < 0.03 < learning.high


def test_a_load_that_never_changes_tells_no_slopes():
    """One request at a time, every answer as long: what an iteration takes is told, its parts are not."""
    timings = TimingSettings(
        decode_base_s=0.02, decode_row_s=0.005, decode_token_s=0.0, prefill_base_s=0.0, prefill_token_s=1e-5,
        step_base_s=0.5, step_row_s=0.0, step_token_s=0.0,
    )  # fmt: skip
    more = ("generator.max_running=1", "queue.batch_size=8", "queue.group_size=8", "queue.bound=0")
    truth = WorkloadSettings(prompt_tokens=20, answer_tokens=100, answer_sigma=0.0)
    found = calibrate(modelled_run(truth, *more, "generator.max_context_tokens=4096", timings=timings))
    unknown = {one.key for one in found.parameters if not one.is_identified}
    assert {"timings.decode_row_s", "timings.decode_token_s", "timings.step_row_s"} <= unknown
    assert found.timings.decode_base_s == pytest.approx(0.025, rel=0.01)
    assert found.workload.answer_sigma == 0.0
    why = found.parameter("timings.decode_row_s").stands_in
    assert why == "about 1.0 requests ran all the time: base tells it all"
    step = found.timings
    assert step.step_base_s + step.step_token_s * 8 * 120 == pytest.approx(0.5, rel=0.01)


def test_answers_that_always_hit_the_limit_tell_no_length():
    truth = WorkloadSettings(prompt_tokens=50, answer_tokens=5_000, answer_sigma=0.3)
    found = calibrate(modelled_run(truth, "generator.max_context_tokens=150", steps=5))
    parameter = found.parameter("workload.answer_tokens")
    assert not parameter.is_identified
    assert parameter.value == 100.0
    assert "ran into a limit" in parameter.stands_in


def test_the_spec_holds_the_runs_settings_and_loads(found, tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(spec_text(found, "a run"))
    spec = load_spec(path)
    for name in ("answer_tokens", "turns", "tool_s", "solve_alpha", "task_sigma"):
        assert getattr(spec.workload, name) == pytest.approx(getattr(found.workload, name), rel=1e-5)
    assert spec.timings.decode_base_s == pytest.approx(found.timings.decode_base_s, rel=1e-5)
    assert spec.fleet.start_s == pytest.approx(found.fleet.start_s, rel=1e-5)
    assert spec.scheduler.queue.batch_size == 64
    assert spec.config.generator.max_running == 64


def test_the_spec_says_where_each_value_comes_from(found):
    lines = spec_text(found, "a run").splitlines()
    for place, line in enumerate(lines):
        if line.startswith("decode_base_s"):
            assert lines[place - 1].startswith("#")
    text = spec_text(found, "a run")
    assert "# Stands in: no replica ran out of KV: no end\nkv_tokens = 0" in text


def test_text_and_json_tell_all(found):
    text = calibration_text(found, "runs/x")
    assert text.startswith("runs/x: 30 steps; times are in seconds, lengths in tokens\n")
    assert "The journal cannot tell:" in text
    plain = json.loads(json.dumps(found.plain()))
    assert plain["unidentified"] == [one.key for one in found.parameters if not one.is_identified]
    assert plain["parameters"]["workload.turns"]["num"] > 100


def test_the_same_journal_gives_the_same_values(journal, found):
    assert calibrate(journal).plain() == found.plain()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A short run on disk."""
    folder = tmp_path_factory.mktemp("runs") / "short"
    folder.mkdir()
    short = modelled_run(TRUTH, *LARGE, "queue.batch_size=16", steps=9)
    writer = JournalWriter(folder / "journal.jsonl")
    writer.write_header(short.header)
    for entry in short.entries:
        writer.write_event(entry.seq, entry.t, entry.event, entry.commands, entry.notes)
    writer.close()
    return folder


def test_the_command_writes_a_spec_once(run_dir, tmp_path, capsys):
    out = tmp_path / "spec.toml"
    assert main(["calibrate", str(run_dir), "--out", str(out)]) == 0
    assert f"written: {out}; next: headway plan {out}" in capsys.readouterr().out
    assert load_spec(out).scheduler.queue.batch_size == 16
    assert main(["calibrate", str(run_dir), "--out", str(out)]) == 2
    assert "the file must not exist yet" in capsys.readouterr().err


def test_the_commands_print_json(run_dir, capsys):
    assert main(["calibrate", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 9
    assert main(["whatif", str(run_dir), "queue.bound=1", "--seeds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"] == ["queue.bound=1"]


def test_whatif_refuses_in_one_line_a_problem(run_dir, capsys):
    assert main(["whatif", str(run_dir), "trainer.learning_rate=1", "queue.bond=1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2].partition(": ")[2][:40] for line in lines] == [
        "trainer.learning_rate: cannot be predict",
        "queue.bond: is not a setting (got 1). Di",
    ]
