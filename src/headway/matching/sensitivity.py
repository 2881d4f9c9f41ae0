"""What changing one setting would do: the same rollouts, another SPEC, the fluid model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.errors import UserError
from headway.matching.build import accelerator_of, models_of
from headway.matching.fluid import Flow, Fluid
from headway.matching.plan import sample_of, usd_per_hour

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.matching.sampled import Sample
    from headway.matching.spec_load import Spec


@dataclass(frozen=True, slots=True)
class Change:
    """One change and what it does."""

    words: str
    overrides: tuple[str, ...]
    samples: float  # relative change of trained rollouts/s
    wait: float  # the trainer's wait fraction afterwards
    staleness: float  # mean steps, of trained rollouts
    usd: float | None  # relative change of dollars per trained token, None without a price


def sensitivity(spec: Spec, base: Flow, sample: Sample) -> list[Change]:
    """Return what each change would do, the largest gain first; what does not fit is left out."""
    price = usd_per_hour(spec)
    changes: list[Change] = []
    for words, overrides in candidates(spec, base):
        try:
            flow, changed = solve_changed(spec, overrides, sample)
        except UserError:
            continue
        after = usd_per_hour(changed)
        usd = None
        if price and after:
            usd = after / price * base.wall / flow.wall - 1.0
        ages = flow.ages(changed.scheduler.queue.bound)
        mean = sum(age * share for age, share in ages.items())
        changes.append(Change(words, overrides, flow.wall / base.wall - 1.0, flow.wait, mean, usd))
    return sorted(changes, key=lambda change: -change.samples)


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
