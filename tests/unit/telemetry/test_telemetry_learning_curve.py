"""reward.first and reward.last, and what a resume takes back."""

from __future__ import annotations

import pytest

from headway.core import commands as c
from headway.core import events as e
from headway.core import notes as n


def run_of(kit, counts, rewards):
    """Return a script with one step for each count, that many rollouts scored in it with that reward."""
    script = kit.Script()
    for step, (count, reward) in enumerate(zip(counts, rewards, strict=True), start=1):
        names = [f"g{step}.{index}" for index in range(count)]
        script.start(float(step), *names)
        for name in names:
            script.quick(step + 0.5, name, reward)
        script.step(step + 0.75, step, 0.1)
    return script


def test_a_tenth_of_the_steps_rounded_up(kit):
    # 11 steps: a tenth is 2 steps
    rewards = [0.0, 1.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 2.0, 4.0]
    summary = run_of(kit, [32] * 11, rewards).metrics().summary()
    assert summary["reward.first"] == 0.5
    assert summary["reward.last"] == 3.0


def test_an_end_widens_until_it_has_32_rollouts(kit):
    counts = [16, 15, 1, 9, 9, 9, 9, 30, 1, 1]
    rewards = [0.0, 0.0, 1.0, 9.0, 9.0, 9.0, 9.0, 2.0, 4.0, 6.0]
    summary = run_of(kit, counts, rewards).metrics().summary()
    assert summary["reward.first"] == pytest.approx(1 / 32)
    assert summary["reward.last"] == pytest.approx((6 + 4 + 30 * 2) / 32)


def test_a_short_run_uses_all_its_rollouts_for_both_ends(kit):
    summary = run_of(kit, [4, 4], [0.0, 1.0]).metrics().summary()
    assert summary["reward.first"] == summary["reward.last"] == 0.5


def test_a_rollout_belongs_to_the_step_in_progress_when_it_was_scored(kit):
    script = kit.Script()
    script.start(0.0, *[f"g0.{index}" for index in range(80)])
    for index in range(32):
        script.quick(1.0, f"g0.{index}", 0.25)
    script.step(2.0, 1, 0.1)
    for index in range(32, 64):
        script.quick(3.0, f"g0.{index}", 0.75)
    script.step(4.0, 2, 0.1)
    for index in range(64, 80):
        script.quick(5.0, f"g0.{index}", 9.0)  # step 3 never ends
    summary = script.metrics().summary()
    assert (summary["reward.first"], summary["reward.last"]) == (0.25, 0.75)
    assert summary["num_rollouts"] == 80


def test_filtered_rollouts_count_and_evaluation_does_not(kit):
    script = kit.Script()
    script.start(0.0, "g0.0", "g0.1")
    script.start(0.0, "v0.0", purpose="eval")
    script.quick(1.0, "v0.0", 50.0, 4, *kit.settled("evaluated", {"v0.0": 4}))
    script.quick(1.0, "g0.0", 1.0)
    script.quick(1.0, "g0.1", 1.0, 4, kit.group_settled("g0", "filtered", [1.0, 1.0]))
    script.event(1.5, e.DeadlinePassed(), *kit.settled("filtered", {"g0.0": 4, "g0.1": 4}))
    script.step(2.0, 1, 0.5)
    assert script.metrics().summary()["reward.first"] == 1.0


def test_without_a_step_there_is_no_curve(kit):
    script = kit.Script()
    script.start(0.0, "g0.0")
    script.quick(1.0, "g0.0", 1.0)
    summary = script.metrics().summary()
    assert summary["reward.first"] is None
    assert summary["reward.last"] is None
    assert summary["eval.first"] is None


