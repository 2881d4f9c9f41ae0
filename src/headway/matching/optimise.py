"""The best split and settings for a budget of accelerators, under a staleness bound.

Every split in whole units, with depth, slots and oversampling on a small grid, is solved by the fluid model
over the same rollouts; the best few are solved again over more of them. What does not fit is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.errors import UserError
from headway.matching.build import models_of
from headway.matching.fluid import Fluid
from headway.matching.plan import sample_of, usd_per_hour

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.matching.sampled import Sample
    from headway.matching.spec_load import Spec

_MOST_SPLITS = 12


@dataclass(frozen=True, slots=True)
class Option:
    """One way to spend the budget."""

    trainer: int
    generator: int
    overrides: tuple[str, ...]
    samples_per_s: float  # trained
    tokens_per_s: float  # sampled ones, trained
    wait: float
    staleness: float  # mean steps, of trained rollouts
    usd_per_row: float | None  # dollars of one trained rollout


def optimise(spec: Spec, gpus: int, *, bound: int | None = None, limit_s: float = 45.0) -> list[Option]:
    """Return the best options, trained rollouts/s falling; with oversampling samples are not alike.

    Args:
        spec: what to run; its parallel cuts stay.
        gpus: accelerators in all.
        bound: staleness bound, steps; the SPEC's by default.
        limit_s: after which the search ends with what it has.

    Raises:
        UserError: no split of so many accelerators fits.
    """
    until_s = stopwatch() + limit_s
    bound = spec.scheduler.queue.bound if bound is None else bound
    found: list[tuple[Option, Spec]] = []
    refused: UserError | None = None
    coarse: dict[int, Sample] = {}
    for trainer, generator in splits(spec, gpus):
        for overrides in settings(spec, trainer, generator, bound):
            if stopwatch() > until_s:
                break
            try:
                found.append(_solve(spec, trainer, generator, overrides, coarse))
            except UserError as error:
                refused = error
    if not found:
        raise refused or UserError(
            "must be enough for a trainer and one replica",
            value=gpus,
            key="--gpus",
            remedy="Give more, or lower the parallelism of a replica",
        )
    found.sort(key=lambda item: -item[0].samples_per_s)
    best: list[Option] = []
    fine: dict[int, Sample] = {}
    seen: set[tuple[int, str]] = set()
    for option, _ in found:
        key = (option.trainer, f"{option.samples_per_s:.4g}")  # slots that make no difference
        if key in seen:
            continue
        seen.add(key)
        best.append(_solve(spec, option.trainer, option.generator, option.overrides, fine, 20_000)[0])
        if len(best) == 6:
            break
    return sorted(best, key=lambda option: -option.samples_per_s)


def _solve(
    spec: Spec,
    trainer: int,
    generator: int,
    overrides: tuple[str, ...],
    samples: dict[int, Sample],
    most_turns: int = 3_000,
) -> tuple[Option, Spec]:
    changed = spec.changed(*overrides)
    models = models_of(changed)
    size = changed.scheduler.queue.group_size + changed.scheduler.oversampling.rollouts_extra
    if size not in samples:
        samples[size] = sample_of(changed, models, 0, most_turns=most_turns)
    flow = Fluid(changed, models, samples[size]).solve()
    price = usd_per_hour(changed)
    ages = flow.ages(changed.scheduler.queue.bound)
    staleness = sum(age * share for age, share in ages.items())
    usd = None if price is None else price / 3600.0 / flow.wall
    tokens = flow.wall * flow.trained_tokens
    return Option(trainer, generator, overrides, flow.wall, tokens, flow.wait, staleness, usd), changed


def present(spec: Spec) -> Option:
    """Return the SPEC as it is, by the model that the options are by."""
    hardware = spec.hardware
    return _solve(spec, hardware.trainer.count, hardware.generator.count, (), {}, 20_000)[0]


def splits(spec: Spec, gpus: int) -> Iterator[tuple[int, int]]:
    """Yield trainer and generator counts that add up, in whole units of both, a dozen at most."""
    trainer = spec.hardware.trainer
    width = trainer.tensor_parallel * trainer.context_parallel * trainer.pipeline_parallel
    size = replica_size(spec)
    unit = math.lcm(width, size) if gpus % math.lcm(width, size) == 0 else size
    counts = [count for count in range(unit, gpus - size + 1, unit) if (gpus - count) % size == 0]
    counts = [count for count in counts if count % width == 0]
    every = max(1, math.ceil(len(counts) / _MOST_SPLITS))
    for count in counts[::every]:
        yield count, gpus - count


def replica_size(spec: Spec) -> int:
    """Return the accelerators of one replica, its prefill part included."""
    generator = spec.hardware.generator
    if generator.replicas:
        return generator.count // generator.replicas
    return max(generator.tensor_parallel, generator.expert_parallel) * generator.pipeline_parallel


def settings(spec: Spec, trainer: int, generator: int, bound: int) -> Iterator[tuple[str, ...]]:
    """Yield the settings to try with a split."""
    pool = spec.hardware.generator
    base = [f"hardware.trainer.count={trainer}", f"hardware.generator.count={generator}"]
    if pool.replicas:
        base.append(f"hardware.generator.replicas={generator // replica_size(spec)}")
    if pool.prefill_count:
        share = pool.prefill_count / pool.count
        base.append(f"hardware.generator.prefill_count={round(generator * share)}")
    extra = spec.scheduler.queue.group_size // 4
    oversampled = sorted({0, spec.scheduler.oversampling.rollouts_extra, extra})
    slots = sorted({spec.max_running, 2 * spec.max_running})
    for rollouts_extra in oversampled:
        for running in slots:
            yield (
                *base,
                f"queue.bound={bound}",
                f"queue.depth={bound}",
                f"oversampling.rollouts_extra={rollouts_extra}",
                f"hardware.generator.max_running={running}",
            )
