"""How fast the simulated driver is: case 1 of the field report, and a steady run with 1,000 in flight.

Case 1 is examples/cases/case1.toml with 40 rollouts started for each 16 that a group needs, so that 60 % are
dropped: 512 rollouts a step, 25 turns each, 24 engines, no journal. Times are of this process's CPU, for one
core is what the target counts and other processes share the machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import time
from dataclasses import replace
from pathlib import Path

from keep import keep

from headway.matching.build import models_of
from headway.matching.simulate_models import ModelledDriver, SimSummary
from headway.matching.spec import WorkloadSettings
from headway.matching.spec_load import load_spec
from headway.matching.workload import DrawnWorkload
from headway.queue.settings import (
    CheckpointSettings,
    DeadlineSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
)

STEPS = 100
IN_FLIGHT = 1_000


class Engine:
    """An engine whose iteration takes longer with requests and with the tokens that they hold."""

    max_running, kv_tokens, offload_tokens = 256, 2_000_000, 0
    separate_prefill, prefill_lines, tokens_per_iteration = False, 1, 1.0

    def decode_s(self, num_running: float, resident_tokens: float) -> float:
        """Return the seconds of an iteration."""
        return 0.012 + 0.0001 * num_running + 2e-8 * resident_tokens

    def prefill_s(self, num_tokens: float, context_tokens: float) -> float:
        """Return the seconds of a prefill."""
        return 0.002 + 2e-5 * num_tokens


class Trainer:
    """A trainer that takes as long as its tokens say."""

    load_s, publish_s, apply_s, save_s = 2.0, 8.0, 4.0, 30.0

    def step_s(self, num_rows: int, num_tokens: int, sum_squares: float) -> float:
        """Return the seconds of a step."""
        return 6.0 + 2.4e-5 * num_tokens


WORKLOAD = WorkloadSettings(
    prompt_tokens=1_500,
    turns=25.0,
    turns_sigma=0.4,
    answer_tokens=270.0,
    answer_sigma=0.8,
    rollout_sigma=0.4,
    max_tokens=32_768,
    observation_tokens=150.0,
    tool_s=2.0,
    tool_sigma=1.0,
    score_s=20.0,
    score_sigma=0.5,
    uses_sandbox=True,
)
QUIET = SchedulerSettings(
    eval=EvalSettings(num_tasks=0),
    checkpoint=CheckpointSettings(every_steps=10),
    deadlines=DeadlineSettings(train_s=1e6, publish_s=1e6, apply_s=1e6, checkpoint_s=1e6, sandbox_s=1e5),
    rollout_timeout_s=1e5,
    score_timeout_s=1e4,
    max_sandboxes=100_000,
)
CASE_1 = Path(__file__).parents[1] / "examples" / "cases" / "case1.toml"
DROPPING = ("oversampling.rollouts_extra=24",)  # 40 start for 16
STEADY = replace(
    QUIET,
    queue=QueueSettings(group_size=8, batch_size=504, bound=2, depth=2, max_running_rollouts=IN_FLIGHT),
)


def case_1() -> ModelledDriver:
    """Return the driver of case 1."""
    spec = load_spec(CASE_1, DROPPING)
    models = models_of(spec)
    return ModelledDriver(
        spec.scheduler,
        engine=models.engine,
        replicas=models.replicas,
        trainer=models.trainer,
        workload=models.workload,
        fleet=models.fleet,
    )


def steady() -> ModelledDriver:
    """Return the driver of a steady run."""
    return ModelledDriver(
        STEADY, engine=Engine(), replicas=8, trainer=Trainer(), workload=DrawnWorkload(WORKLOAD)
    )


def simulate(driver: ModelledDriver, steps: int) -> tuple[SimSummary, float]:
    """Simulate so many steps; return what it came to and the CPU seconds that it took."""
    gc.collect()
    gc.freeze()
    began = time.process_time()
    summary = driver.run(steps)
    return summary, time.process_time() - began


def peak_mib() -> float:
    """Return the most memory that this process had, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure and print; the last line is one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=STEPS)
    steps = parser.parse_args().steps
    gc.set_threshold(100_000, 50, 100)
    result: dict[str, object] = {"load": round(os.getloadavg()[0], 2)}
    num = max(1, steps // 10)
    simulate(case_1(), num)
    short_mib = peak_mib()
    summary, took_s = simulate(case_1(), steps)
    dropped = summary.metrics["rl.discard.cancelled.rollouts"] / max(
        1, summary.metrics["rl.discard.cancelled.rollouts"] + steps * 512
    )
    print(
        f"case 1: {steps} steps, {summary.num_events} events, {took_s:.1f} s, "
        f"{summary.num_events / took_s:,.0f} events/s; {dropped:.0%} of the rollouts dropped; "
        f"memory {short_mib:.0f} MiB after {num} steps, {peak_mib():.0f} MiB after {steps}"
    )
    result |= {
        "case1.steps": steps,
        "case1.events": summary.num_events,
        "case1.cpu_s": round(took_s, 2),
        "case1.events_per_s": round(summary.num_events / took_s),
        "case1.dropped_fraction": round(dropped, 4),
        "case1.in_flight": summary.metrics["sim.rollouts.in_flight"]["mean"],
        "case1.peak_mib_tenth": round(short_mib, 1),
        "case1.peak_mib": round(peak_mib(), 1),
    }
    summary, took_s = simulate(steady(), max(3, steps // 5))
    in_flight = summary.metrics["sim.rollouts.in_flight"]["mean"]
    print(
        f"steady, {in_flight:.0f} in flight: {summary.num_events} events, {took_s:.1f} s, "
        f"{summary.num_events / took_s:,.0f} events/s"
    )
    result |= {
        "steady.in_flight": in_flight,
        "steady.events": summary.num_events,
        "steady.events_per_s": round(summary.num_events / took_s),
    }
    if steps == STEPS:
        keep("simulate", result)
    else:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
