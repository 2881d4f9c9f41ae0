from __future__ import annotations

import json
import math

import pytest

from headway.core import commands as c
from headway.core import events as e
from headway.core import notes as n
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.progress import HEADER_EVERY, WIDTH, Progress, time_left
from headway.telemetry.report import report_json, report_text
from headway.telemetry.text import figures, number, percent, seconds, sparkline

PROMISED = [
    "rl.production.samples_per_s",
    "rl.production.effective_samples_per_s",
    "rl.consumption.active_samples_per_s",
    "rl.consumption.wall_samples_per_s",
    "rl.trainer.wait_fraction",
    "rl.trainer.compute_fraction",
    "rl.trainer.publish_fraction",
    "rl.trainer.mfu",
    "rl.queue.depth.all",
    "rl.queue.depth.signal",
    "rl.staleness.trajectory",
    "rl.staleness.token",
    "rl.staleness.environment",
    "rl.discard.filtered.rollouts",
    "rl.discard.filtered.tokens",
    "rl.discard.stale.rollouts",
    "rl.discard.failed_infrastructure.tokens",
    "rl.group.zero_advantage_fraction",
    "rl.group.all_solved_fraction",
    "rl.group.all_failed_fraction",
    "rl.pass_at.1",
    "rl.pass_at.n",
    "rl.latency.queue_s",
    "rl.latency.sandbox_start_s",
    "rl.latency.prefill_s",
    "rl.latency.decode_s",
    "rl.latency.tool_s",
    "rl.latency.score_s",
    "rl.group.straggler_ratio",
    "rl.rollout.tokens",
    "rl.rollout.turns",
    "rl.rollout.tool_calls",
    "rl.rollout.truncated_fraction",
    "rl.sandbox.start_s",
    "rl.sandbox.error_fraction",
    "rl.cost.usd_per_mtok",
    "rl.driver.overhead_fraction",
    "reward.first",
    "reward.last",
    "eval.first",
    "eval.last",
    "steps",
    "wall_s",
    "num_rollouts",
    "mode",
]


def strict(text):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_json_report_is_one_object_with_every_promised_name(whole_journal):
    report = strict(report_json(RunMetrics.of(whole_journal).summary()))
    assert [name for name in PROMISED if name not in report] == []
    assert report["steps"] == 2


def test_a_number_that_is_not_finite_becomes_null():
    assert strict(report_json({"a": math.nan, "b": [math.inf, 1.0], "c": {"d": -math.inf}})) == {
        "a": None,
        "b": [None, 1.0],
        "c": {"d": None},
    }


def test_the_text_report_says_what_people_ask(whole_journal):
    metrics = RunMetrics.of(whole_journal)
    text = report_text(metrics.summary(), metrics.series())
    assert "The trainer waits 54% of the time (saves checkpoints: " in text
    assert "Rollouts a second: 0.25 made (0.17 accepted), 0.40 used while it computes, " in text
    assert "steps: 2 steps are done" in text
    assert "2 steps, 6 finished train rollouts, 40.0s, async" in text
    assert "driver 2.5% of wall time in CPU seconds, within the target of 3%" in text
    assert "33% of the settled train rollouts, 18% of their sampled tokens" in text
    assert "$0.04 in all, $1,111.11 per million tokens that the loss counted" in text
    for title in ("Outcome", "Learning", "Rates", "Where a rollout's time went", "Staleness", "Discarded"):
        assert title in text
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text


def test_one_evaluation_shows_no_change(kit):
    script = kit.Script()
    script.event(1.0, e.DeadlinePassed(), n.EvalEnded(0, 0, 1, 0, 0.25))
    lines = report_text(script.metrics().summary(), []).splitlines()
    assert ["eval", "0.250", "0.250", "-"] in [line.split() for line in lines]


def test_markup_in_a_users_text_is_shown_as_it_is(kit):
    script = kit.Script()
    script.event(0.0, e.DeadlinePassed(), n.Warned("odd", "[bold]x[/bold] [/nothing]"))
    script.event(1.0, e.DeadlinePassed(), n.Warned("odd", "[red]"))
    text = report_text(script.metrics().summary(), [])
    assert "odd (2 times; the last:) at 1.00s: [red]" in text


