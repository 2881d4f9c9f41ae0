"""The metrics of a plan that a short simulation answered, and what limits what is in flight in it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.matching.build import Models
    from headway.matching.flow import Flow
    from headway.matching.spec_load import Spec

_FULL = 0.85  # of a resource, from which on it is what limits
_LIKE_NONE = 0.05  # of the trainer's time, below which it does not wait
_FATES = {
    "filtered": ("filtered",),
    "stale": ("stale",),
    "cancelled": ("cancelled", "pruned"),
    "failed": ("failed_infrastructure", "failed_environment", "failed_reward", "voided"),
}


def simulated_metrics(
    spec: Spec, models: Models, fluid: dict[str, Any], found: dict[str, Any]
) -> dict[str, Any]:
    """Return the fluid model's metrics with everything in them that a simulation tells replaced by its word.

    Args:
        spec: what was simulated.
        models: of it.
        fluid: metrics of the fluid model.
        found: metrics of the simulation, of the whole run.
    """
    metrics = fluid | {
        name: value for name, value in found.items() if name.startswith("rl.") and value is not None
    }
    metrics |= _rates(spec, found)
    metrics |= _lost(found)
    in_flight, live = found["sim.rollouts.in_flight"]["mean"], found["rl.sandbox.live"]["mean"]
    metrics["plan.concurrency.in_flight"] = in_flight or 0.0
    metrics["plan.concurrency.running_per_replica"] = found["sim.generator.running"]
    metrics["plan.kv_used_fraction"] = found["sim.generator.kv_used_fraction"]
    if not models.engine.separate_prefill:
        metrics["plan.prefill_fraction"] = found["sim.generator.prefill_fraction"]
    if spec.workload.uses_sandbox:
        metrics["plan.sandbox.live"] = live or 0.0
        scored, expected = found["rl.production.samples_per_s"], fluid["rl.production.samples_per_s"]
        metrics["plan.sandbox.starts_per_s"] *= (scored or 0.0) / max(1e-12, expected)
    turns = max(1.0, found["rl.rollout.turns"]["mean"] or 1.0)
    parts = [found[f"rl.latency.{name}_s"]["mean"] or 0.0 for name in ("queue", "prefill", "decode")]
    answered = max(1.0, found["rl.rollout.tokens"]["mean"] or 1.0)
    metrics["plan.latency.first_token_s"] = {"mean": (parts[0] + parts[1]) / turns + parts[2] / answered}
    if found["rl.trainer.wait_fraction"] >= _LIKE_NONE:
        metrics["plan.blocked_fraction"] = 0.0
    metrics["plan.concurrency.capped_by"] = capped_by(spec, models, metrics, fluid)
    return metrics


def _rates(spec: Spec, found: dict[str, Any]) -> dict[str, Any]:
    steps, window_s, wall = found["steps"], found["window_s"], found["rl.consumption.wall_samples_per_s"]
    period_s = window_s / steps
    active = found["rl.consumption.active_samples_per_s"]
    rows = wall * period_s
    # Tokens are those of the simulated part, and so are these rows.
    trained_rows = max(1, sum(found["rl.staleness.trajectory"]["counts"].values()))
    limit = spec.scheduler.stop.steps
    return {
        "plan.step_s": period_s,
        "plan.compute_s": rows / active if active else 0.0,
        "plan.run_s": period_s * limit if limit else None,
        "plan.rows_per_step": rows,
        "plan.row_tokens": found["sim.train_tokens"] / trained_rows,
        "plan.trained_tokens": found["rl.cost.trained_tokens"] / trained_rows,
    }


def _lost(found: dict[str, Any]) -> dict[str, float]:
    """Return what is lost by its reason, shares of all rollouts that came to an end before the run's."""
    counts = {
        name: sum(found.get(f"rl.discard.{fate}.rollouts") or 0 for fate in fates)
        for name, fates in _FATES.items()
    }
    ended = sum(found.get(f"rl.discard.{fate}.rollouts") or 0 for fate in ("stopped", "unused"))
    lost = sum(counts.values())
    share = found["rl.discard.rollout_fraction"] or 0.0
    every = max(1.0, (lost + ended) / share - ended if share else 1.0)
    shares = {f"plan.discard.{name}_fraction": count / every for name, count in counts.items()}
    return shares | {"rl.discard.rollout_fraction": lost / every}


def capped_by(spec: Spec, models: Models, metrics: dict[str, Any], fluid: dict[str, Any]) -> str:
    """Return what keeps more rollouts from being in flight, from how full each resource is."""
    scheduler, engine = spec.scheduler, models.engine
    if metrics["rl.trainer.wait_fraction"] < _LIKE_NONE:
        return "trainer"
    limit = scheduler.queue.max_running_rollouts
    if limit and metrics["plan.concurrency.in_flight"] > _FULL * limit:
        return "max_running_rollouts"
    places = scheduler.max_sandboxes - scheduler.verify_sandboxes
    waiting_s = metrics["rl.latency.queue_s"]["mean"] or 0.0
    is_lined_up = waiting_s > 0.05 * _end_to_end(
        metrics
    )  # places stand empty while a sandbox ends and starts
    if spec.workload.uses_sandbox and metrics["plan.sandbox.live"] > (0.7 if is_lined_up else _FULL) * places:
        return "sandboxes"
    if metrics["plan.kv_used_fraction"] > _FULL or metrics["rl.generator.preemptions"]:
        return "kv"
    if metrics["plan.concurrency.running_per_replica"] > 0.7 * engine.max_running and is_lined_up:
        return "setting"
    was = fluid["plan.concurrency.capped_by"]
    return was if was in ("prefill", "sandbox_starts") else "depth"


def _end_to_end(metrics: dict[str, Any]) -> float:
    return metrics["rl.latency.end_to_end_s"]["mean"] or 0.0


def simulated_flow(flow: Flow, metrics: dict[str, Any]) -> Flow:
    """Return a flow with what a simulation told of it, for `relax.bottleneck`."""
    capped = metrics["plan.concurrency.capped_by"]
    return replace(
        flow,
        wait=metrics["rl.trainer.wait_fraction"],
        blocked=metrics["plan.blocked_fraction"],
        capped_by="" if capped in ("depth", "trainer") else capped,
        zero=metrics["rl.group.zero_advantage_fraction"] or 0.0,
        lost_to_zero=flow.lost_to_zero and (metrics["rl.group.zero_advantage_fraction"] or 0.0),
    )


def simulated_parts(metrics: dict[str, Any]) -> dict[str, float]:
    """Return the mean seconds of a scored rollout's parts, as `plan_metrics.part_means` has them."""
    names = {"decode": "decode", "prefill": "prefill", "tool": "tool", "start": "sandbox_start"}
    names |= {"score": "score", "wait": "queue", "parked": "parked", "rollout": "end_to_end"}
    means = {name: metrics[f"rl.latency.{key}_s"]["mean"] or 0.0 for name, key in names.items()}
    means["group"] = means["rollout"] * (metrics["rl.group.straggler_ratio"]["mean"] or 1.0)
    return means
