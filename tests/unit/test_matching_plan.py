"""Plans: the fluid model's identities, agreement with the simulator, bottlenecks, what a change does."""

from dataclasses import replace

import pytest

from headway.matching.build import models_of
from headway.matching.fluid import Fluid
from headway.matching.optimise import optimise, splits
from headway.matching.plan import make_plan, sample_of, usd_per_hour
from headway.matching.plan_text import percents
from headway.matching.sensitivity import sensitivity
from headway.matching.simulate_models import ModelledDriver
from headway.matching.spec_load import load_spec
from headway.queue.settings import StopSettings
from tests.unit.test_matching_spec import SPEC

QUIET = "\n[eval]\nnum_tasks = 0\nat_start = false\nat_end = false\n[environment]\nrollout_timeout_s = 1e6\n"


@pytest.fixture
def plan_spec(tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(SPEC + QUIET)

    def load(*overrides):
        return load_spec(file, ["queue.bound=4", *overrides])

    return load


def solved(spec):
    models = models_of(spec)
    fluid = Fluid(spec, models, sample_of(spec, models, 0))
    return fluid.solve(), models, fluid


def test_a_busy_slot_holds_more_than_the_mean_length(plan_spec):
    spec = plan_spec("workload.answer_sigma=0.9", "workload.max_tokens=100000")
    sample = sample_of(spec, models_of(spec), 0)
    lengths = [drawn.answer_tokens for drawn in sample.rollouts]
    expected = 512 + sum(n * n for n in lengths) / (2 * sum(lengths))
    assert sample.resident_tokens == pytest.approx(expected)
    assert expected > 512 + sum(lengths) / len(lengths) / 2


def test_little_holds(plan_spec):
    flow, _, fluid = solved(plan_spec())
    rollouts_s = flow.production / (1 - flow.cancelled)
    decoding = rollouts_s * fluid.means.answer_tokens * flow.replica.token_s / 4
    decoding *= 1 - flow.replica.prefill_fraction
    assert flow.replica.running == pytest.approx(decoding, rel=0.03)
    assert flow.wait == pytest.approx(1 - (flow.compute_s + flow.publish_s) / flow.period_s)
    assert flow.wall == pytest.approx(flow.rows / flow.period_s)


def test_admission_keeps_a_batch_for_each_step_of_depth(plan_spec):
    flow, _, _ = solved(plan_spec("queue.bound=6", "queue.depth=5"))
    assert flow.queued + flow.groups_running == pytest.approx(8 * (5 + flow.wait), rel=0.01)


def test_a_slow_trainer_is_the_limit_and_never_waits(plan_spec):
    flow, _, _ = solved(plan_spec("hardware.trainer.fixed_s=60"))
    assert flow.wait < 0.01
    assert flow.effective == pytest.approx(flow.rows / (flow.compute_s + flow.publish_s), rel=0.01)
    assert flow.blocked > 0.3
    assert (
        make_plan(plan_spec("hardware.trainer.fixed_s=60"), budget_events=20_000).bottleneck.name == "trainer"
    )


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["hardware.trainer.fixed_s=12", "queue.depth=3"],
        ["hardware.generator.max_running=8"],
        [
            "workload.turns=5", "workload.answer_tokens=400", "workload.tool_s=4", "workload.tool_sigma=1",
            "workload.observation_tokens=300", "queue.drop_zero_advantage=false",
        ],
    ],
    ids=["latency", "near balance", "slots", "tools"],
)  # fmt: skip
def test_the_fluid_model_and_the_simulator_agree(plan_spec, overrides):
    spec = plan_spec(*overrides)
    flow, models, _ = solved(spec)
    scheduler = replace(spec.scheduler, stop=StopSettings(steps=0, wall_s=45 * flow.period_s))
    driver = ModelledDriver(
        scheduler, engine=models.engine, replicas=models.replicas, trainer=models.trainer,
        workload=models.workload, fleet=models.fleet, seed=3,
    )  # fmt: skip
    metrics = driver.run(warmup_steps=8).metrics
    assert metrics["rl.consumption.wall_samples_per_s"] == pytest.approx(flow.wall, rel=0.08)
    assert metrics["rl.production.samples_per_s"] == pytest.approx(flow.production, rel=0.12)
    assert metrics["rl.consumption.active_samples_per_s"] == pytest.approx(flow.active, rel=0.06)
    assert metrics["rl.trainer.wait_fraction"] == pytest.approx(flow.wait, abs=0.05)
    depth = flow.queued + flow.groups_running
    assert metrics["rl.queue.depth.all"]["mean"] == pytest.approx(depth, rel=0.03)
    assert metrics["rl.group.zero_advantage_fraction"] == pytest.approx(flow.zero, abs=0.08)
    # Rollouts that are still on their way when admission stops are in this mean, and ever fewer.
    assert metrics["sim.rollouts.in_flight"]["mean"] == pytest.approx(flow.in_flight, rel=0.25)


