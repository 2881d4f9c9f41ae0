"""A simulation that is short enough to wait for: of the run itself, or of an evenly cut part of it.

A part of 1/k has a k-th of the batch, the replicas, the sandboxes and the limits on rollouts; its trainer
takes as long for a k-th of the rows as the whole one for all. What a replica and a step see is as in the
whole run; only the maximum over a batch is over fewer rollouts, which matters where a batch waits for its
slowest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.matching.relax import QuickTrainer
from headway.matching.simulate_models import ModelledDriver
from headway.queue.settings import EvalSettings, StopSettings

if TYPE_CHECKING:
    from headway.matching.build import Models
    from headway.matching.fluid import Flow
    from headway.matching.spec_load import Spec
    from headway.queue.settings import DeadlineSettings, SchedulerSettings

_EVENTS_A_TURN = 2.2
_EVENTS_A_ROLLOUT = 8.0
_WARMUP_STEPS = 3
_FEWEST_STEPS = 8


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a short simulation found."""

    words: str  # what was simulated
    metrics: dict[str, Any]


def short_simulation(
    spec: Spec, models: Models, flow: Flow, *, budget_events: int, seed: int = 0, at_any_cost: bool = False
) -> Simulated | None:
    """Simulate as many steps as the budget of events allows, of the whole run or a part.

    `flow` says about how long a step takes. None where the least would be more than twice the budget, unless
    it is to be had `at_any_cost`.
    """
    scheduler = spec.scheduler
    turns = max(1.0, spec.workload.turns)
    started = flow.rows / max(0.05, (1.0 - flow.zero) * (1.0 - flow.stale) * (1.0 - flow.cancelled))
    each = started * (_EVENTS_A_ROLLOUT + _EVENTS_A_TURN * turns)
    wanted = _WARMUP_STEPS + scheduler.depth + _FEWEST_STEPS
    part = 1
    for candidate in _parts(scheduler, models.replicas):
        part = candidate
        if each / part * wanted <= budget_events:
            break
    if each / part * wanted > 2 * budget_events and not at_any_cost:
        return None
    steps = max(wanted, min(100, int(budget_events * part / each)))
    settings, cut = _cut(scheduler, part), models
    if part > 1:
        cut = replace(
            models,
            replicas=models.replicas // part,
            trainer=QuickTrainer(models.trainer, rows=float(part)),
        )
    wall_s = steps * flow.period_s
    driver = ModelledDriver(
        replace(
            settings,
            stop=StopSettings(steps=0, wall_s=wall_s),
            eval=EvalSettings(num_tasks=0, at_start=False, at_end=False),
            deadlines=_patient(settings.deadlines),
        ),
        engine=cut.engine,
        replicas=cut.replicas,
        trainer=cut.trainer,
        workload=cut.workload,
        fleet=cut.fleet,
        seed=seed,
    )
    summary = driver.run(0, warmup_steps=_WARMUP_STEPS + scheduler.depth)
    metrics = {name: value for name, value in summary.metrics.items() if name.startswith("rl.")}
    for name, value in metrics.items():
        if part > 1 and name.endswith("samples_per_s") and value is not None:
            metrics[name] = value * part
    words = f"{summary.steps} steps" + (f" of a part of 1/{part}" if part > 1 else "")
    return Simulated(words, metrics)


def _patient(deadlines: DeadlineSettings) -> DeadlineSettings:
    """Return deadlines that nothing modelled passes: `plan.doubts` names those that the run would."""
    names = ("train_s", "publish_s", "apply_s", "checkpoint_s", "sandbox_s")
    return replace(deadlines, **dict.fromkeys(names, 1e6))


def _parts(scheduler: SchedulerSettings, replicas: int) -> list[int]:
    """Return the parts that a run can be cut into: whole groups and replicas in each."""
    groups = scheduler.queue.batch_groups
    return [part for part in range(1, groups + 1) if groups % part == 0 and replicas % part == 0]


def _cut(scheduler: SchedulerSettings, part: int) -> SchedulerSettings:
    queue, extra = scheduler.queue, scheduler.oversampling
    return replace(
        scheduler,
        queue=replace(
            queue,
            batch_size=queue.batch_size // part,
            max_running_rollouts=-(-queue.max_running_rollouts // part),
        ),
        oversampling=replace(extra, groups_extra=-(-extra.groups_extra // part)),
        max_sandboxes=max(2, scheduler.max_sandboxes // part),
        verify_sandboxes=max(1, scheduler.verify_sandboxes // part),
        max_sandbox_starts_per_s=scheduler.max_sandbox_starts_per_s / part,
        max_starting_sandboxes=-(-scheduler.max_starting_sandboxes // part),
    )