def test_the_text_report_shows_the_trainers_numbers_and_the_environments_own(kit):
    script = kit.Script()
    script.start(0.0, "g0.0")
    script.end(1.0, "g0.0", 4)
    script.score(1.0, "g0.0", 1.0, metrics={"literal": 0.25})
    told = {"entropy": 1.25, "mismatch_mean": 2e-6, "mismatch_max": 5e-5, "nonfinite": 0.0}
    told |= {"correction_mean": 0.9, "ratio_max": 0.0}
    script.step(2.0, 1, 0.5, loss=0.125, mask_fraction=0.0, **told)
    script.step(3.0, 2, 0.5, loss=-0.0625, mask_fraction=0.25, nonfinite=1.0)
    metrics = script.metrics()
    text = report_text(metrics.summary(), metrics.series())
    assert "the environment's own measures, means: literal 0.25" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["loss", "0.125", "-0.0625", "0.0312", "0.125"] in lines
    assert ["entropy,", "nats", "1.25", "1.25", "1.25", "1.25"] in lines
    assert ["masked", "share", "0", "0.25", "0.125", "0.25"] in lines
    assert ["correction's", "weight", "0.9", "0.9", "0.9", "0.9"] in lines
    assert "largest ratio" not in text  # all 0
    assert "differ by 2e-06 nats on" in text
    assert "at most 5e-05" in text
    assert "50.0% of the steps were skipped: not finite" in text


@pytest.mark.parametrize(("second", "told"), [(0.01, False), (0.02, True)])
def test_a_step_with_a_large_mismatch_is_told_with_what_helps(kit, second, told):
    script = kit.Script()
    script.step(2.0, 1, 0.5, mismatch_mean=1e-6, mismatch_max=1e-5)
    script.step(3.0, 2, 0.5, mismatch_mean=second, mismatch_max=0.5)
    text = " ".join(report_text(script.metrics().summary(), script.metrics().series()).split())
    assert ("that is much, up to 0.02 in a step's mean: generator.kv_on_update" in text) == told


@pytest.mark.parametrize("num_records", [0, 1, 2, 5, 8, 15, 24, 40])
def test_unfinished_runs_can_be_reported_at_any_moment(kit, num_records):
    script = kit.whole_run()
    script.records = script.records[:num_records]
    metrics = script.metrics(kit.header(model=kit.MODEL, usd_per_hour=1.0))
    assert strict(report_json(metrics.summary()))["outcome"] == "unfinished"
    assert "unfinished" in report_text(metrics.summary(), metrics.series())


def test_metrics_without_a_header_still_report():
    summary = RunMetrics().summary()
    assert summary["mode"] is None
    assert "unfinished" in report_text(summary, [])


def progress_lines(script, header):
    metrics = RunMetrics(header)
    progress = Progress(metrics)
    lines = []
    for record in script.records:
        metrics.feed(record)
        if hasattr(record, "event"):
            lines += progress.after(record)
    return lines


def test_progress_lines_of_a_run(kit):
    lines = progress_lines(kit.whole_run(), kit.header())
    text = "\n".join(lines)
    assert "evaluation of version 0: 0.250, pass@1 0%, 1 rollouts" in text
    assert (
        "evaluation of version 2: 0.750 (+0.500 since version 0), pass@1 0%, 1 rollouts, 1 failed and not "
        "counted" in text
    )
    assert "stopping (steps): 2 steps are done" in text
    assert "finished (steps) after 40.0s" in lines
    head = next(line for line in lines if "made/s" in line)
    first, second = (line for line in lines if line.lstrip().startswith(("1/2", "2/2")))
    assert len(head) == len(first) == len(second) <= WIDTH
    assert first.split() == [
        "1/2",
        "0.750",
        "0.250",
        "75%",
        "0.27",
        "0.50",
        "73%",
        "0",
        "0.0/0",
        "6",
        "50%",
        "15.0s",
    ]
    assert second.split() == [
        "2/2",
        "0.500",
        "-",
        "50%",
        "0.22",
        "0.33",
        "22%",
        "0",
        "0.8/1",
        "10",
        "0%",
        "0.00s",
    ]


