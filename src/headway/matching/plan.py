"""What a run will do, from its SPEC: rates, queue, staleness, latencies, cost, and the bottleneck.

The fluid model answers where it holds: two or more steps of depth, and nothing parked. Elsewhere a short
simulation of the same scheduler does, of the whole run or of an evenly cut part of it; `by` says which.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headway.matching.build import Models, accelerator_of, models_of
from headway.matching.cost import RunCost, ServicePrice, price_of
from headway.matching.fluid import Flow, Fluid
from headway.matching.model_facts import CONVENTION
from headway.matching.relax import Bottleneck, bottleneck, gains
from headway.matching.sampled import Sample, draw
from headway.matching.short_simulation import short_simulation

if TYPE_CHECKING:
    from headway.matching.spec import PoolSettings
    from headway.matching.spec_load import Spec

_COURSE = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the run, where it drifts


@dataclass(frozen=True, slots=True)
class Moment:
    """What a run does after so many steps."""

    step: int
    production: float
    active: float
    wall: float
    wait: float
    zero: float
    prefill_fraction: float
    step_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan: `metrics` by telemetry's names, and `plan.` names where it has none."""

    metrics: dict[str, Any]
    by: str
    flow: Flow
    sample: Sample
    bottleneck: Bottleneck
    gains: dict[str, float]  # of each resource that is a quarter better, in trained rollouts/s
    course: list[Moment]  # empty for a run that does not drift
    cost: RunCost | None
    service: ServicePrice | None
    notes: list[str] = field(default_factory=list[str])


def make_plan(spec: Spec, *, step: int = 0, budget_events: int = 25_000, seed: int = 0) -> Plan:
    """Plan a run.

    Args:
        spec: what it is.
        step: optimizer steps after which the rollouts are drawn; drift goes on from there in `course`.
        budget_events: of the short simulation, where one is needed.
        seed: of that simulation.

    Raises:
        UserError: what does not fit, or an unknown accelerator.
    """
    models = models_of(spec)
    sample = sample_of(spec, models, step)
    fluid = Fluid(spec, models, sample)
    flow = fluid.solve()
    metrics = metrics_of(spec, models, fluid, flow)
    by = "the fluid model"
    if (why := why_simulate(spec)) is not None:
        simulated = short_simulation(spec, models, flow, budget_events=budget_events, seed=seed)
        by = f"the fluid model, which is some per cent off here ({why}): headway simulate is exact"
        if simulated is not None:
            by = f"a simulation of {simulated.words} ({why})"
            metrics |= {key: value for key, value in simulated.metrics.items() if value is not None}
            metrics = _follow(metrics, spec, flow)
    cost = run_cost(spec, metrics)
    if cost is not None:
        metrics["plan.usd_per_step"] = cost.usd_per_hour * metrics["plan.step_s"] / 3600.0
        metrics["rl.cost.usd_per_mtok"] = cost.usd_per_mtok
        metrics["plan.usd_per_row_mtok"] = cost.usd_per_row_mtok
        metrics["plan.usd_per_run"] = cost.usd_per_hour * (metrics["plan.run_s"] or 0.0) / 3600.0
    found = gains(spec, models, sample, flow)
    what = bottleneck(flow, found, part_means(fluid, flow))
    return Plan(
        metrics=metrics,
        by=by,
        flow=flow,
        sample=sample,
        bottleneck=what,
        gains=found,
        course=course(spec, models),
        cost=cost,
        service=price_of(spec.model.name) if spec.model is not None else None,
        notes=doubts(spec, models, flow),
    )


def sample_of(spec: Spec, models: Models, step: int, *, most_turns: int = 20_000, fewest: int = 8) -> Sample:
    """Draw the rollouts of a SPEC after `step` steps."""
    size = spec.scheduler.queue.group_size + spec.scheduler.oversampling.rollouts_extra
    return draw(models.workload, step=step, group_size=size, most_turns=most_turns, fewest=fewest)


def why_simulate(spec: Spec) -> str | None:
    """Return why the fluid model does not hold for a SPEC, None where it does."""
    scheduler = spec.scheduler
    if scheduler.depth < 2:
        return f"depth {scheduler.depth}: each batch waits for its slowest rollout"
    if scheduler.partial.park != "never":
        return "rollouts are parked"
    if scheduler.oversampling.groups_extra:
        return "groups are oversampled"
    return None


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
    sample = fluid.sample
    return {
        "decode": sample.mean("answer_tokens") * flow.replica.token_s,
        "prefill": flow.replica.prefill_s,
        "tool": sample.mean("tool_s"),
        "start": flow.start_s,
        "score": sample.mean("score_s"),
        "rollout": sum(flow.latencies) / max(1, len(flow.latencies)),
        "group": sum(flow.group_s) / max(1, len(flow.group_s)),
    }