@pytest.fixture
def resumed(kit):
    """Three steps, killed; resumed from the checkpoint of step 1, then steps 2 and 3 again."""
    script = kit.Script()

    def step(t, number, reward, lineage, names):
        trained = kit.settled("trained", dict.fromkeys(names, 4))
        script.event(
            t, e.DeadlinePassed(),
            *kit.released(number, (f"g{number}",), names, (lineage,) * 2, ((lineage, 8),)),
        )  # fmt: skip
        script.step(t + 1.0, number, 1.0, *trained, num_tokens=16, num_trained=8)

    for number in (1, 2, 3):
        names = (f"g{number}.0", f"g{number}.1")
        script.start(number * 10.0, *names)
        script.quick(number * 10.0 + 2, names[0], number / 10)
        script.quick(number * 10.0 + 2, names[1], number / 10)
        signal = e.GroupSignal(f"g{number}", ((names[0], 1.0), (names[1], -1.0)))
        script.event(number * 10.0 + 3, signal, kit.group_settled(f"g{number}", "queued", [number / 10] * 2))
        step(number * 10.0 + 4, number, number / 10, 0, names)
        if number == 1:
            script.event(15.0, e.CheckpointDone(1, "step-1", 0.5))
        script.event(number * 10.0 + 6, e.DeadlinePassed(), n.EvalEnded(0, number, 1, 0, number / 10))
    script.start(36.0, "g4.0", "g4.1")
    script.stat(37.0, driver_cpu_s=2.0)
    revived = [n.RolloutRevived(f"g{number}.{index}", f"g{number}") for number in (2, 3) for index in (0, 1)]
    script.event(37.0, e.RunResumed(1, 1, 37.0), *revived)
    script.event(38.0, e.ReplicaJoined("r0", 0, 1, 1, 8))
    script.start(40.0, "g4.0", "g4.1", attempt=1)
    step(42.0, 2, 0.2, 1, ("g2.0", "g2.1"))
    return script


def test_lost_steps_leave_the_series_and_their_rollouts_go_back(kit, resumed):
    metrics = resumed.metrics()
    assert [(row["step"], row["t"]) for row in metrics.series()] == [(1, 15.0), (2, 43.0)]
    summary = metrics.summary()
    assert summary["steps"] == 2
    assert summary["num_resumes"] == 1
    assert summary["outcome"] == "unfinished"
    assert summary["rl.trainer.lost_compute_s"] == 2.0
    assert summary["rl.cost.trained_tokens"] == 16
    assert summary["conservation.by_fate"] == {"trained": 4}
    assert summary["conservation.open"] == 4
    assert summary["conservation.settled_twice"] == 0
    assert summary["rl.staleness.token"]["counts"] == {"0": 8, "1": 8}
    assert summary["eval.last"] == 0.1


def test_the_window_leaves_the_gap_between_two_lives_out(resumed):
    summary = resumed.metrics().summary()
    assert summary["window_s"] == (37.0 - 10.0) + (43.0 - 40.0)
    assert summary["rl.trainer.compute_fraction"] == 4 / 30
    assert summary["rl.trainer.checkpoint_fraction"] == 0.5 / 30
    assert summary["rl.production.samples_per_s"] == 6 / 30
    shares = [summary[f"rl.trainer.{name}_fraction"] for name in ("wait", "compute", "publish")]
    assert sum(shares) == pytest.approx(1.0)


def test_rollouts_of_surviving_versions_keep_their_place_in_the_curve(resumed):
    # step 2 of the second life: 0.2 was scored while step 2 was in progress, by version 1 or older
    assert [row["reward"] for row in resumed.metrics().series()] == [pytest.approx(0.1), pytest.approx(0.2)]


def test_after_a_resume_the_queue_holds_what_was_revived(resumed):
    metrics = resumed.metrics()
    assert metrics.depth.signal.value == 1  # g3; g2 trained again
    assert metrics.depth.all.value == 2  # and g4, running


def test_a_batch_whose_step_never_ended_waits_again(kit):
    script = kit.Script()
    script.start(0.0, "g0.0", "g0.1")
    script.event(2.0, e.GroupSignal("g0", (("g0.0", 1.0),)), kit.group_settled("g0", "queued", [1.0, 0.0]))
    script.event(3.0, e.DeadlinePassed(), *kit.released(1, ("g0",), ("g0.0", "g0.1"), (0, 0), ((0, 8),)))
    assert script.metrics().depth.signal.value == 0
    script.event(5.0, e.RunResumed(1, 0, 5.0))
    assert script.metrics().depth.signal.value == 1


def test_an_interrupted_run_that_goes_on_is_unfinished_again(kit):
    script = kit.Script()
    script.start(0.0, "g0.0")
    script.quick(1.0, "g0.0", 1.0)
    stop = [n.Stopping("interrupted", "Ctrl-C"), *kit.settled("carried", {"g0.0": 4})]
    script.event(2.0, e.StopAsked("Ctrl-C"), *stop, c.Finish("interrupted", "Ctrl-C", False))
    assert script.metrics().summary()["outcome"] == "interrupted"
    assert script.metrics().summary()["conservation.ok"]
    script.event(3.0, e.RunResumed(1, 0, 2.0), n.RolloutRevived("g0.0", "g0"))
    summary = script.metrics().summary()
    assert summary["outcome"] == "unfinished"
    assert summary["conservation.open"] == 1
