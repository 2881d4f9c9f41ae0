"""The plan's fluid model and the simulator agree where chance does not matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headway.matching.build import models_of
from headway.matching.fluid import Fluid
from headway.matching.plan import make_plan, sample_of, why_simulate
from headway.matching.plan_metrics import metrics_of
from headway.matching.spec_load import Spec, load_spec
from headway.runtime.simulated_run import simulate_spec

SPEC = """
[queue]
group_size = 4
batch_size = 32
bound = 4
drop_zero_advantage = false
[eval]
num_tasks = 0
[deadlines]
train_s = 10000
[generator]
replicas = 2
max_running = 128
[workload]
prompt_tokens = 200
turns = 4.0
turns_sigma = 0.3
answer_tokens = 150.0
answer_sigma = 0.4
observation_tokens = 40.0
tool_s = 2.0
tool_sigma = 0.3
score_s = 1.0
[timings]
decode_base_s = 0.02
decode_row_s = 0.001
decode_token_s = 1e-7
prefill_base_s = 0.002
prefill_token_s = 2e-5
step_base_s = 2.0
step_row_s = 0.0
step_token_s = {step_token_s}
load_s = 0.0
publish_s = 0.5
apply_s = 0.1
save_s = 1.0
"""


SANDBOX = ["workload.uses_sandbox=true"]
HOLDS = {
    "nothing": [],
    "publish_every": ["queue.publish_every=2"],
    "max_running_rollouts": ["queue.max_running_rollouts=48"],
    "max_live": [*SANDBOX, "sandbox.max_live=24"],
    "creates_per_s": [*SANDBOX, "sandbox.max_live=400", "fleet.start_s=2.0", "fleet.creates_per_s=1.5"],
}
"""What the fluid model has: versions that are rare, and quotas of rollouts, sandboxes and their starts."""

NOT_MODELLED = {
    "failures": ["workload.failure_rate=0.1"],
    "a version for nearly all of the depth": ["queue.publish_every=4"],
    "depth 1": ["queue.depth=1"],
}


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Spec]:
    def spec(step_token_s: float, overrides: list[str]) -> Spec:
        path = tmp_path / "spec.toml"
        path.write_text(SPEC.format(step_token_s=step_token_s))
        return load_spec(path, overrides)

    return spec


@pytest.mark.parametrize("setting", HOLDS)
@pytest.mark.parametrize(("side", "step_token_s"), [("generator", 1e-5), ("trainer", 6e-4)])
def test_the_fluid_model_and_the_simulator_agree(
    load: Callable[..., Spec], side: str, step_token_s: float, setting: str
) -> None:
    spec = load(step_token_s, HOLDS[setting])
    assert why_simulate(spec) is None
    models = models_of(spec)
    fluid = Fluid(spec, models, sample_of(spec, models, 0))
    planned = metrics_of(spec, models, fluid, fluid.solve())
    simulated = simulate_spec(spec, steps=60, warmup_steps=12).metrics
    for name in ("rl.consumption.wall_samples_per_s", "rl.consumption.active_samples_per_s"):
        assert planned[name] == pytest.approx(simulated[name], rel=0.06), name
    assert planned["rl.trainer.wait_fraction"] == pytest.approx(
        simulated["rl.trainer.wait_fraction"], abs=0.05
    )
    name = "rl.staleness.trajectory"
    assert planned[name]["mean"] == pytest.approx(simulated[name]["mean"], abs=0.5)
    waits = side == "generator" or setting == "creates_per_s"
    assert (simulated["rl.trainer.wait_fraction"] > 0.3) == waits


@pytest.mark.parametrize("setting", NOT_MODELLED)
def test_a_plan_says_what_the_fluid_model_does_not_have(load: Callable[..., Spec], setting: str) -> None:
    spec = load(1e-5, NOT_MODELLED[setting])
    why = why_simulate(spec)
    assert why is not None
    assert why in make_plan(spec, budget_events=0).by
    assert make_plan(spec, budget_events=5_000).by.startswith("a simulation of")