def test_columns_never_touch_one_another_however_large_the_rates(kit):
    script = kit.Script()
    script.start(0.0, "g0.0", "g0.1", "g0.2")
    for index in range(3):
        script.quick(0.001, f"g0.{index}", 1.0, 123_456)
    rollouts = tuple(f"g0.{index}" for index in range(3))
    script.event(0.001, e.DeadlinePassed(), *kit.released(1, ("g0",), rollouts, (0,) * 3, ((0, 9),)))
    script.step(0.00198, 1, 1e-7)
    (line,) = (line for line in progress_lines(script, kit.header()) if line.lstrip().startswith("1/2"))
    assert line.split()[4:6] == ["1,515", "30,000,000"]
    assert line.split()[9] == "123,456"
    assert len(line) <= WIDTH


def test_a_reward_of_a_handful_of_rollouts_is_marked_once_in_words(kit):
    script, names = kit.Script(), [f"g0.{index}" for index in range(24)]
    script.start(0.0, *names)
    for step, few in enumerate((names[:3], names[3:5], names[5:13]), start=1):
        for name in few:
            script.quick(float(step), name, -0.125)
        script.step(step + 0.5, step, 0.1)
    lines = progress_lines(script, kit.header(steps=9))
    assert [line.split()[1] for line in lines if "/9 " in line] == ["-0.12*", "-0.12*", "-0.125"]
    assert [line.strip() for line in lines if line.lstrip().startswith("*")] == [
        "* the mean of fewer rollouts than 8: it says little"
    ]


def test_a_small_batch_is_no_handful(kit):
    script = kit.Script()
    rollouts = ("g0.0", "g0.1")
    script.start(0.0, *rollouts)
    for name in rollouts:
        script.quick(1.0, name, 1.0)
    script.event(1.0, e.DeadlinePassed(), *kit.released(1, ("g0",), rollouts, (0,) * 2, ((0, 9),)))
    script.step(2.0, 1, 0.1)
    assert not any("*" in line for line in progress_lines(script, kit.header()))


def test_start_up_says_who_is_waited_for_and_when_all_are_there(kit):
    script = kit.Script()
    script.event(0.0, e.RunStarted())
    script.event(2.0, e.WorkerJoined("environment", "environment0"))
    script.event(3.0, e.WorkerLost("environment", "environment0", "killed"))
    script.event(5.0, e.ReplicaJoined("generator0", 0, 0, 0, 8))
    script.event(6.0, e.WorkerJoined("environment", "environment0"))
    script.event(14.0, e.WorkerJoined("trainer", "trainer"))
    script.event(60.0, e.WorkerJoined("trainer", "trainer"))  # back again, in the middle of the run
    assert progress_lines(script, kit.header()) == [
        "starting: generator, trainer, environment",
        "ready after 14.0s",
    ]


def test_what_is_written_after_the_end_takes_no_time(kit):
    script = kit.whole_run()
    script.stat(46.0, driver_cpu_s=1.0)
    metrics = script.metrics()
    assert "finished (steps) after 40.0s" in progress_lines(script, kit.header())
    assert metrics.summary()["wall_s"] == metrics.now == 40.0


def test_an_evaluation_promises_no_more_tasks_than_there_may_be(kit):
    assert "evaluating version 0 on up to 1 tasks" in progress_lines(kit.whole_run(), kit.header())


def test_the_header_line_comes_again(kit):
    script = kit.Script()
    script.start(0.0, "g0.0")
    for step in range(1, 2 * HEADER_EVERY + 2):
        script.step(float(step), step, 0.5)
    lines = progress_lines(script, kit.header(steps=100))
    assert [index for index, line in enumerate(lines) if "made/s" in line] == [0, 21, 42]


def test_time_left_is_the_nearer_of_steps_and_wall_time(kit):
    script = kit.Script()
    script.start(10.0, "g0.0")
    for step in range(1, 6):
        script.step(10.0 + 2.0 * step, step, 1.0)

    def left(**stop):
        metrics = script.metrics(kit.header(**stop))
        return time_left(metrics, metrics.now)

    assert left(steps=10) == 10.0
    assert left(steps=10, wall_s=25.0) == 5.0
    assert left(steps=6, wall_s=500.0) == 2.0
    assert left(steps=0, wall_s=19.0) == 0.0
    assert left(steps=0) is None