def test_shallow_depth_is_simulated_and_says_so(plan_spec):
    plan = make_plan(plan_spec("queue.bound=0"), budget_events=20_000)
    assert plan.by.startswith("a simulation of")
    assert plan.metrics.get("mode", True)
    assert make_plan(plan_spec(), budget_events=0).by.startswith("the fluid model")


def test_full_memory_is_named(plan_spec):
    plan = make_plan(plan_spec("timings.kv_tokens=20000"), budget_events=20_000)
    assert plan.bottleneck.name == "kv"
    assert plan.metrics["plan.concurrency.capped_by"] == "kv"


def test_a_quota_of_sandboxes_is_named(plan_spec):
    overrides = ["workload.uses_sandbox=true", "workload.turns=4", "workload.tool_s=5", "sandbox.max_live=20"]
    assert make_plan(plan_spec(*overrides), budget_events=20_000).bottleneck.name == "sandboxes"


def test_staleness_never_exceeds_the_bound(plan_spec):
    plan = make_plan(plan_spec("workload.rollout_sigma=1.0"), budget_events=20_000)
    for name in ("trajectory", "token"):
        counts = plan.metrics[f"rl.staleness.{name}"]["counts"]
        assert sum(percents(counts, 100).values()) == 100
        assert max(map(int, counts)) <= 4


def test_more_depth_gains_and_costs_staleness(plan_spec):
    spec = plan_spec()
    plan = make_plan(spec, budget_events=20_000)
    changes = {change.words: change for change in sensitivity(spec, plan)[0]}
    deeper = changes["queue.depth 4 to 8"]
    assert deeper.samples > 0.2
    assert deeper.staleness > plan.metrics["rl.staleness.trajectory"]["mean"]
    moves = [words for words in changes if "accelerators from" in words]
    assert len(moves) == 2


def test_the_best_split_is_at_least_as_good_as_the_given_one(plan_spec):
    spec = plan_spec()
    flow, _, _ = solved(spec)
    options = optimise(spec, 32, bound=4, limit_s=20.0)
    assert options[0].samples_per_s >= flow.wall * 0.97
    assert all(option.trainer + option.generator == 32 for option in options)
    assert all(generator % 4 == 0 for _, generator in splits(spec, 32))


def test_cost_is_price_over_tokens(plan_spec):
    spec = plan_spec("hardware.trainer.usd_per_gpu_hour=2.0", "hardware.generator.usd_per_gpu_hour=1.0")
    assert usd_per_hour(spec) == 48.0
    plan = make_plan(spec, budget_events=20_000)
    per_s = plan.metrics["rl.consumption.wall_samples_per_s"] * plan.metrics["plan.trained_tokens"]
    assert plan.metrics["rl.cost.usd_per_mtok"] == pytest.approx(48 / 3600 / per_s * 1e6)
    shared = plan_spec("hardware.shared_tenants=2")
    assert usd_per_hour(shared) == pytest.approx(16 * 1.59 * 1.5)


def test_drift_is_planned_as_a_course(plan_spec):
    plan = make_plan(
        plan_spec("workload.drift={ answer_tokens = 3.0 }", "workload.drift_steps=100"), budget_events=20_000
    )
    assert [moment.step for moment in plan.course] == [0, 25, 50, 75, 100]
    assert plan.course[-1].step_s > 2 * plan.course[0].step_s
    assert make_plan(plan_spec(), budget_events=20_000).course == []
