"""A run in stages: settings change at a resume, are journalled, and hold for every later life."""

import json

import pytest

from tests.integration.conftest import wait_for


@pytest.mark.slow
def test_settings_change_between_stages_and_stay_changed(bench):
    ended = bench.train("stop.steps=1")
    assert ended.code == 0, ended.text
    config = (bench.run_dir / "config.toml").read_text()
    said = bench.headway("resume", bench.run_dir, "run.seed=3", "queue.bond=4").refused()
    assert "run.seed: may not change after the run began" in said
    assert "Did you mean queue.bound?" in said
    said = bench.headway("resume", bench.run_dir, "queue.bound=2").refused()
    assert "is complete" in said
    assert "It goes on with a higher stop.steps" in said

    changes = ["stop.steps=9", "queue.batch_size=12", "queue.group_size=6", "trainer.learning_rate=2e-5"]
    command = bench.start("resume", bench.run_dir, *changes).until_step(2)
    command.interrupt()
    assert command.ended().code == 130
    assert "queue.group_size = 6 from now on (was 4)" in command.out
    told = [(event["key"], event["value"]) for event in bench.entries("SettingChanged")]
    assert told == [
        ("stop.steps", 9),
        ("queue.batch_size", 12),
        ("queue.group_size", 6),
        ("trainer.learning_rate", 2e-5),
    ]
    bench.check()
    done = max(bench.trained())
    ended = bench.headway("resume", bench.run_dir, f"stop.steps={done + 1}")
    assert ended.code == 0, ended.text
    report = bench.check()
    assert (report["outcome"], report["steps"]) == ("steps", done + 1)
    steps = bench.trained()
    assert (len(steps[1]), len(steps[2])) == (8, 12)
    rates = [event["metrics"]["learning_rate"] for event in bench.entries("StepEnded")]
    assert (rates[0], set(rates[1:])) == (1e-5, {2e-5})
    assert (bench.run_dir / "config.toml").read_text() == config
    text = bench.headway("report", bench.run_dir).out
    assert "queue.batch_size = 12 from step 2 on" in text
    assert (
        json.loads(bench.headway("report", bench.run_dir, "--json").out)["settings_changed"][0]["step"] == 1
    )
    assert "is complete" in bench.headway("resume", bench.run_dir).out
    wait_for(lambda: not bench.leftovers(), "nothing left")
