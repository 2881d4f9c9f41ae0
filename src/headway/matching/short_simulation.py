"""A simulation that is short enough to wait for: of the run itself, or of an evenly cut part of it.

A part of 1/k has a k-th of the batch, the replicas, the sandboxes and the limits on rollouts; its trainer
takes as long for a k-th of the rows as the whole one for all. What a replica and a step see is as in the
whole run; only the maximum over a batch is over fewer rollouts, which matters where a batch waits for its
slowest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from headway.matching.relax import QuickTrainer
from headway.matching.simulate_models import ModelledDriver
from headway.queue.settings import EvalSettings, StopSettings

if TYPE_CHECKING:
    import random

    from headway.matching.build import Models
    from headway.matching.contracts import RolloutPlan, Workload
    from headway.matching.flow import Flow
    from headway.matching.simulate_models import SimSummary
    from headway.matching.spec_load import Spec
    from headway.queue.settings import DeadlineSettings, SchedulerSettings

_EVENTS_A_TURN = 2.2
_EVENTS_A_ROLLOUT = 5.0
_WARMUP_STEPS = 3
_FEWEST_STEPS = 8
_MOST_STEPS = 60
_NO_END = 1 << 40
_OVER = 1.25  # of the budget, what the least simulation may take
_WHOLE = ("samples_per_s", "queue.depth.all", "queue.depth.signal", "sandbox.live", "sandbox.starting")
_WHOLE_SIM = ("sim.rollouts.in_flight", "sim.rollouts.parked")


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a short simulation found."""

    words: str  # what was simulated
    metrics: dict[str, Any]  # of the whole run, where a part was simulated


class AtStep:
    """A `Workload` that stays as it is after `step` steps, whatever it would drift to."""

    def __init__(self, workload: Workload, step: int) -> None:
        self.workload = workload
        self.step = step

    def plan(
        self, rng: random.Random, task_id: str, rollout: str, attempt: int, step: int, purpose: str
    ) -> RolloutPlan:
        """Draw what an attempt does; see `contracts.Workload`."""
        del step
        return self.workload.plan(rng, task_id, rollout, attempt, self.step, purpose)

    def reward(self, rng: random.Random, plan: RolloutPlan) -> float:
        """Return an attempt's reward; see `contracts.Workload`."""
        return self.workload.reward(rng, plan)


def events_a_step(spec: Spec, flow: Flow) -> float:
    """Return about how many events a step of the whole run takes."""
    turns = max(1.0, spec.workload.turns)
    started = flow.rows / max(0.05, (1.0 - flow.lost_to_zero) * (1.0 - flow.stale) * (1.0 - flow.cancelled))
    return started * (_EVENTS_A_ROLLOUT + _EVENTS_A_TURN * turns)


def fewest_steps(spec: Spec) -> int:
    """Return the steps that a simulation has at least, those that fill the run up included."""
    return _WARMUP_STEPS + spec.scheduler.depth + _FEWEST_STEPS


def short_simulation(
    spec: Spec,
    models: Models,
    flow: Flow,
    *,
    budget_events: int,
    step: int = 0,
    seed: int = 0,
    at_any_cost: bool = False,
) -> Simulated | None:
    """Simulate as many steps as the budget of events allows, of the whole run or a part.

    Args:
        spec: what to simulate.
        models: of it.
        flow: says about how many events a step takes.
        budget_events: about what may be simulated.
        step: after which the rollouts are drawn, all of them: nothing drifts meanwhile.
        seed: of all chance.
        at_any_cost: simulate the least even where it is beyond the budget.

    Returns None where the least would be beyond the budget, or where it comes to no step.
    """
    scheduler = spec.scheduler
    each = events_a_step(spec, flow)
    wanted = fewest_steps(spec)
    part = fitting_part(scheduler, models.replicas, each * wanted, budget_events)
    if each / part * wanted > _OVER * budget_events and not at_any_cost:
        return None
    steps = max(wanted, min(_MOST_STEPS, int(budget_events * part / each)))
    settings, cut = cut_settings(scheduler, part), cut_models(models, part)
    events = int(steps * each / part)
    warmup_steps = _WARMUP_STEPS + scheduler.depth
    summary = _simulate(settings, cut, events, warmup_steps, step, seed)
    if summary.steps < _FEWEST_STEPS // 2:  # a step takes more events than was expected
        summary = _simulate(settings, cut, 2 * events, warmup_steps, step, seed)
    if not summary.steps or not summary.metrics["rl.consumption.wall_samples_per_s"]:
        return None
    words = f"{summary.steps} steps" + (f" of a part of 1/{part}" if part > 1 else "")
    return Simulated(words, _of_the_whole(summary.metrics, part))


def _simulate(
    settings: SchedulerSettings, models: Models, events: int, warmup_steps: int, step: int, seed: int
) -> SimSummary:
    driver = driver_of(settings, models, steps=_NO_END, step=step, seed=seed)
    return driver.run(warmup_steps=warmup_steps, max_events=events)


def driver_of(
    settings: SchedulerSettings, models: Models, *, steps: int, step: int, seed: int, **watched: Any
) -> ModelledDriver:
    """Return the driver of so many steps without evaluations, its rollouts drawn as after a step.

    Args:
        settings: of the run, or of a part of it.
        models: likewise.
        steps: after which it ends.
        step: after which the rollouts are drawn.
        seed: of the simulation.
        watched: `journal` and `control` of ModelledDriver.
    """
    return ModelledDriver(
        replace(
            settings,
            stop=StopSettings(steps=steps),
            eval=EvalSettings(num_tasks=0, at_start=False, at_end=False),
            deadlines=_patient(settings.deadlines),
        ),
        engine=models.engine,
        replicas=models.replicas,
        trainer=models.trainer,
        workload=AtStep(models.workload, step),
        fleet=models.fleet,
        seed=seed,
        **watched,
    )


def _of_the_whole(metrics: dict[str, Any], part: int) -> dict[str, Any]:
    """Return the metrics with what is in proportion to the run's size multiplied."""
    whole = dict(metrics)
    for name, value in metrics.items():
        if part == 1 or not (name.endswith(_WHOLE) or name in _WHOLE_SIM):
            continue
        if isinstance(value, dict):
            levels = cast("dict[str, float | None]", value)
            whole[name] = {key: None if level is None else level * part for key, level in levels.items()}
        elif value is not None:
            whole[name] = value * part
    return whole


def _patient(deadlines: DeadlineSettings) -> DeadlineSettings:
    """Return deadlines that nothing modelled passes: `plan.doubts` names those that the run would."""
    names = ("train_s", "publish_s", "apply_s", "checkpoint_s", "sandbox_s")
    return replace(deadlines, **dict.fromkeys(names, 1e6))


def fitting_part(scheduler: SchedulerSettings, replicas: int, events: float, budget_events: int) -> int:
    """Return into how many parts to cut a run of so many events, so that one is within a budget.

    A part has whole groups and replicas; where even the smallest is beyond the budget, it is that one.
    """
    groups = scheduler.queue.batch_groups
    parts = [part for part in range(1, groups + 1) if groups % part == 0 and replicas % part == 0]
    return next((part for part in parts if events / part <= budget_events), parts[-1])


def cut_models(models: Models, part: int) -> Models:
    """Return the machines of a part."""
    if part == 1:
        return models
    trainer = QuickTrainer(models.trainer, rows=float(part))
    return replace(models, replicas=models.replicas // part, trainer=trainer)


def cut_settings(scheduler: SchedulerSettings, part: int) -> SchedulerSettings:
    """Return the settings of a part: what is in proportion to the run's size divided."""
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
