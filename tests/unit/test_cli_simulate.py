"""headway simulate: a run's directory without a model, which everything that reads runs can read."""

import json

import pytest

from headway.cli.main import main
from headway.core.events import SettingChanged
from headway.matching.spec_load import load_spec
from headway.runtime.replay import verify
from headway.runtime.simulated_run import trainer_peak
from headway.telemetry.journal import read_journal
from headway.telemetry.records import Entry
from headway.telemetry.rollout_table import rollout_table

SPEC = """
[queue]
group_size = 4
batch_size = 16
bound = 2
[eval]
num_tasks = 0
[stop]
steps = 4
[workload]
prompt_tokens = 100
turns = 3.0
turns_sigma = 0.4
answer_tokens = 60.0
observation_tokens = 20.0
tool_s = 0.5
score_s = 0.2
uses_sandbox = true
[fleet]
start_s = 0.5
start_sigma = 0.5
[timings]
decode_base_s = 0.01
decode_row_s = 0.0002
decode_token_s = 1e-7
prefill_base_s = 0.001
prefill_token_s = 2e-5
step_base_s = 1.0
step_row_s = 0.01
step_token_s = 1e-4
load_s = 0.1
publish_s = 0.5
apply_s = 0.2
save_s = 1.0
"""


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.toml"
    path.write_text(SPEC)
    return path


def test_a_simulated_run_is_read_as_any_other(spec, tmp_path, capsys):
    assert main(["simulate", str(spec)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("run directory: runs/small\nsteps: 4 steps in ")
    run = tmp_path / "runs" / "small"
    journal = read_journal(run)
    assert journal.header.simulated
    assert journal.header.machine == "simulated from small, seed 0: no model ran"
    assert verify(run).ok
    assert {record.step for record in rollout_table(run) if record.fate == "trained"} == {1, 2, 3, 4}
    assert main(["report", str(run)]) == 0
    assert "4 steps" in capsys.readouterr().out
    assert main(["report", str(run), "--html", str(tmp_path / "page.html")]) in (0, 2)
    capsys.readouterr()
    assert main(["rollouts", str(run)]) == 0


def test_the_same_seed_gives_the_same_journal(spec, tmp_path):
    for name, seed in (("one", "7"), ("two", "7"), ("three", "8")):
        assert main(["simulate", str(spec), "--run", str(tmp_path / name), "--seed", seed]) == 0
    lines = [
        (tmp_path / name / "journal.jsonl").read_bytes().split(b"\n", 1)[1]
        for name in ("one", "two", "three")
    ]
    assert lines[0] == lines[1] != lines[2]


def test_figures_alone(spec, tmp_path, capsys):
    assert main(["simulate", str(spec), "queue.bound=0", "--steps", "2", "--no-run", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["run"], printed["steps"], printed["mode"]) == (None, 2, "sync")
    assert printed["rl.staleness.token"]["max"] == 0
    assert not (tmp_path / "runs").exists()


def test_what_cannot_be(spec, tmp_path, capsys):
    assert main(["simulate", str(spec), "--no-run", "--run", "there"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    (tmp_path / "there").mkdir()
    assert main(["simulate", str(spec), "--run", str(tmp_path / "there")]) == 2
    assert "--run: exists already" in capsys.readouterr().err


def test_a_simulated_run_is_not_resumed(spec, tmp_path, capsys):
    assert main(["simulate", str(spec), "--steps", "1"]) == 0
    assert main(["resume", str(tmp_path / "runs" / "small")]) == 2
    assert "simulated" in capsys.readouterr().err


def test_control_acts_in_a_simulated_run_and_says_what_it_changed(spec, tmp_path, capsys):
    arguments = ["simulate", str(spec), "--steps", "40", "queue.bound=4", "queue.depth=0"]
    assert main([*arguments, "control.mode=on", "--run", "on"]) == 0
    out = capsys.readouterr().out
    decided = [entry.event for entry in read_journal(tmp_path / "on") if isinstance(entry, Entry)]
    decided = [event for event in decided if isinstance(event, SettingChanged)]
    assert decided
    assert {event.by for event in decided} == {"control"}
    assert out.count("control     ") == len(decided)
    assert f"control     {decided[0].key} = {decided[0].value}: " in out


def test_control_that_changes_nothing_says_so(spec, capsys):
    assert main(["simulate", str(spec), "--steps", "1", "control.mode=on", "--no-run"]) == 0
    assert "control     changed nothing" in capsys.readouterr().out


def test_the_trainers_peak_is_that_of_its_accelerators(spec):
    with spec.open("a") as file:
        file.write(
            '[model]\npath = "Qwen/Qwen3-8B"\n[hardware.trainer]\naccelerator = "H200 SXM"\ncount = 8\n'
        )
    assert trainer_peak(load_spec(spec, ())) == pytest.approx(8 * 989.5e12, rel=0.01)
