from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import commands as c
from headway.core import events as e
from headway.core import notes as n
from headway.telemetry.metrics import LATENCY_PARTS, RunMetrics
from headway.telemetry.rollouts import Rollouts
from headway.telemetry.tails import Tails


@pytest.fixture
def summary(whole_journal):
    return RunMetrics.of(whole_journal).summary()


def test_outcome_and_counts(summary):
    assert summary["outcome"] == "steps"
    assert summary["message"] == "2 steps are done"
    assert not summary["failed"]
    assert summary["mode"] == "async"
    assert summary["steps"] == 2
    assert summary["wall_s"] == 40.0
    assert summary["num_rollouts"] == 6


@pytest.mark.parametrize(("bound", "mode"), [(0, "sync"), (1, "one-step-off"), (2, "async"), (8, "async")])
def test_the_mode_is_named_after_the_bound(kit, bound, mode):
    assert RunMetrics(kit.header(bound=bound)).summary()["mode"] == mode


def test_rates_are_over_the_window_from_the_first_train_rollout_to_the_last_step(summary):
    assert summary["window_s"] == 24.0
    assert summary["rl.production.samples_per_s"] == 6 / 24
    assert summary["rl.production.acceptance_fraction"] == pytest.approx(4 / 6)
    assert summary["rl.production.effective_samples_per_s"] == pytest.approx(4 / 24)
    assert summary["rl.consumption.active_samples_per_s"] == 4 / 10
    assert summary["rl.consumption.wall_samples_per_s"] == 4 / 24


def test_the_trainers_shares_sum_to_one_and_leave_the_final_publish_out(summary):
    wait, compute, publish = (
        summary[f"rl.trainer.{name}_fraction"] for name in ("wait", "compute", "publish")
    )
    assert compute == 10 / 24
    assert publish == 1 / 24
    assert wait == pytest.approx(13 / 24)
    assert wait + compute + publish == pytest.approx(1.0)
    assert summary["rl.trainer.checkpoint_fraction"] == 0.0


def test_mfu_uses_real_lengths_and_computing_time(summary, kit):
    first = kit.MODEL.train_flops(40, (10**2 + 14**2) / 24)
    second = kit.MODEL.train_flops(50, (10**2 + 18**2) / 28)
    assert first == pytest.approx(40 * (6 * 44 + 12 * 296 / 24))
    assert summary["rl.trainer.flops_per_s"] == pytest.approx((first + second) / 10)
    assert summary["rl.trainer.mfu"] == pytest.approx((first + second) / 10 / 10_000)
    assert "recompute excluded" in summary["rl.trainer.mfu_convention"]


def test_a_lora_step_counts_no_weight_gradients_of_the_base(kit):
    header = kit.header(model=kit.MODEL, lora_params=8)
    summary = kit.whole_run().metrics(header).summary()
    first = kit.MODEL.lora_train_flops(40, 296 / 24, 8)
    second = kit.MODEL.lora_train_flops(50, 424 / 28, 8)
    assert summary["rl.trainer.flops_per_s"] == pytest.approx((first + second) / 10)
    assert summary["rl.trainer.mfu"] is None


def test_queue_depth_is_weighted_by_time(summary):
    # all: 2 groups from 10 to 21, 1 until 28, 0 until 34; with signal: 1 from 20 to 21
    assert summary["rl.queue.depth.all"] == {"mean": pytest.approx((22 + 7) / 24), "max": 2.0}
    assert summary["rl.queue.depth.signal"] == {"mean": pytest.approx(1 / 24), "max": 1.0}
    assert summary["rl.queue.refills"] == 1


def test_staleness_on_three_levels(summary):
    assert summary["rl.staleness.trajectory"] == {"counts": {"0": 2, "1": 2}, "mean": 0.5, "max": 1}
    assert summary["rl.staleness.token"] == {"counts": {"0": 21, "1": 15}, "mean": 15 / 36, "max": 1}
    # g0.0 acts on its own version's sandbox; g2.0 ends its second turn with version 1 on version 0's edits
    assert summary["rl.staleness.environment"] == {"counts": {"0": 1, "1": 1}, "mean": 0.5, "max": 1}


