"""Random scenarios: settings, faults and kills drawn from a seed, played to the end and checked."""

from __future__ import annotations

import random
from dataclasses import replace

from headway.config.control import ControlSettings
from headway.core.commands import Finish
from headway.matching.control import Controller
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.queue.partial import PartialSettings
from headway.queue.recovery import RecoverySettings
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    DeadlineSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from headway.queue.staleness import StalenessSettings
from headway.queue.state import CARRIED
from tests.simulation.flow import FlowDriver, draw_flow
from tests.simulation.ledger import assert_conserved, assert_within_bound

MAX_EVENTS = 40_000  # a scenario that needs more than this hangs


def draw_settings(rng: random.Random) -> SchedulerSettings:
    """Draw settings in which every rule may be on."""
    group_size, bound = rng.randint(2, 4), rng.randint(0, 4)
    depth = min(rng.randint(-1, 4), bound)
    level = rng.choice([-1, -1, 0, 1, 2])
    may_lag = (bound if depth < 0 else depth) > 0 and level != 0
    return SchedulerSettings(
        queue=QueueSettings(
            group_size=group_size,
            batch_size=group_size * rng.randint(1, 3),
            bound=bound,
            depth=depth,
            max_refill_batches=rng.randint(0, 2),
            on_failed_rollout=rng.choice(["shrink", "void"]),
            max_empty_batches=3,
            publish_every=1 + rng.choice([0, 0, 1]) * may_lag,
            max_updating_replicas=rng.choice([0, 1]),
            batch_tokens=rng.choice([0, 0, 300]),
        ),
        staleness=StalenessSettings(
            token=rng.choice(["drop", "mask"]),
            down_weight_from=level,
            trajectory_bound=level,
            trajectory=rng.choice(["drop", "restart"]) if level else "drop",
            environment_bound=level,
            environment=rng.choice(["mask", "drop", "restart"]),
        ),
        partial=PartialSettings(
            park=rng.choice(["never", "batch", "update"]),
            after_steps=rng.randint(0, 2),
            max_late_batches=2,
            train=rng.choice(["all", "newest"]),
        ),
        recovery=RecoverySettings(generator_restarts=50, trainer_restarts=50, environment_restarts=50),
        stop=StopSettings(steps=5),
        checkpoint=CheckpointSettings(every_steps=rng.randint(0, 3)),
        eval=EvalSettings(num_tasks=rng.choice([0, 3]), every_steps=2),
        rollout_timeout_s=30.0,
        deadlines=DeadlineSettings(sandbox_s=30.0),
        max_sandboxes=rng.randint(2, 8),
        verify_sandboxes=1,
        num_replicas=rng.randint(1, 3),
    )


def draw_sim(rng: random.Random) -> SimSettings:
    """Draw durations and faults."""
    probability = [0.0, 0.0, 0.02, 0.2]
    rare = [0.0, 0.0, 0.0, 0.01, 0.05]
    return SimSettings(
        max_running=rng.randint(1, 16),
        tokens_sigma=rng.choice([0.0, 0.6, 1.2]),
        train_s=rng.choice([0.1, 2.0, 20.0]),
        apply_s=rng.choice([0.01, 3.0]),
        solve_rate=rng.choice([0.0, 0.1, 0.5, 0.5, 0.5, 0.5]),
        p_environment_fails=rng.choice(probability),
        p_infrastructure_fails=rng.choice(probability),
        p_hangs=rng.choice(probability),
        p_ignores_cancel=rng.choice([0.0, 0.5]),
        p_score_fails=rng.choice(probability),
        p_sandbox_lost=rng.choice(probability),
        p_repeated=rng.choice([0.0, 0.1]),
        tool_sigma=rng.choice([0.0, 2.0]),
        tool_s=rng.choice([0.1, 3.0]),
        generator_dies_every_s=rng.choice([0.0, 0.0, 100.0]),
        p_trainer_dies=rng.choice([0.0, 0.0, 0.2]),
        keeps_partials=rng.random() < 0.5,
        p_message_lost=rng.choice(rare),
        p_message_late=rng.choice(rare),
        late_s=rng.choice([2.0, 50.0]),
        p_score_hangs=rng.choice(rare),
        p_trainer_stalls=rng.choice([0.0, 0.0, 0.2]),
        p_weights_late=rng.choice([0.0, 0.0, 0.2]),
        stall_factor=rng.choice([5.0, 25.0, 60.0]),
        p_sandbox_lies=rng.choice([0.0, 0.0, 0.3]),
    )


