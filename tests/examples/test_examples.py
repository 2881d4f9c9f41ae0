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
WITH_A_JUDGE = sorted(path.name for path in (ROOT / "examples" / "judge").glob("*.toml"))  # needs its server
CONFIGS = sorted(
    path.relative_to(ROOT / "examples")
    for path in (ROOT / "examples").rglob("*.toml")
    if path.name not in {*AFTER_ANOTHER, *WITH_A_JUDGE}
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
    assert "19 ok, 0 warnings, 0 errors" in said
    assert "\nverified: " in said
    assert (tmp_path / "report.html").stat().st_size > 1_000_000
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert (tmp_path / "runs" / "on-the-best" / "model" / "model.safetensors").is_file()