def test_discards_are_told_by_reason_and_leave_evaluation_out(summary):
    assert summary["rl.discard.filtered.rollouts"] == 2
    assert summary["rl.discard.filtered.tokens"] == 8
    assert summary["rl.discard.stale.rollouts"] == 0
    assert summary["rl.discard.rollout_fraction"] == 2 / 6
    assert summary["rl.discard.token_fraction"] == 8 / 44
    assert "rl.discard.trained.rollouts" not in summary
    assert "rl.discard.evaluated.rollouts" not in summary


def test_groups_and_solve_rates(summary):
    assert summary["rl.group.zero_advantage_fraction"] == 1 / 3
    assert summary["rl.group.all_solved_fraction"] == 1 / 3
    assert summary["rl.group.all_failed_fraction"] == 0.0
    assert summary["rl.pass_at.1"] == 4 / 6
    assert summary["rl.pass_at.n"] == 1.0
    # g0: 10 over 7.5; g1: 12 over 12; g2: 6 over 5.5
    straggler = summary["rl.group.straggler_ratio"]
    assert straggler["max"] == pytest.approx(10 / 7.5)
    assert straggler["mean"] == pytest.approx((10 / 7.5 + 1 + 6 / 5.5) / 3)


def test_a_rollouts_latency_parts_are_exact(kit):
    script = kit.Script()
    script.records = kit.whole_run().records[:15]  # up to the score of g0.0
    summary = script.metrics().summary()
    assert summary["num_rollouts"] == 1
    expected = {"queue": 2.0, "sandbox_start": 0.6, "prefill": 0.3, "decode": 1.5, "tool": 0.3, "score": 0.3}
    for part, value in expected.items():
        assert summary[f"rl.latency.{part}_s"]["mean"] == pytest.approx(value), part
    assert summary["rl.latency.end_to_end_s"]["max"] == 5.0


def test_mean_latency_parts_sum_to_the_mean_end_to_end_latency(summary):
    whole = summary["rl.latency.end_to_end_s"]
    assert whole["max"] == 12.0
    assert whole["mean"] == pytest.approx((5 + 10 + 12 + 12 + 5 + 6) / 6)
    assert sum(summary[f"rl.latency.{name}"]["mean"] for name in LATENCY_PARTS) == pytest.approx(
        whole["mean"]
    )


def test_rollout_lengths(summary):
    assert summary["rl.rollout.tokens"]["mean"] == (6 + 10 + 4 + 4 + 6 + 14) / 6
    assert summary["rl.rollout.tokens"]["max"] == 14
    assert summary["rl.rollout.turns"]["mean"] == 8 / 6
    assert summary["rl.rollout.tool_calls"]["mean"] == 2 / 6
    assert summary["rl.rollout.truncated_fraction"] == 1 / 6


def test_sandboxes_weights_evaluation_cost_and_driver(summary):
    assert summary["rl.sandbox.start_s"]["mean"] == 0.5
    assert summary["rl.sandbox.error_fraction"] == 0.0
    assert summary["rl.weights.publish_s"]["max"] == 3.0
    assert summary["rl.weights.pause_s"]["mean"] == 1.0
    assert summary["eval.first"] == 0.25
    assert summary["eval.last"] == 0.75
    assert summary["rl.eval.num_evaluations"] == 2
    assert summary["rl.eval.num_rollouts"] == 2
    assert summary["rl.eval.num_failed"] == 1
    assert summary["rl.cost.usd"] == pytest.approx(0.04)
    assert summary["rl.cost.usd_per_mtok"] == pytest.approx(0.04 / 36e-6)
    assert "loss counted" in summary["rl.cost.denominator"]
    assert summary["rl.driver.overhead_fraction"] == 1 / 40
    assert summary["rl.driver.scheduler_s"] == 0.5
    assert summary["rl.driver.journal_s"] == 0.25


def test_conservation_of_rollouts_and_tokens(summary):
    assert summary["conservation.started"] == 8
    assert summary["conservation.by_fate"] == {"trained": 4, "filtered": 2, "evaluated": 2}
    assert summary["conservation.tokens_by_fate"] == {"trained": 36, "filtered": 8, "evaluated": 6}
    assert summary["conservation.open"] == 0
    assert summary["conservation.ok"]