def test_warnings_are_whole_and_do_not_repeat_themselves(kit):
    words = " ".join(["word"] * 40)
    script = kit.Script()
    script.event(1.0, e.DeadlinePassed(), n.Warned("slow", f"two\nlines {words}. Do this"))
    script.event(2.0, e.DeadlinePassed(), n.Warned("slow", f"two\nlines {words}. Do this"))
    script.event(3.0, e.DeadlinePassed(), n.Warned("slow", "other"))
    script.event(4.0, e.RunResumed(1, 3, 75.0))
    script.event(5.0, e.CheckpointDone(3, "p", 0.5))
    lines = progress_lines(script, kit.header())
    assert all(len(line) <= WIDTH for line in lines)
    assert " ".join(" ".join(lines[:2]).split()) == f"warning: two lines {words}. Do this"
    assert lines[1].startswith("    ")
    assert lines[2:] == [
        "warning: other",
        "starting: generator, trainer, environment",
        "resumed at step 3, 1m15s spent so far",
        "checkpoint of step 3 saved in 0.50s",
    ]


def test_why_a_run_ended_is_said_once(kit):
    script = kit.Script()
    script.event(1.0, e.DeadlinePassed(), n.Stopping("wall", "time is up"))
    script.event(2.0, e.DeadlinePassed(), c.Finish("wall", "time is up", False))
    assert progress_lines(script, kit.header()) == [
        "stopping (wall): time is up",
        "finished (wall) after 2.00s",
    ]
    script = kit.Script()  # the command prints the message of a failure
    script.event(6.0, e.DeadlinePassed(), n.Stopping("failed", "gone"), c.Finish("failed", "gone", True))
    assert progress_lines(script, kit.header()) == ["failed after 6.00s"]


def test_a_rollback_is_told_with_the_learning_rate_that_follows(kit):
    header = kit.header()
    header.config["trainer"] = {"learning_rate": 0.012}
    header.queue["guard"] = {"rollback_lr_scale": 0.5, "max_rollbacks": 2}
    script = kit.Script()
    alarm = n.GuardAlarm("reward", 0.0, 0.2, "rollback", 7)
    script.event(1.0, e.DeadlinePassed(), alarm, alarm, n.RolledBackTo(4, 9, 1, "reward is 0"))
    script.event(2.0, e.DeadlinePassed(), c.Train(3, 5, (), 0.5))
    script.event(3.0, e.DeadlinePassed(), alarm, n.RolledBackTo(0, 9, 2, "reward is 0"))
    script.event(4.0, e.DeadlinePassed(), n.RolledBackTo(0, 0, 3, "the trainer was lost"))
    assert progress_lines(script, header) == [
        "rolled back to step 4: reward is 0; the learning rate is now 0.006 (rollback 1 of 2)",
        "rolled back to step 0: reward is 0; the learning rate is now 0.003 (rollback 2 of 2)",
        "rolled back to step 0: the trainer was lost",
    ]


def test_how_numbers_are_written():
    assert [seconds(value) for value in (None, 0.0, 0.0123, 0.0996, 0.25, 42.0, 59.97, 200.0, 7500.0)] == [
        "-",
        "0.00s",
        "12ms",
        "0.10s",
        "0.25s",
        "42.0s",
        "1m00s",
        "3m20s",
        "2h05m",
    ]
    assert percent(0.345) == "34%"
    assert percent(math.nan) == "-"
    assert number(1234.5, 1) == "1,234.5"
    assert [figures(value) for value in (None, 0.0312345, 12.0, 1.5e-7)] == ["-", "0.0312", "12", "1.5e-07"]
    assert sparkline([0.0, None, 1.0]) == "▁ █"
    assert sparkline([0.5, 0.5]) == "▄▄"
    assert len(sparkline([float(value) for value in range(1000)])) <= 60
    assert sparkline([]) == ""
