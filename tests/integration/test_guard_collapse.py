"""The guard on a real model whose training collapses: a learning rate 100 times too high, a wrong sign."""

import pytest

from tests.integration.conftest import ROOT

EXAMPLE = ROOT / "examples" / "guarded.toml"


def train(bench, name, *overrides):
    where = (f"run.dir={bench.runs}", f"run.name={name}", "stop.wall_s=0")
    return bench.headway("train", EXAMPLE, *where, *overrides)


@pytest.mark.slow
def test_a_learning_rate_100_times_too_high_is_rolled_back_and_the_run_learns(bench):
    ended = train(bench, "hot", "trainer.learning_rate=3e-2", "guard.rollback_lr_scale=0.01")
    assert ended.code == 0, ended.text
    report = bench.check(bench.runs / "hot")
    assert sum(report["rl.guard.alarms"].values()) >= 1
    scales = [command["lr_scale"] for command in bench.entries("Train", bench.runs / "hot")]
    assert scales[0] == 1.0
    assert scales[-1] <= 0.01
    assert (report["outcome"], report["steps"]) == ("steps", 30)
    assert report["eval.last"] > report["eval.first"]


@pytest.mark.slow
def test_advantages_of_the_wrong_sign_stop_the_run_by_name(bench):
    hook = bench.folder / "wrong.py"
    hook.write_text(
        "def backwards(rewards, settings):\n"
        "    mean = sum(rewards) / len(rewards)\n"
        "    return [mean - reward for reward in rewards]\n"
    )
    ended = train(bench, "wrong", f"algorithm.advantage={hook}:backwards", "guard.action=stop")
    assert ended.code == 0, ended.text
    report = bench.check(bench.runs / "wrong")
    assert report["outcome"] == "guard"
    assert "reward" in report["message"]


@pytest.mark.slow
def test_a_run_that_learns_is_left_alone(bench):
    ended = train(bench, "calm")
    assert ended.code == 0, ended.text
    report = bench.check(bench.runs / "calm")
    assert report["outcome"] == "steps"
    assert report["eval.last"] > 0.8