def metrics_of(spec: Spec, models: Models, fluid: Fluid, flow: Flow) -> dict[str, Any]:
    """Return a steady state under the names of the metrics."""
    bound, sample = spec.scheduler.queue.bound, fluid.sample
    trajectory, token = flow.ages(bound), flow.token_ages(bound)
    zero = flow.zero if spec.scheduler.queue.drop_zero_advantage else 0.0
    lost = 1.0 - (1.0 - zero) * (1.0 - flow.stale) * (1.0 - flow.cancelled) * (1.0 - flow.failed)
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
        "plan.discard.filtered_fraction": zero,
        "plan.discard.stale_fraction": flow.stale,
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


def _follow(metrics: dict[str, Any], spec: Spec, flow: Flow) -> dict[str, Any]:
    """Return the metrics with those that follow from simulated rates."""
    wall = metrics["rl.consumption.wall_samples_per_s"]
    if wall:
        metrics["plan.step_s"] = flow.rows / wall
        steps = spec.scheduler.stop.steps
        metrics["plan.run_s"] = metrics["plan.step_s"] * steps if steps else None
    return metrics


def usd_per_hour(spec: Spec) -> float | None:
    """Return the price of all accelerators for an hour, or of the run's machine; None where none is known."""
    total = 0.0
    for pool, key in ((spec.hardware.trainer, "trainer"), (spec.hardware.generator, "generator")):
        price = gpu_price(pool, f"hardware.{key}.accelerator")
        if price is None:
            return spec.config.run.usd_per_hour
        share = spec.hardware.shared_tenants if key == "generator" else 1
        total += price * pool.count / share
    return total


def gpu_price(pool: PoolSettings, key: str) -> float | None:
    """Return a side's price of one accelerator for an hour: the SPEC's, else the table's, else None."""
    if pool.usd_per_gpu_hour:
        return pool.usd_per_gpu_hour
    accelerator = accelerator_of(pool, key)
    return accelerator.usd_per_hour or None if accelerator is not None else None


def run_cost(spec: Spec, metrics: dict[str, Any]) -> RunCost | None:
    """Return what the run costs, None without a price."""
    price, wall = usd_per_hour(spec), metrics["rl.consumption.wall_samples_per_s"]
    if price is None or not wall:
        return None
    return RunCost(price, wall * metrics["plan.row_tokens"], wall * metrics["plan.trained_tokens"])


def course(spec: Spec, models: Models) -> list[Moment]:
    """Return what the run does over its steps, empty where nothing drifts."""
    workload, steps = spec.workload, spec.scheduler.stop.steps or spec.workload.drift_steps
    if not workload.drift and not workload.learning:
        return []
    moments: list[Moment] = []
    for share in _COURSE:
        step = round(share * steps)
        flow = Fluid(spec, models, sample_of(spec, models, step, most_turns=6_000, fewest=4)).solve()
        replica = flow.replica
        moments.append(
            Moment(
                step, flow.production, flow.active, flow.wall, flow.wait, flow.zero,
                replica.prefill_fraction, flow.period_s,
            )
        )  # fmt: skip
    return moments


def doubts(spec: Spec, models: Models, flow: Flow) -> list[str]:
    """Return settings of the run that the plan runs into."""
    found: list[str] = []
    timeout_s, longest = spec.scheduler.rollout_timeout_s, max(flow.latencies, default=0.0)
    if longest > 4 * timeout_s:
        text = f"environment.rollout_timeout_s = {timeout_s:g} ends rollouts after {4 * timeout_s:g} s; "
        found.append(f"{text}the slowest would take {longest:.0f} s")
    limits, trainer = spec.scheduler.deadlines, models.trainer
    taken = {
        "train_s": ("a step's", flow.compute_s),
        "publish_s": ("a publication's", trainer.publish_s),
        "apply_s": ("an update's", trainer.apply_s),
        "checkpoint_s": ("a checkpoint's", trainer.save_s),
        "sandbox_s": ("a start's", flow.start_s),
    }
    for name, (whose, took_s) in taken.items():
        if took_s > (limit_s := getattr(limits, name)):
            found.append(
                f"deadlines.{name} = {limit_s:g} is below {whose} {took_s:.0f} s: the run would fail"
            )
    if flow.stale > 0.2:
        found.append(f"{flow.stale:.0%} of the groups are too old when they are complete: raise queue.bound")
    return found