def test_a_lost_and_a_twice_settled_rollout_break_conservation(kit):
    script = kit.Script()
    script.start(0.0, "g0.0", "g0.1")
    script.quick(1.0, "g0.0", 1.0, 4, *kit.settled("unused", {"g0.0": 4}))
    open_run = script.metrics().summary()
    assert open_run["conservation.open"] == 1
    assert open_run["conservation.ok"]
    script.event(2.0, e.DeadlinePassed(), c.Finish("wall", "", False))
    assert not script.metrics().summary()["conservation.ok"]
    script.records.pop()
    script.event(3.0, e.DeadlinePassed(), *kit.settled("stopped", {"g0.0": 4, "g9.0": 0}))
    twice = script.metrics().summary()
    assert twice["conservation.settled_twice"] == 1
    assert twice["conservation.never_started"] == 1
    assert not twice["conservation.ok"]


def test_tokens_that_a_settlement_forgets_break_conservation(kit):
    script = kit.Script()
    script.start(0.0, "g0.0")
    script.quick(1.0, "g0.0", 1.0, 4, *kit.settled("unused", {"g0.0": 3}))
    summary = script.metrics().summary()
    assert summary["conservation.token_mismatches"] == 1
    assert not summary["conservation.ok"]


def test_the_series_has_one_row_a_step(whole_journal):
    first, second = RunMetrics.of(whole_journal).series()
    assert first["step"] == 1
    assert first["t"] == 25.0
    assert first["reward"] == 0.75
    assert first["solve_rate"] == 0.75
    assert first["eval"] is None
    assert first["duration_s"] == 15.0
    assert first["production_per_s"] == 4 / 15
    assert first["consumption_per_s"] == 2 / 4
    assert first["wait_fraction"] == pytest.approx(11 / 15)
    assert first["no_signal_fraction"] == 0.5
    assert first["mean_tokens"] == 6.0
    assert first["truncated_fraction"] == 0.25
    assert first["staleness_mean"] == 0.0
    assert first["loss.loss"] == 0.5
    assert second["reward"] == 0.5
    assert second["eval"] == 0.75
    assert second["publish_s"] == 1.0
    assert second["wait_fraction"] == pytest.approx(2 / 9)
    assert second["staleness_mean"] == 0.75
    assert second["staleness_max"] == 1
    assert second["no_signal_fraction"] == 0.0


def test_feeding_live_entries_gives_the_same_as_reading_the_journal(whole_journal, kit):
    assert RunMetrics.of(whole_journal).summary() == kit.whole_run().metrics(whole_journal.header).summary()


def test_only_the_final_attempt_counts(kit):
    script = kit.Script()
    script.start(0.0, "g0.0")
    script.turn(5.0, "g0.0", prefill=1.0, decode=3.0)
    failure = n.AttemptFailed("g0.0", 0, "infrastructure", "engine_lost", "gone", True)
    script.event(6.0, e.RolloutFailed("g0.0", 0, "infrastructure", "engine_lost", "gone"), failure)
    script.start(6.0, "g0.0", attempt=1)
    script.turn(6.5, "g0.0", decode=9.0, attempt=0)  # late, of the attempt that is gone
    script.turn(8.0, "g0.0", decode=2.0, attempt=1)
    script.end(8.0, "g0.0", 4, attempt=1)
    script.score(9.0, "g0.0", 1.0, attempt=1)
    summary = script.metrics().summary()
    assert summary["rl.latency.end_to_end_s"]["max"] == 3.0
    assert summary["rl.latency.decode_s"]["max"] == 2.0
    assert summary["rl.latency.prefill_s"]["max"] == 0.0
    assert summary["rl.rollout.failed_attempts"] == {"infrastructure": 1}
    assert summary["conservation.started"] == 1


def test_a_repeated_event_changes_nothing(kit):
    script = kit.whole_run()
    once = script.metrics().summary()
    repeated = kit.Script()
    for record in script.records:
        repeated.records.append(record)
        if isinstance(getattr(record, "event", None), (e.Scored, e.StepEnded, e.TurnEnded, e.VersionApplied)):
            ignored = n.Ignored(type(record.event).__name__, "x")
            repeated.event(record.t, record.event, ignored)
    assert repeated.metrics().summary() == once


