"""headway eval: a run that only evaluates, on a config, a run, and what headway export wrote."""

import json

import pytest

LORA = ("trainer.full=false", "trainer.learning_rate=5e-3", "eval.num_tasks=12", "stop.steps=2")


@pytest.fixture
def trained(bench):
    """A run with LoRA that has evaluated its last version."""
    ended = bench.train(*LORA)
    assert ended.code == 0, ended.text
    return bench


def result(bench, *arguments):
    """Evaluate with --json and check the run that it makes; stdout holds the result alone."""
    ended = bench.headway("eval", *arguments, "--json")
    assert ended.code == 0, ended.text
    found = json.loads(ended.out)
    summary = bench.check(bench.folder / found["run_dir"])
    assert summary["outcome"] == "evaluated"
    return found


def answers(bench, run_dir):
    """Sampled tokens of the evaluated rollouts of a run's newest evaluation, by task."""
    ended = bench.headway("rollouts", run_dir, "--eval", "--limit", "0", "--jsonl", "-")
    assert ended.code == 0, ended.text
    found = {}
    for line in ended.out.splitlines():
        rollout = json.loads(line)
        found[rollout["task_id"]] = rollout["reward"]
    return found


def test_a_run_is_measured_as_it_measured_itself_last(trained):
    bench = trained
    own = bench.check()["rl.eval.points"][-1]
    assert own["step"] == 2
    found = result(bench, bench.run_dir)
    assert found["subject"].endswith("/test, step 2")
    assert (found["tasks"], found["rollouts"], found["failed"]) == (12, 12, 0)
    assert found["reward"]["value"] == pytest.approx(own["reward"], abs=1e-12)
    assert found["pass_at"]["1"]["value"] == pytest.approx(own["pass_at_1"], abs=1e-12)
    run_dir = bench.runs / "eval-test"
    assert not list(run_dir.glob("model/*.safetensors"))
    assert (run_dir / "model" / "tokenizer.json").exists()

    reported = bench.headway("report", run_dir)
    assert reported.code == 0, reported.text
    assert f"pass@1  {100 * own['pass_at_1']:.1f}%" in reported.out
    shown = bench.headway("rollouts", run_dir, "--best", "--show", "--limit", "1")
    assert shown.code == 0, shown.text
    assert "evaluated" in shown.out
    again = bench.headway("resume", run_dir)
    assert again.code == 0
    assert "is complete (evaluated" in again.out


@pytest.mark.slow
def test_an_exported_model_and_the_config_with_other_weights_say_the_same(trained):
    bench = trained
    ended = bench.headway("export", bench.run_dir, "model")
    assert ended.code == 0, ended.text
    limits = ("generator.max_context_tokens=32", "generator.max_answer_tokens=6", "generator.threads=1")
    alone = result(
        bench, "model", "--env", "arithmetic", "levels=[1]", f"run.dir={bench.runs}", *limits, "--tasks", "12"
    )
    swapped = result(bench, bench.config, "--model", "model", "--tasks", "12")
    own = bench.check()["rl.eval.points"][-1]
    for found in (alone, swapped):
        assert found["reward"]["value"] == pytest.approx(own["reward"], abs=1e-12)
        assert found["subject"] == "model, as it is"
    before = result(bench, bench.config, "--tasks", "12", "--against", bench.runs / "eval-model")
    against = before["against"]
    assert against["tasks"] == 12
    assert against["reward"]["value"] == pytest.approx(before["reward"]["value"] - own["reward"], abs=1e-12)
    ended = bench.train("model.path=model", "run.name=next", "stop.steps=1")
    assert ended.code == 0, ended.text


def test_several_sampled_rollouts_a_task_on_levels_and_train_tasks(bench):
    given = ("environment.args.levels=[1,2]", "run.name=mine")
    found = result(bench, bench.config, *given, "-n", "3", "--tasks", "10", "--split", "train")
    assert (found["temperature"], found["split"], found["rollouts_per_task"]) == (1.0, "train", 3)
    assert (found["tasks"], found["rollouts"]) == (10, 30)
    assert list(found["pass_at"]) == ["1", "2", "3"]
    values = [found["pass_at"][k]["value"] for k in found["pass_at"]]
    assert values == sorted(values)
    assert sum(level["tasks"] for level in found["levels"]) == 10
    assert set(answers(bench, bench.runs / "mine")) == {f"train/{index}" for index in range(10)}


def test_failures_are_said_and_not_counted(bench):
    overrides = bench.environment(score="if index == 1:\n    raise ValueError('no such index')\n" + SCORE)
    ended = bench.headway("eval", bench.config, *overrides, "--tasks", "4")
    assert ended.code == 0, ended.text
    assert "1 rollouts failed and are not counted" in ended.out.replace("1 rollout ", "1 rollouts ")
    assert "no such index" in ended.out
    assert "3" in ended.out.split("reward", 2)[1].splitlines()[0]
    bench.check(bench.runs / "eval-test")


SCORE = "return Reward(1.0, ())"


def test_an_environment_that_never_works_fails_the_evaluation(bench):
    overrides = bench.environment(score="raise ValueError('broken')")
    ended = bench.headway("eval", bench.config, *overrides, "--tasks", "40")
    assert ended.code == 1, ended.text
    assert "left no usable rollouts; the last: reward failure" in ended.out + ended.err
    bench.check(bench.runs / "eval-test")


@pytest.mark.slow  # test_lifecycle.py interrupts a training run
def test_interrupted_it_goes_on_anew(bench):
    overrides = bench.environment(rollout="await asyncio.sleep(2.0)", score=SCORE)
    command = bench.start("eval", bench.config, *overrides, "--tasks", "200").until("^evaluating")
    command.interrupt()
    ended = command.ended()
    assert ended.code == 130, ended.text
    run_dir = bench.runs / "eval-test"
    bench.check(run_dir)
    resumed = bench.headway("resume", run_dir, "eval.num_tasks=3")
    assert resumed.code == 0, resumed.text
    assert bench.check(run_dir)["outcome"] == "evaluated"


def test_what_is_refused(bench):
    line = bench.headway("eval", "no-such-thing").refused()
    assert "there is no config, run or model of this name" in line
    assert "--env NAME" in bench.headway("eval", "tiny").refused()
    assert "--step chooses" in bench.headway("eval", bench.config, "--step", "3").refused()
    assert "--tasks" in bench.headway("eval", bench.config).refused()  # eval.num_tasks is 0 there
    line = bench.headway("eval", bench.config, "--tasks", "4", "--model", bench.config).refused()
    assert "--model takes a model or a run" in line
    assert "no-such-env" in bench.headway("eval", "tiny", "--env", "no-such-env").refused()
    usage = bench.headway("eval", "tiny", "--env", "arithmetic", "--greedy", "-n", "4")
    assert usage.code == 2
    assert "--greedy rollouts of a task are all alike" in usage.err
    assert not bench.runs.exists() or not list(bench.runs.iterdir())
