"""What a run will do, from its SPEC: rates, queue, staleness, latencies, cost, and the bottleneck.

A short simulation of the real scheduler answers, of the whole run or of an evenly cut part of it, wherever
one fits into about two seconds; beyond that the fluid model does. `by` says which, and how far to trust it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headway.matching.build import Models, accelerator_of, models_of
from headway.matching.cost import RunCost, ServicePrice, price_of
from headway.matching.flow import Flow
from headway.matching.fluid import Fluid
from headway.matching.plan_metrics import metrics_of, part_means
from headway.matching.plan_simulated import simulated_flow, simulated_metrics, simulated_parts
from headway.matching.relax import Bottleneck, bottleneck, gains
from headway.matching.sampled import Sample, draw
from headway.matching.short_simulation import short_simulation

if TYPE_CHECKING:
    from headway.matching.spec import PoolSettings
    from headway.matching.spec_load import Spec

BUDGET_EVENTS = 75_000
"""Of the simulation that answers: about a second and a half."""

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
    step: int  # after which the rollouts are drawn
    simulated: bool
    flow: Flow  # the fluid model's
    sample: Sample
    bottleneck: Bottleneck
    gains: dict[str, float]  # of each resource that is a quarter better, in trained rollouts/s
    course: list[Moment]  # empty for a run that does not drift
    cost: RunCost | None
    service: ServicePrice | None
    notes: list[str] = field(default_factory=list[str])


def make_plan(spec: Spec, *, step: int = 0, budget_events: int = BUDGET_EVENTS, seed: int = 0) -> Plan:
    """Plan a run whose settings stay as they are; see `plan_control.follow_control` for one with control.

    Args:
        spec: what it is.
        step: optimizer steps after which the rollouts are drawn; drift goes on from there in `course`.
        budget_events: of the short simulation; 0 has the fluid model answer.
        seed: of that simulation.

    Raises:
        UserError: what does not fit, or an unknown accelerator.
    """
    models = models_of(spec)
    sample = sample_of(spec, models, step)
    fluid = Fluid(spec, models, sample)
    flow = fluid.solve()
    metrics, parts, state = metrics_of(spec, models, fluid, flow), part_means(fluid, flow), flow
    simulated = short_simulation(spec, models, flow, budget_events=budget_events, step=step, seed=seed)
    if simulated is not None:
        by = f"a simulation of {simulated.words}"
        metrics = simulated_metrics(spec, models, metrics, simulated.metrics)
        parts, state = simulated_parts(metrics), simulated_flow(flow, metrics)
    else:
        by = "the fluid model, for a simulation would take longer"
        if (why := why_simulate(spec)) is not None:
            by += f"; here it may be off by a quarter ({why})"
        by += ": headway simulate has no such limit"
    cost = run_cost(spec, metrics)
    if cost is not None:
        metrics["plan.usd_per_step"] = cost.usd_per_hour * metrics["plan.step_s"] / 3600.0
        metrics["rl.cost.usd_per_mtok"] = cost.usd_per_mtok
        metrics["plan.usd_per_row_mtok"] = cost.usd_per_row_mtok
        metrics["plan.usd_per_run"] = cost.usd_per_hour * (metrics["plan.run_s"] or 0.0) / 3600.0
    few = replace(sample, groups=sample.groups[: max(8, 400 // sample.group_size)])
    found = gains(spec, models, few, Fluid(spec, models, few).solve())
    what = bottleneck(state, found, parts)
    return Plan(
        metrics=metrics,
        by=by,
        step=step,
        simulated=simulated is not None,
        flow=flow,
        sample=sample,
        bottleneck=what,
        gains=found,
        course=course(spec, models, metrics, step),
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
    if spec.workload.failure_rate:
        return "rollouts fail: it knows neither second attempts nor groups that too few are left of"
    if 2 * scheduler.queue.publish_every > scheduler.depth + 1:
        return f"a version each {scheduler.queue.publish_every} steps: generation waits for some of them"
    return None


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


def course(spec: Spec, models: Models, headline: dict[str, Any] | None = None, step: int = 0) -> list[Moment]:
    """Return what the run does over its steps, empty where nothing drifts.

    The fluid model says it; with the metrics of a `headline` at `step`, moved so that it agrees there.
    """
    workload, steps = spec.workload, spec.scheduler.stop.steps or spec.workload.drift_steps
    if not workload.drift and not workload.learning:
        return []
    at = sorted(
        {round(share * steps) for share in _COURSE} | ({step} if headline is not None else set[int]())
    )
    flows = {
        moment: Fluid(spec, models, sample_of(spec, models, moment, most_turns=6_000, fewest=4)).solve()
        for moment in at
    }
    moved, idle, prefill = 1.0, 0.0, 1.0
    if headline is not None:
        base = flows[step]
        moved = headline["rl.consumption.wall_samples_per_s"] / base.wall
        idle = (1.0 - headline["rl.trainer.wait_fraction"]) / max(1e-9, (1.0 - base.wait) * moved)
        prefill = headline["plan.prefill_fraction"] / max(1e-9, base.replica.prefill_fraction)
    moments: list[Moment] = []
    for moment, flow in flows.items():
        wall = flow.wall * moved
        busy = (1.0 - flow.wait) * moved * (idle if headline is not None else 1.0)
        if busy > 1.0:
            wall, busy = wall / busy, 1.0
        share = min(1.0, flow.replica.prefill_fraction * prefill)
        moments.append(
            Moment(
                moment, flow.production * moved, flow.active, wall, 1.0 - busy, flow.zero, share,
                flow.rows / wall,
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
