"""What changing one setting would do: the same rollouts, another SPEC, the model that gave the headline.

Where simulations are short enough each change is simulated, beside the run as it is, with the same chance.
Elsewhere the fluid model says by how much a change moves the rate, and the headline is moved by that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.core.errors import UserError
from headway.matching.build import accelerator_of, models_of
from headway.matching.fluid import Fluid
from headway.matching.plan import sample_of, usd_per_hour
from headway.matching.relax import Bottleneck
from headway.matching.short_simulation import events_a_step, fewest_steps, short_simulation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headway.matching.build import Models
    from headway.matching.flow import Flow
    from headway.matching.plan import Plan
    from headway.matching.sampled import Sample
    from headway.matching.spec_load import Spec

ROW_EVENTS = 60_000
"""Of all simulations of changes together: about a second; twice that where the fluid model is off."""
_OFF = 0.1  # of the headline, from which on the fluid model is


@dataclass(frozen=True, slots=True)
class Change:
    """One change and what it does."""

    words: str
    overrides: tuple[str, ...]
    samples: float  # relative change of trained rollouts/s
    wait: float  # the trainer's wait fraction afterwards
    staleness: float  # mean steps, of trained rollouts
    usd: float | None  # relative change of dollars per trained token, None without a price


@dataclass(frozen=True, slots=True)
class _Rates:
    """What a change comes to."""

    wall: float
    wait: float
    staleness: float


class _Judge:
    """Says what a change does, so that one that does nothing comes out as the headline."""

    def __init__(self, spec: Spec, plan: Plan, num_changes: int, budget_events: int, seed: int) -> None:
        self.spec, self.plan, self.seed = spec, plan, seed
        self.headline = _rates_of(plan.metrics)
        self.off = abs(plan.flow.wall / self.headline.wall - 1.0)
        self._budget = budget_events // (num_changes + 1)
        size = max(8, 400 // plan.sample.group_size)
        self._few = replace(plan.sample, groups=plan.sample.groups[:size])
        least = events_a_step(spec, plan.flow) * fewest_steps(spec)
        if self.off > _OFF and self._budget < least <= 2 * self._budget:
            self._budget = int(least)
        base = None
        if plan.simulated and least <= self._budget:
            base = self._simulated(spec, models_of(spec), plan.flow)
        self.base = base
        self._mean_age = _mean_age(spec, plan.flow)

    @property
    def by(self) -> str:
        """What judges."""
        if self.base is not None:
            return "simulations"
        doubt = f", whose rate is {self.off:.0%} off the headline: take its signs alone"
        return f"the fluid model{doubt if self.off > _OFF else ''}"

    def _simulated(self, spec: Spec, models: Models, flow: Flow) -> _Rates | None:
        found = short_simulation(
            spec,
            models,
            flow,
            budget_events=self._budget,
            step=self.plan.step,
            seed=self.seed,
        )
        return None if found is None else _rates_of(found.metrics)

    def of(self, overrides: tuple[str, ...]) -> tuple[_Rates, Spec] | None:
        """Return what overrides do, None where it is not known; raises UserError for what does not fit."""
        sample = self.plan.sample if self.base is None else self._few  # for a simulation's length only
        flow, changed = solve_changed(self.spec, overrides, sample)
        headline, base = self.headline, self.plan.flow
        if self.base is not None:
            after = self._simulated(changed, models_of(changed), flow)
            if after is None:
                return None
            wait = headline.wait + after.wait - self.base.wait
            age = headline.staleness + after.staleness - self.base.staleness
            wall = headline.wall * after.wall / self.base.wall
            return _Rates(wall, min(1.0, max(0.0, wait)), max(0.0, age)), changed
        # The trainer's busy share goes with the rate and with what a rollout costs it.
        cost = (flow.compute_s + flow.publish_s) / flow.rows
        before = (base.compute_s + base.publish_s) / base.rows
        wall = headline.wall * flow.wall / base.wall
        busy = (1.0 - headline.wait) * wall / headline.wall * cost / before
        if busy > 1.0:
            wall, busy = wall / busy, 1.0
        age = headline.staleness + _mean_age(changed, flow) - self._mean_age
        return _Rates(wall, 1.0 - busy, min(max(0.0, age), float(changed.scheduler.queue.bound))), changed


def _rates_of(metrics: dict[str, Any]) -> _Rates:
    return _Rates(
        metrics["rl.consumption.wall_samples_per_s"],
        metrics["rl.trainer.wait_fraction"],
        metrics["rl.staleness.trajectory"]["mean"] or 0.0,
    )


def _mean_age(spec: Spec, flow: Flow) -> float:
    return sum(age * share for age, share in flow.ages(spec.scheduler.queue.bound).items())


def sensitivity(
    spec: Spec, plan: Plan, *, budget_events: int = ROW_EVENTS, seed: int = 0
) -> tuple[list[Change], str]:
    """Return what each change would do, the largest gain first, and which model says so.

    What does not fit is left out. Every row is compared with the plan's headline.
    """
    price = usd_per_hour(spec)
    changes: list[Change] = []
    wanted = list(candidates(spec, plan.flow))
    judge = _Judge(spec, plan, len(wanted), budget_events, seed)
    for words, overrides in wanted:
        try:
            found = judge.of(overrides)
        except UserError:
            continue
        if found is None:
            continue
        rates, changed = found
        after, samples = usd_per_hour(changed), rates.wall / judge.headline.wall
        usd = after / price / samples - 1.0 if price and after else None
        changes.append(Change(words, overrides, samples - 1.0, rates.wait, rates.staleness, usd))
    return sorted(changes, key=lambda change: -change.samples), judge.by


_ROWS = {  # of each bottleneck, the change that is its remedy, as its words begin
    "trainer": "accelerators from generator to trainer",
    "kv": "generator KV in fp8",
    "setting": "max_running",
    "max_running_rollouts": "queue.max_running_rollouts",
    "sandboxes": "sandbox.max_live",
    "tool": "tool calls",
    "depth": "queue.depth",
    "stragglers": "oversampling.rollouts_extra",
    "zero_advantage": "tasks of middling",
    "decode": "accelerators from trainer to generator",
}
_WHY = {
    "setting": "the engines' slots hold rollouts back (max_running)",
    "max_running_rollouts": "queue.max_running_rollouts holds rollouts back",
    "sandboxes": "sandboxes hold rollouts back (sandbox.max_live)",
    "tool": "tool calls take their time",
    "depth": "the staleness budget (queue.depth) lets no more rollouts in",
    "stragglers": "groups wait for their slowest member",
    "zero_advantage": "much of what is made carries no signal",
    "decode": "engines decode as fast as they can",
    "kv": "the engines' memory for keys and values is full",
}
_NOTABLE = 0.02  # of the rate: less is noise


def settled(plan: Plan, changes: Sequence[Change]) -> Plan:
    """Return the plan with a bottleneck whose remedy helps in its own table.

    Where the named one's remedy gains nothing the change that gains most names the bottleneck; where no
    change gains, the bottleneck's remedy says so.
    """
    named = plan.bottleneck
    depth = _row("depth", changes)
    if (
        depth is not None
        and depth.samples >= _NOTABLE
        and named.name in ("prefill", "tool", "start", "score")
    ):
        more = f"{named.remedy}, or keep more rollouts in flight ({depth.words}: {depth.samples:+.0%})"
        named = replace(named, remedy=more)
        plan = replace(plan, bottleneck=named)
    own = _row(named.name, changes)
    best = max(changes, key=lambda change: change.samples, default=None)
    if best is None or (own is not None and own.samples >= max(_NOTABLE, 0.3 * best.samples)):
        return plan
    if own is None and named.name not in ("prefill", "start", "score", "sandbox_starts"):
        return plan
    if own is None and best.samples < 5 * _NOTABLE:
        return plan
    if best.samples < _NOTABLE:
        if named.name == "trainer":
            return plan
        remedy = "no single change below helps: combine two, or add accelerators"
        return replace(plan, bottleneck=replace(named, remedy=remedy))
    for name in _WHY:
        if _row(name, [best]) is not None:
            why = f"generation is the slower half, and {_WHY[name]}"
            remedy = f"{best.words}: {best.samples:+.0%} samples/s"
            return replace(plan, bottleneck=Bottleneck(name, why, remedy))
    remedy = f"{best.words}: {best.samples:+.0%} samples/s"
    return replace(plan, bottleneck=replace(named, remedy=remedy))


def _row(name: str, changes: Sequence[Change]) -> Change | None:
    words = _ROWS.get(name)
    found = [change for change in changes if words is not None and words in change.words]
    return max(found, key=lambda change: change.samples, default=None)


def solve_changed(spec: Spec, overrides: tuple[str, ...], sample: Sample) -> tuple[Flow, Spec]:
    """Solve a SPEC with overrides, over the same rollouts where they still are the same.

    Raises UserError for settings that are refused, and for what does not fit.
    """
    changed = spec.changed(*overrides)
    models = models_of(changed)
    if changed.workload != spec.workload or _size(changed) != sample.group_size:
        sample = sample_of(changed, models, sample.step)
    return Fluid(changed, models, sample).solve(), changed


def _size(spec: Spec) -> int:
    return spec.scheduler.queue.group_size + spec.scheduler.oversampling.rollouts_extra


def candidates(spec: Spec, base: Flow) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield changes that may be worth a look, as words and overrides."""
    yield from _machines(spec)
    queue, generator = spec.scheduler.queue, spec.hardware.generator
    depth = queue.max_depth
    deeper = max(depth + 1, depth * 2)
    bound = max(queue.bound, deeper)
    yield f"queue.depth {depth} to {deeper}", (f"queue.depth={deeper}", f"queue.bound={bound}")
    if depth > 1:
        yield f"queue.depth {depth} to {depth // 2}", (f"queue.depth={depth // 2}",)
    extra = max(1, queue.group_size // 4)
    had = spec.scheduler.oversampling.rollouts_extra
    yield (
        f"oversampling.rollouts_extra {had} to {had + extra}",
        (f"oversampling.rollouts_extra={had + extra}",),
    )
    if had:
        yield f"oversampling.rollouts_extra {had} to 0", ("oversampling.rollouts_extra=0",)
    if generator.accelerator and generator.weights != "fp8":
        yield "generator weights in fp8", ('hardware.generator.weights="fp8"',)
    if generator.accelerator and generator.kv != "fp8":
        yield "generator KV in fp8", ('hardware.generator.kv="fp8"',)
    if limit := queue.max_running_rollouts:
        yield (
            f"queue.max_running_rollouts {limit} to {2 * limit}",
            (f"queue.max_running_rollouts={2 * limit}",),
        )
    if prefill := generator.prefill_count:
        moved = max(1, (generator.replicas or 1) * round(prefill / (generator.replicas or 1) / 4))
        for sign, words in ((1, "prefill to decode"), (-1, "decode to prefill")):
            overrides = (f"hardware.generator.prefill_count={prefill - sign * moved}",)
            yield f"{moved} accelerators from {words}", overrides
    slots = spec.max_running
    yield f"max_running {slots} to {2 * slots} a replica", (f"hardware.generator.max_running={2 * slots}",)
    if spec.workload.uses_sandbox:
        live = spec.scheduler.max_sandboxes
        yield f"sandbox.max_live {live} to {2 * live}", (f"sandbox.max_live={2 * live}",)
    if spec.workload.tool_s:
        half = spec.workload.tool_s / 2
        yield "tool calls twice as fast", (f"workload.tool_s={half}",)
    if base.zero > 0.2:
        yield "tasks of middling difficulty only", ("workload.solve_alpha=3.0", "workload.solve_beta=3.0")


def _machines(spec: Spec) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield moves of accelerators from one side to the other, whole replicas at a time."""
    trainer, generator = spec.hardware.trainer, spec.hardware.generator
    if not trainer.accelerator or not generator.accelerator:
        return
    same = accelerator_of(trainer, "hardware.trainer.accelerator") == accelerator_of(
        generator, "hardware.generator.accelerator"
    )
    width = trainer.tensor_parallel * trainer.context_parallel * trainer.pipeline_parallel
    size = max(generator.tensor_parallel, generator.expert_parallel) * generator.pipeline_parallel
    if generator.replicas:
        size = generator.count // generator.replicas
    unit = math.lcm(width, size)
    if not same:
        return
    for sign, words in ((1, "trainer to generator"), (-1, "generator to trainer")):
        moved = unit * max(1, round(0.125 * min(trainer.count, generator.count) / unit))
        left, right = trainer.count - sign * moved, generator.count + sign * moved
        if left < width or right < size:
            continue
        overrides = [f"hardware.trainer.count={left}", f"hardware.generator.count={right}"]
        if generator.replicas:
            overrides.append(f"hardware.generator.replicas={right // size}")
        if generator.prefill_count:
            prefill = round(generator.prefill_count * right / generator.count)
            overrides.append(f"hardware.generator.prefill_count={prefill}")
        yield f"{moved} accelerators from {words}", tuple(overrides)
