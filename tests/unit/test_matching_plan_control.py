"""A plan of a run with control: what it settles on, or why that is not predicted."""

import json

import pytest

from headway.cli.main import main
from headway.matching.plan import make_plan
from headway.matching.plan_control import follow_control
from headway.matching.spec_load import load_spec

SPEC = """
[queue]
group_size = 4
batch_size = 16
bound = 2
drop_zero_advantage = false
[eval]
num_tasks = 0
[generator]
replicas = 2
max_running = 128
[workload]
prompt_tokens = 100
turns = 3.0
answer_tokens = 60.0
observation_tokens = 20.0
tool_s = 5.0
tool_sigma = 1.5
[timings]
decode_base_s = 0.01
decode_row_s = 0.0002
decode_token_s = 1e-7
prefill_base_s = 0.001
prefill_token_s = 2e-5
step_base_s = 2.0
step_row_s = 0.0
step_token_s = 1e-5
load_s = 0.0
publish_s = 0.5
apply_s = 0.1
save_s = 1.0
"""
ON = "control.mode=on"


@pytest.fixture
def spec_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "spec.toml"
    file.write_text(SPEC)
    return file


@pytest.fixture
def load(spec_file):
    return lambda *overrides: load_spec(spec_file, overrides)


def test_without_control_there_is_nothing_to_follow(load):
    assert follow_control(load()) is None


def test_a_plan_is_of_what_control_settles_on(load):
    spec = load(ON)
    followed = follow_control(spec)
    assert followed is not None
    assert followed.settles_on == {"oversampling.rollouts_extra": 2.0}
    assert followed.rests
    assert followed.words.startswith("settles on oversampling.rollouts_extra = 2 (simulated: ")
    assert followed.spec.scheduler.oversampling.rollouts_extra == 2
    written, settled = (
        make_plan(one, budget_events=20_000).metrics["rl.consumption.wall_samples_per_s"]
        for one in (spec, followed.spec)
    )
    assert settled > 1.2 * written


def test_settings_that_are_right_are_left_as_they_are(load):
    spec = load(ON, "timings.step_base_s=200", "queue.depth=1", "deadlines.train_s=10000")
    followed = follow_control(spec)
    assert followed is not None
    assert followed.settles_on == {}
    assert followed.words.startswith("leaves the settings as they are (simulated: ")
    assert followed.spec is spec


def test_a_run_too_large_to_simulate_is_not_predicted(load):
    spec = load(ON)
    followed = follow_control(spec, budget_events=1_000)
    assert followed is not None
    assert followed.settles_on is None
    assert followed.words.startswith("not predicted: 30 steps would take some ")
    assert "headway simulate" in followed.words
    assert followed.spec is spec


def test_a_part_of_a_run_settles_for_the_whole(load):
    """Extra groups and rollouts at once are in proportion to a run's size; members of a group are not."""
    spec = load(ON, "queue.batch_size=64", "generator.replicas=4", 'control.levers=["groups_extra"]')
    followed = follow_control(spec, budget_events=16_000)
    assert followed is not None
    assert "of a part of 1/" in followed.words
    assert followed.settles_on
    part = int(followed.words.partition("1/")[2].partition(")")[0])
    assert followed.settles_on["oversampling.groups_extra"] % part == 0


def test_the_controllers_bounds_hold_in_the_plan(load):
    followed = follow_control(load(ON, "control.max_rollouts_extra=1"))
    assert followed is not None
    assert followed.settles_on is not None
    assert followed.settles_on.get("oversampling.rollouts_extra", 0) <= 1


def test_with_bound_0_only_oversampling_moves(load):
    followed = follow_control(load(ON, "queue.bound=0"))
    assert followed is not None
    assert followed.settles_on
    assert set(followed.settles_on) <= {"oversampling.rollouts_extra", "oversampling.groups_extra"}


def test_the_answer_says_what_control_settles_on(spec_file, capsys):
    assert main(["plan", str(spec_file), ON]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("control settles on oversampling.rollouts_extra = 2")
    assert main(["plan", str(spec_file), ON, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)["plan.control"]
    assert plain["settles_on"] == {"oversampling.rollouts_extra": 2.0}
    assert plain["rests"] is True
    assert main(["plan", str(spec_file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan.control"] is None


def test_the_search_for_settings_says_that_it_leaves_control_out(spec_file, capsys):
    arguments = ["hardware.trainer.count=2", "hardware.generator.count=2", "--optimise", "--gpus", "4"]
    assert main(["plan", str(spec_file), ON, *arguments]) == 0
    assert "control.mode is on" in capsys.readouterr().out
