"""What every plan keeps, whichever model answers, and agreement with a longer simulation."""

from dataclasses import replace
from pathlib import Path

import pytest

from headway.core.errors import UserError
from headway.matching.build import models_of
from headway.matching.optimise import optimise, present
from headway.matching.plan import make_plan
from headway.matching.plan_text import options_text, percents, plan_text
from headway.matching.sensitivity import sensitivity, settled
from headway.matching.simulate_models import ModelledDriver
from headway.matching.spec_load import load_spec
from headway.queue.settings import StopSettings
from tests.unit.test_matching_plan import QUIET
from tests.unit.test_matching_spec import SPEC

AGENT = [
    "workload.turns=4", "workload.answer_tokens=300", "workload.tool_s=5", "workload.tool_sigma=1",
    "workload.observation_tokens=200", "workload.uses_sandbox=true",
]  # fmt: skip
SPECS = {
    "sync": ["queue.bound=0"],
    "depth-limited": ["queue.bound=2"],
    "max_running": ["hardware.generator.max_running=8", "queue.bound=4"],
    "kv": ["timings.kv_tokens=30000", "queue.bound=4"],
    "trainer": ["hardware.trainer.fixed_s=60", "queue.bound=4"],
    "prefill-heavy": ["workload.prompt_tokens=8000", "workload.answer_tokens=20", "queue.bound=2"],
    "oversampling": ["oversampling.rollouts_extra=8", "queue.bound=2"],
    "sandboxes": [*AGENT, "sandbox.max_live=40", "oversampling.rollouts_extra=8", "queue.bound=2"],
    "agents": [*AGENT, "oversampling.rollouts_extra=4", "queue.bound=2", "sandbox.max_live=400"],
}
_BUDGET = 15_000


def quick(*names):
    """The specs, all but the named ones for `make test-slow`."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in SPECS]


@pytest.fixture
def load(tmp_path):
    file = tmp_path / "spec.toml"
    file.write_text(SPEC + QUIET)
    return lambda *overrides: load_spec(file, overrides)


@pytest.mark.parametrize("budget", [0, _BUDGET], ids=["fluid", "simulated"])
@pytest.mark.parametrize("name", SPECS)
def test_what_every_plan_keeps(load, name, budget):
    spec = load(*SPECS[name])
    plan = make_plan(spec, budget_events=budget)
    m = plan.metrics
    assert plan.simulated == bool(budget)
    scheduler = spec.scheduler
    live = m["plan.sandbox.live"]
    assert live <= scheduler.max_sandboxes + 1e-6
    assert live <= m["plan.concurrency.in_flight"] + scheduler.verify_sandboxes + 1e-6
    names = ("queue", "parked", "sandbox_start", "prefill", "decode", "tool", "score")
    whole = sum(m[f"rl.latency.{part}_s"]["mean"] or 0.0 for part in names)
    assert whole == pytest.approx(m["rl.latency.end_to_end_s"]["mean"], rel=0.02)
    trajectory, token = m["rl.staleness.trajectory"], m["rl.staleness.token"]
    assert token["mean"] <= trajectory["mean"] + 0.02
    for ages in (trajectory, token):
        assert sum(percents(ages["counts"], 100).values()) == 100
    parts = sum(m[f"plan.discard.{why}_fraction"] for why in ("filtered", "stale", "cancelled", "failed"))
    assert parts == pytest.approx(m["rl.discard.rollout_fraction"])
    text = plan_text(spec, plan, [])
    assert max(map(len, text.splitlines())) <= 116
    assert "1 replicas" not in text


@pytest.mark.parametrize("name", quick("kv", "oversampling", "prefill-heavy", "sandboxes"))
def test_a_plan_agrees_with_a_longer_simulation(load, name):
    spec = load(*SPECS[name])
    budget, longer = (60_000, 30_000) if AGENT[0] in SPECS[name] else (30_000, 20_000)
    models, plan = models_of(spec), make_plan(spec, budget_events=budget)
    scheduler = replace(spec.scheduler, stop=StopSettings(steps=1 << 40))
    driver = ModelledDriver(
        scheduler, engine=models.engine, replicas=models.replicas, trainer=models.trainer,
        workload=models.workload, fleet=models.fleet, seed=5,
    )  # fmt: skip
    found = driver.run(warmup_steps=8, max_events=longer).metrics  # its end would count as a part of it
    m = plan.metrics
    wall = "rl.consumption.wall_samples_per_s"
    assert m[wall] == pytest.approx(found[wall], rel=0.1)
    wait = "rl.trainer.wait_fraction"
    assert m[wait] == pytest.approx(found[wait], abs=0.05)
    in_flight = found["sim.rollouts.in_flight"]["mean"]
    assert m["plan.concurrency.in_flight"] == pytest.approx(in_flight, rel=0.15, abs=3.0)


@pytest.mark.parametrize("name", ["max_running", "trainer", "agents", "depth-limited"])
def test_the_table_is_by_the_headlines_model(load, name):
    spec = load(*SPECS[name])
    plan = make_plan(spec, budget_events=_BUDGET)
    changes, judge = sensitivity(spec, plan, budget_events=20_000)
    assert judge.startswith(("simulations", "the fluid model"))
    wait = plan.metrics["rl.trainer.wait_fraction"]
    for change in changes:
        if abs(change.samples) < 1e-9:
            assert change.wait == pytest.approx(wait, abs=0.005)
    told = settled(plan, changes)
    for change in changes:
        if change.words in told.bottleneck.remedy:
            assert change.samples > 0.0


def test_the_remedy_helps_in_its_own_table(load):
    spec = load(*SPECS["max_running"])
    plan = make_plan(spec, budget_events=_BUDGET)
    changes, _ = sensitivity(spec, plan, budget_events=100_000)
    told = settled(plan, changes)
    assert told.bottleneck.name == "setting"
    row = next(change for change in changes if change.words.startswith("max_running"))
    assert row.samples > 0.02


def test_options_can_be_pasted_and_the_present_is_beside_them(load):
    spec = load("queue.bound=2")
    options = optimise(spec, 32, limit_s=10.0)
    for option in options:
        pasted = spec.changed(*option.overrides)
        assert pasted.hardware.trainer.count == option.trainer
        assert pasted.hardware.generator.count == option.generator
    text = options_text(options, 32, present(spec))
    assert f"hardware.trainer.count={options[0].trainer}" in text
    assert "\nnow " in text
    assert max(map(len, text.splitlines())) <= 116


def test_the_count_that_a_trainer_needs_is_one_that_its_parts_divide():
    case = Path(__file__).parents[2] / "examples/cases/case1.toml"
    with pytest.raises(UserError) as raised:
        models_of(load_spec(case, ["hardware.trainer.count=8"]))
    assert raised.value.remedy == "Use hardware.trainer.count = 16 or more"
