"""A steady state under the names of the metrics: telemetry's where it has one, `plan.` names elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.matching.model_facts import CONVENTION

if TYPE_CHECKING:
    from headway.matching.build import Models
    from headway.matching.flow import Flow
    from headway.matching.fluid import Fluid
    from headway.matching.spec_load import Spec


def _tails(values: list[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"))
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (place - low) * (ordered[high] - ordered[low])

    mean = sum(ordered) / len(ordered)
    return {"mean": mean, "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": ordered[-1]}


def part_means(fluid: Fluid, flow: Flow) -> dict[str, float]:
    """Return the mean seconds of a rollout's parts, of a rollout and of a group."""
    return fluid.parts(flow) | {
        "rollout": sum(flow.latencies) / max(1, len(flow.latencies)),
        "group": sum(flow.group_s) / max(1, len(flow.group_s)),
    }


def metrics_of(spec: Spec, models: Models, fluid: Fluid, flow: Flow) -> dict[str, Any]:
    """Return a steady state under the names of the metrics."""
    bound, sample = spec.scheduler.queue.bound, fluid.sample
    trajectory, token = flow.ages(bound), flow.token_ages(bound)
    zero = flow.zero if spec.scheduler.queue.drop_zero_advantage else 0.0
    # Of all rollouts: those that are kept to the end of their group may still be dropped with it.
    kept = max(0.0, 1.0 - flow.cancelled - flow.failed)
    stale = kept * flow.stale
    filtered = (kept - stale) * zero
    lost = flow.cancelled + flow.failed + stale + filtered
    generator, trainer = spec.hardware.generator, spec.hardware.trainer
    decoded = flow.production / max(1e-9, 1.0 - flow.cancelled) * sample.mean("answer_tokens")
    prefilled = flow.production / max(1e-9, 1.0 - flow.cancelled) * fluid.prefill.tokens(flow.replica.hit)
    training = models.training
    flops = training.flops(flow.rows * flow.row_tokens, flow.rows * flow.row_squares)
    steps = spec.scheduler.stop.steps
    parts = part_means(fluid, flow)
    return {
        "rl.production.samples_per_s": flow.production,
        "rl.production.effective_samples_per_s": flow.effective,
        "rl.consumption.active_samples_per_s": flow.active,
        "rl.consumption.wall_samples_per_s": flow.wall,
        "rl.trainer.wait_fraction": flow.wait,
        "rl.trainer.compute_fraction": flow.compute_s / flow.period_s,
        "rl.trainer.publish_fraction": flow.publish_s / flow.period_s,
        "plan.blocked_fraction": flow.blocked,
        "rl.queue.depth.all": {"mean": flow.queued + flow.groups_running, "max": None},
        "rl.queue.depth.signal": {"mean": flow.queued, "max": None},
        "rl.staleness.trajectory": _histogram(trajectory),
        "rl.staleness.token": _histogram(token),
        "rl.discard.rollout_fraction": lost,
        "plan.discard.filtered_fraction": filtered,
        "plan.discard.stale_fraction": stale,
        "plan.discard.cancelled_fraction": flow.cancelled,
        "plan.discard.failed_fraction": flow.failed,
        "rl.group.zero_advantage_fraction": flow.zero,
        "rl.group.straggler_ratio": {"mean": parts["group"] / max(1e-9, parts["rollout"])},
        "rl.rollout.truncated_fraction": sample.mean("truncated"),
        "rl.rollout.tokens": _tails([float(drawn.answer_tokens) for drawn in sample.rollouts]),
        "rl.rollout.turns": _tails([float(drawn.num_turns) for drawn in sample.rollouts]),
        "plan.concurrency.in_flight": flow.in_flight,
        "plan.concurrency.running_per_replica": flow.replica.running,
        "plan.concurrency.capped_by": flow.capped_by or ("trainer" if flow.blocked else "depth"),
        "plan.kv_used_fraction": flow.replica.kv_used,
        "plan.kv_tokens": models.engine.kv_tokens,
        "plan.prefix_hit_fraction": flow.replica.hit,
        "plan.prefill_fraction": flow.replica.prefill_fraction,
        "plan.prefill_token_fraction": prefilled / max(1e-9, prefilled + decoded),
        "plan.sandbox.live": flow.sandboxes,
        "plan.sandbox.starts_per_s": flow.production if spec.workload.uses_sandbox else 0.0,
        "rl.trainer.mfu": flops / (flow.compute_s * training.peak) if training.peak and flops else None,
        "rl.trainer.mfu_convention": CONVENTION,
        "plan.trainer.tokens_per_gpu_s": flow.rows * flow.row_tokens / flow.compute_s / trainer.count,
        "plan.generator.tokens_per_gpu_s": decoded / generator.count,
        "plan.latency.first_token_s": {"mean": flow.first_token_s},
        "rl.latency.queue_s": {"mean": parts["wait"]},
        "rl.latency.parked_s": {"mean": 0.0},
        "rl.latency.sandbox_start_s": {"mean": parts["start"]},
        "rl.latency.score_s": {"mean": parts["score"]},
        "rl.latency.decode_s": {"mean": parts["decode"]},
        "rl.latency.prefill_s": {"mean": parts["prefill"]},
        "rl.latency.tool_s": {"mean": parts["tool"]},
        "rl.latency.end_to_end_s": _tails(flow.latencies),
        "plan.step_s": flow.period_s,
        "plan.compute_s": flow.compute_s,
        "plan.run_s": flow.period_s * steps if steps else None,
        "plan.rows_per_step": flow.rows,
        "plan.row_tokens": flow.row_tokens,
        "plan.trained_tokens": flow.trained_tokens,
    }


def _histogram(shares: dict[int, float]) -> dict[str, Any]:
    mean = sum(age * share for age, share in shares.items()) if shares else None
    return {
        "counts": {str(age): share for age, share in shares.items()},
        "mean": mean,
        "max": max(shares, default=None),
    }
