"""Every example runs: two steps of each config and SPEC, and the tour of commands. `make test-examples`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.runtime.replay import verify

pytestmark = [pytest.mark.examples, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
AFTER_ANOTHER = {"prune.toml"}  # needs what a run of its neighbour leaves
OTHERWISE_TESTED = {
    "mini_swe_agent.toml",  # in test_mini_swe_agent.py, with a policy that can play it
    "learn.toml",  # below: without its warm start it would look for a solved task for long
}
WITH_A_JUDGE = sorted(path.name for path in (ROOT / "examples" / "judge").glob("*.toml"))  # needs its server
CONFIGS = sorted(
    path.relative_to(ROOT / "examples")
    for path in (ROOT / "examples").rglob("*.toml")
    if path.name not in {*AFTER_ANOTHER, *OTHERWISE_TESTED, *WITH_A_JUDGE}
    and not {"cases", "verifiers"} & {*path.parts}  # the latter: test_verifiers.py
)
SPECS = sorted((ROOT / "examples" / "cases").glob("*.toml"))
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def ran(*command, cwd):
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_two_steps_of_an_example(config, tmp_path):
    ran("headway", "train", str(ROOT / "examples" / config), "--smoke", f"run.dir={tmp_path}", cwd=ROOT)
    (run,) = tmp_path.iterdir()
    assert verify(run).ok


def test_a_data_file_and_a_reward_without_a_config(tmp_path):
    folder = shutil.copytree(ROOT / "examples" / "dataset", tmp_path / "dataset")
    data = ("--model", "tiny", "--data", "sums.jsonl", "--reward", "reward.py:near")
    short = ("generator.max_context_tokens=32", "generator.max_answer_tokens=8", "queue.batch_size=16")
    assert "The run can start" in ran("headway", "check", *data, *short, cwd=folder)
    said = ran("headway", "train", *data, *short, "--smoke", cwd=folder)
    assert 'reward = "reward.py:near"' in said
    run = folder / "runs" / "sums"
    assert verify(run).ok
    assert "off by" in ran(
        "headway", "env", "try", str(run / "config.toml"), "--temperature", "0", cwd=tmp_path
    )
    ran("headway", "resume", str(run), "stop.steps=3", cwd=tmp_path)
    assert verify(run).ok


def test_a_new_environment_is_checked_tested_and_trained_as_it_was_written(tmp_path):
    ran("headway", "env", "new", "my-game", cwd=tmp_path)
    ran("headway", "env", "check", "my-game/my_game.py", "--strict", cwd=tmp_path)
    ran(sys.executable, "-m", "pytest", "-q", "my-game", cwd=tmp_path)
    ran("headway", "train", "my-game/my_game.toml", "--smoke", "run.dir=runs", cwd=tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    assert verify(run).ok


@pytest.mark.parametrize("spec", SPECS, ids=lambda path: path.stem)
def test_two_steps_of_a_spec(spec, tmp_path):
    assert "samples/s trained" in ran("headway", "plan", str(spec), cwd=tmp_path)
    ran("headway", "simulate", str(spec), "--steps", "2", "--run", str(tmp_path / "run"), cwd=tmp_path)
    assert verify(tmp_path / "run").ok


def test_a_value_learned_from_one_run_prunes_another(tmp_path):
    folder = shutil.copytree(ROOT / "examples" / "value_prune", tmp_path / "value_prune")
    ran("headway", "train", "sums.toml", "stop.steps=5", "run.name=first", cwd=folder)
    ran(sys.executable, "value.py", "runs/first", cwd=folder)
    ran("headway", "train", "prune.toml", "--smoke", "run.name=second", cwd=folder)
    assert verify(folder / "runs" / "second").ok


@pytest.mark.parametrize("config", WITH_A_JUDGE)
def test_two_steps_with_a_judge(config, tmp_path):
    folder = ROOT / "examples" / "judge"
    server = subprocess.Popen(
        [sys.executable, str(folder / "server.py"), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        url = server.stdout.readline().strip()
        ran(
            "headway",
            "train",
            str(folder / config),
            "--smoke",
            f"run.dir={tmp_path}",
            f"judge.url={url}",
            cwd=ROOT,
        )
    finally:
        server.kill()
        server.wait()
    (run,) = tmp_path.iterdir()
    assert verify(run).ok
    assert list((run / "judge_cache").rglob("*.json"))


def test_the_tour_of_all_commands(tmp_path):
    said = ran(str(ROOT / "examples" / "tour.sh"), str(tmp_path), cwd=tmp_path)
    assert "20 ok, 0 warnings, 0 errors" in said
    assert "\nverified: " in said
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert (tmp_path / "runs" / "on-the-best" / "model" / "model.safetensors").is_file()


def test_a_scripted_policy_tries_bugs_and_the_maker_makes_some(tmp_path):
    bugfix = ROOT / "examples" / "bugfix"
    said = ran(
        sys.executable, "examples/bugfix/scripted.py", "examples/bugfix/tasks.jsonl", "--count", "4", cwd=ROOT
    )
    assert [line.split(":")[0] for line in said.splitlines()] == [f"level {level}" for level in range(1, 6)]
    package = ("bugfix", str(bugfix / "wordkit"), "--runner", "unittest", "--tasks", "3", "--several", "0")
    assert "3 tasks in" in ran("headway", "env", "make", *package, "--out", str(tmp_path), cwd=ROOT)
    assert len((tmp_path / "tasks.jsonl").read_text().splitlines()) == 3


def test_a_model_is_shown_how_bugs_are_mended_and_goes_on_by_itself(tmp_path):
    bugfix, written = ROOT / "examples" / "bugfix", tmp_path / "written.jsonl"
    ran(sys.executable, str(bugfix / "written.py"), str(bugfix / "tasks.jsonl"), str(written), cwd=tmp_path)
    learn, folder = str(bugfix / "learn.toml"), f"run.dir={tmp_path}"
    ran(
        "headway", "sft", learn, "model.path=tiny", f"sft.data={written}", "sft.steps=2", folder, cwd=tmp_path
    )
    trained = (f"model.path={tmp_path}/learn/model", folder, "run.name=after")
    # The tiny model's tokens are bytes, and it solves nothing in two steps.
    small = (
        "generator.max_context_tokens=1024",
        "environment.args.max_lines=12",
        "queue.drop_zero_advantage=false",
        "eval.num_tasks=4",
    )
    ran("headway", "train", learn, *trained, *small, "stop.steps=2", cwd=tmp_path)
    assert verify(tmp_path / "after").ok