def test_a_verifiers_sandbox_start_is_counted_once(kit):
    script = kit.Script()
    script.start(0.0, "g0.0")
    script.end(4.0, "g0.0", 4)
    script.event(4.0, e.SandboxWanted("g0.0", 0, "sv", "verify"))
    script.event(6.0, e.SandboxReady("g0.0", 0, "sv", 2.0))
    script.score(7.0, "g0.0", 1.0, duration=3.0, sandbox=2.0)
    summary = script.metrics().summary()
    assert summary["rl.latency.sandbox_start_s"]["max"] == 2.0
    assert summary["rl.latency.score_s"]["max"] == 1.0
    assert summary["rl.latency.queue_s"]["max"] == 4.0


def test_sandbox_errors_are_a_share_of_the_sandboxes_that_were_tried(kit):
    script = kit.Script()
    script.event(0.0, e.SandboxReady("g0.0", 0, "a", 1.0))
    script.event(0.0, e.SandboxReady("g0.1", 0, "b", 3.0))
    script.event(1.0, e.SandboxLost("g0.0", 0, "a", "infra"))
    script.event(1.0, e.SandboxLost("g0.2", 0, "c", "never started"))
    summary = script.metrics().summary()
    assert summary["rl.sandbox.error_fraction"] == 2 / 3
    assert summary["rl.sandbox.start_s"]["p50"] == 2.0


def test_acceptance_falls_when_a_queued_group_goes_stale(kit):
    script = kit.Script()
    for group in ("g0", "g1"):
        script.start(0.0, f"{group}.0", f"{group}.1")
        script.quick(5.0, f"{group}.0", 1.0)
        script.quick(5.0, f"{group}.1", 0.0)
        signal = e.GroupSignal(group, ((f"{group}.0", 0.5), (f"{group}.1", -0.5)))
        script.event(5.0, signal, kit.group_settled(group, "queued", [1.0, 0.0]))
    assert script.metrics().summary()["rl.production.acceptance_fraction"] == 1.0
    stale = [*kit.settled("stale", {"g1.0": 4}), *kit.settled("voided", {"g1.1": 4})]
    script.event(10.0, e.DeadlinePassed(), *stale)
    metrics = script.metrics()
    assert metrics.summary()["rl.production.acceptance_fraction"] == 0.5
    assert metrics.summary()["rl.production.effective_samples_per_s"] == 4 / 10 * 0.5
    assert metrics.depth.signal.value == 1


def test_rewards_that_are_made_of_whole_groups_have_a_mean_and_a_spread(kit):
    script = kit.Script()
    assert script.metrics().summary()["rl.group.reward_mean"] is None
    for at, rewards in enumerate([(1.0, 3.0), (5.0, 5.0), ()]):
        advantages = ((f"g{at}.0", 0.5), (f"g{at}.1", -0.5))
        script.event(1.0 + at, e.GroupSignal(f"g{at}", advantages, rewards=rewards))
    script.event(9.0, e.GroupSignal("g3", (), keep=False, reason="away", failed="judge_away"))
    summary = script.metrics().summary()
    assert (summary["rl.group.reward_mean"], summary["rl.group.reward_std"]) == (3.5, 0.5)


def test_faults_and_warnings_are_collected(kit):
    script = kit.Script()
    script.event(1.0, e.WorkerLost("trainer", "t", "killed"))
    script.event(2.0, e.ReplicaLost("r0", 0, "killed"))
    script.event(3.0, e.CommandRefused("Publish", "0/1", "no space"))
    script.event(4.0, e.DeadlinePassed(), n.Warned("slow", "very slow"))
    found = [(warning["t"], warning["code"]) for warning in script.metrics().summary()["warnings"]]
    assert found == [(1.0, "worker_lost"), (2.0, "replica_lost"), (3.0, "command_refused"), (4.0, "slow")]


def test_the_driver_cost_adds_lives_up(kit):
    script = kit.Script()
    script.stat(10.0, driver_cpu_s=4.0, journal_s=1.0)
    script.stat(20.0, driver_cpu_s=1.0, journal_s=0.5)
    script.stat(40.0, driver_cpu_s=2.0, journal_s=0.75)
    summary = script.metrics().summary()
    assert summary["rl.driver.cpu_s"] == 6.0
    assert summary["rl.driver.overhead_fraction"] == 6 / 40
    assert summary["rl.driver.journal_s"] == 1.75
    assert summary["rl.driver.scheduler_s"] is None