def draw_evaluation(settings: SchedulerSettings, rng: random.Random) -> SchedulerSettings:
    """Return the same settings for a run that only evaluates."""
    n = rng.choice([1, 1, 4])
    chosen = EvalSettings(
        num_tasks=rng.choice([1, 9, 40]),
        rollouts_per_task=n,
        temperature=1.0,
        split=rng.choice(["eval", "train"]),
        only=True,
    )
    return replace(settings, eval=chosen)


def play(seed: int, *, control: bool = False) -> tuple[SimRun, Finish]:
    """Play the scenario of a seed, killed up to three times, and check every invariant on its journal.

    With `control` batches may leave early, and most runs have a controller that changes much.
    """
    rng = random.Random(seed)
    settings, sim = draw_settings(rng), draw_sim(rng)
    if seed % 8 == 6:
        settings = draw_evaluation(settings, random.Random(f"evaluation/{seed}"))
    stream = random.Random(f"stream/{seed}").random() < 0.5
    settings = replace(settings, queue=replace(settings.queue, stream=stream))
    controls = draw_control(random.Random(f"control/{seed}")) if control else None
    if control:
        waits = random.Random(f"batch_wait/{seed}")
        wait_s, share = waits.choice([0.0, 0.5, 5.0]), waits.choice([0.3, 0.75, 1.0])
        queue = replace(settings.queue, batch_wait_s=wait_s, batch_wait_share=share)
        settings = replace(settings, queue=queue, stop=StopSettings(steps=15))
    flow = seed % 3 == 1
    if flow:
        settings, sim = draw_flow(settings, sim, random.Random(f"flow/{seed}"))
    deaths = random.Random(f"deaths/{seed}").choice([0.0, 0.0, 0.0, 40.0])
    sim = replace(sim, environment_dies_every_s=deaths)
    kills = [rng.randint(1, 600) for _ in range(rng.randint(0, 3))] if seed % 2 else []
    kind = FlowDriver if flow else SimulatedDriver
    return play_lives(settings, sim, seed, kills, kind=kind, max_events=MAX_EVENTS, control=controls)


def draw_control(rng: random.Random) -> ControlSettings | None:
    """Draw a controller that changes much, for most of the scenarios."""
    if rng.random() < 0.2:
        return None
    return ControlSettings(
        mode="on",
        levers=("depth", "running", "groups_extra", "rollouts_extra", "batch_wait", "pruning"),
        wait_high=0.01,
        wait_low=0.001,
        calm_cycles=1,
        preempted=0.01,
        prune_quantile=0.5,
    )


def play_lives(
    settings: SchedulerSettings,
    sim: SimSettings,
    seed: int,
    kills: list[int],
    *,
    kind: type[SimulatedDriver] = SimulatedDriver,
    max_events: int = 200_000,
    control: ControlSettings | None = None,
) -> tuple[SimRun, Finish]:
    """Play a run that is killed after so many events of each life, and check every invariant on its journal.

    What a kill leaves is the journal: the scheduler of the next life is rebuilt from it alone.
    """
    run, finish = SimRun(Scheduler(settings)), None
    for life, stop_after in enumerate([*kills, None]):
        now = run.entries[-1].t if run.entries else 0.0
        lineage = run.scheduler.state.lineage + 1 if life else 0
        run.controller = None if control is None else folded(control, settings, run)
        driver = kind(run, sim, seed + life, lineage=lineage, start_s=now)
        finish = driver.play(stop_after=stop_after, max_events=max_events)
        run.scheduler = replayed(settings, run)
        if finish is not None and finish.outcome not in CARRIED:
            break
    assert finish is not None
    assert_sound(run, settings.queue.bound)
    return run, finish


def folded(control: ControlSettings, settings: SchedulerSettings, run: SimRun) -> Controller:
    """Return the controller as the journal leaves it, as a resume does."""
    controller = Controller(control, settings)
    for entry in run.entries:
        controller.feed(entry)
    return controller


def assert_sound(run: SimRun, bound: int) -> None:
    """Every rollout ends once, no token is beyond the bound, none is twice in the surviving weights."""
    assert_conserved(run.entries)
    assert_within_bound(run.entries, bound)
    survivors = [rollout for rows in run.trained.values() for rollout in rows]
    assert len(survivors) == len(set(survivors)), "a rollout is twice in the surviving weights"


def replayed(settings: SchedulerSettings, run: SimRun) -> Scheduler:
    """Return a scheduler built from the journal alone; it must decide the same, as `replay --verify` says."""
    scheduler = Scheduler(settings)
    for entry in run.entries:
        assert scheduler.handle(entry.event, entry.t) == (entry.commands, entry.notes)
    return scheduler
