"""A run that goes on is asked: its settings change, it evaluates, it stops; and all of it replays."""


def told(bench, *arguments):
    """What a command says that the run obeyed."""
    ended = bench.headway(*arguments)
    assert ended.code == 0, ended.text
    return ended.out.splitlines()


def test_a_run_is_paused_changed_evaluated_and_stopped_from_elsewhere(bench):
    run = bench.run_dir
    command = bench.start("train", bench.config, "stop.steps=100000").until_step(2)
    assert told(bench, "set", run, "guard.paused=true") == ["guard.paused = True from now on (was False)"]
    command.until("guard.paused = True from now on").until("warning: guard.paused is true")
    assert "── paused" in "\n".join(told(bench, "watch", run, "--once"))
    refused = bench.headway("set", run, "queue.bond=4", "trainer.learning_rate=1e-3").refused()
    assert "Did you mean queue.bound?" in refused
    assert "trainer.learning_rate: takes effect at a resume only" in refused
    refused = bench.headway("eval-now", run).refused()
    assert "eval.num_tasks: an evaluation needs tasks" in refused
    told(bench, "set", run, "guard.paused=false", "queue.batch_size=4", "eval.num_tasks=4")
    told(bench, "eval-now", run)
    command.until("evaluation of version")
    assert told(bench, "stop", run, "--wait") == ["the run finishes its step, then saves and ends"]
    ended = command.ended()
    assert ended.code == 0, ended.text
    assert f"`headway resume {run}` goes on" in ended.out
    assert "stopping (interrupted): headway stop" in ended.out
    assert bench.check()["outcome"] == "interrupted"
    keys = [event["key"] for event in bench.entries("SettingChanged")]
    assert keys == ["guard.paused", "guard.paused", "queue.batch_size", "eval.num_tasks"]
    assert "no process drives the run" in bench.headway("stop", run).refused()

    done = max(bench.trained())
    ended = bench.headway("resume", run, f"stop.steps={done + 1}")
    assert ended.code == 0, ended.text
    assert len(bench.trained()[done + 1]) == 4  # the batch size that was set
    bench.check()