def test_the_environments_own_measures_are_means_over_the_train_rollouts_that_have_them(kit):
    script = kit.Script()
    script.start(0.0, "v0.0", purpose="eval")
    script.start(0.0, "g0.0", "g0.1", "g0.2")
    for rollout, metrics in (
        ("g0.0", {"a": 1.0, "b": 3.0}),
        ("g0.1", {"a": 0.0}),
        ("g0.2", None),
        ("v0.0", {"a": 9.0}),
    ):
        script.end(1.0, rollout, 4)
        script.score(1.0, rollout, 1.0, metrics=metrics)
    summary = script.metrics().summary()
    found = {key: value for key, value in summary.items() if key.startswith("rl.reward.")}
    assert found == {"rl.reward.a": 0.5, "rl.reward.b": 3.0}


def test_what_the_trainer_measured_is_told_over_the_surviving_steps(kit):
    script = kit.Script()
    script.start(0.0, "g0.0")
    for step in range(1, 13):
        script.step(float(step), step, 0.5, loss=float(step), **({"rare": 7.0} if step == 2 else {}))
    summary = script.metrics().summary()
    assert summary["rl.loss.loss"] == {"first": 1.5, "last": 11.5, "mean": 6.5, "max": 12.0}
    assert summary["rl.loss.rare"] == {"first": 7.0, "last": 7.0, "mean": 7.0, "max": 7.0}
    script.event(20.0, e.RunResumed(1, 2, 12.0))
    assert script.metrics().summary()["rl.loss.loss"] == {"first": 1.0, "last": 2.0, "mean": 1.5, "max": 2.0}


def test_a_repeated_tool_call_counts_once(kit):
    script = kit.Script()
    script.start(0.0, "g0.0")
    script.turn(1.0, "g0.0")
    for _ in range(2):
        script.event(2.0, e.ToolEnded("g0.0", 0, 0, 0, 0.5, "exit"))
    script.event(3.0, e.ToolEnded("g0.0", 0, 0, 1, 0.25, "exit"))
    script.end(4.0, "g0.0", 2, tools=2)
    script.score(5.0, "g0.0", 1.0)
    assert script.metrics().summary()["rl.latency.tool_s"]["max"] == 0.75


def test_percentiles_interpolate_linearly():
    assert Tails([1.0, 2.0, 3.0, 4.0]).summary() == {
        "mean": 2.5,
        "p50": 2.5,
        "p90": pytest.approx(3.7),
        "p99": pytest.approx(3.97),
        "max": 4.0,
    }
    assert set(Tails().summary().values()) == {None}


amount = st.floats(0.0, 50.0)


@given(
    st.lists(st.tuples(amount, amount, amount), min_size=1, max_size=5),
    amount,
    amount,
    amount,
    st.floats(0.0, 1e3),
)
def test_latency_parts_always_sum_to_the_whole_and_none_is_negative(turns, start_s, score_s, share, whole):
    rollouts = Rollouts()
    rollouts.started(5.0, c.StartRollout("g.0", 0, "g", "t", "train", "main", 1, 1.0, "r"))
    rollouts.sandbox_ready(e.SandboxReady("g.0", 0, "s", start_s))
    for index, (prefill, decode, tool) in enumerate(turns):
        rollouts.turn_ended(e.TurnEnded("g.0", 0, index, "r", (), 1, 1, 0.0, prefill, decode, "stop"))
        rollouts.tool_ended(e.ToolEnded("g.0", 0, index, index, tool, "exit"))
    rollouts.ended(e.RolloutEnded("g.0", 0, "p", (), len(turns), len(turns), 1, 1, False))
    scored = e.Scored("g.0", 0, 1, 0.0, (), score_s + share, share)
    finished = rollouts.scored(5.0 + whole, scored)
    assert finished is not None
    parts = [getattr(finished.latency, name) for name in LATENCY_PARTS]
    assert math.fsum(parts) == pytest.approx(finished.end_to_end_s, rel=1e-9, abs=1e-9)
    assert min(parts) >= 0.0
