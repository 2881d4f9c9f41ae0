"""One run with many rules and faults, killed after each of its events in turn and resumed to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.commands import Score, StartRollout
from headway.core.events import RolloutEnded
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver, simulate
from headway.queue.entry_settings import OversamplingSettings
from headway.queue.partial import PartialSettings
from headway.queue.recovery import RecoverySettings
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from tests.simulation.scenarios import assert_sound, replayed

SETTINGS = SchedulerSettings(
    queue=QueueSettings(group_size=2, batch_size=2, bound=2, depth=1),
    oversampling=OversamplingSettings(rollouts_extra=1, when_met="finish"),
    partial=PartialSettings(park="update", after_steps=1),
    recovery=RecoverySettings(generator_restarts=9, trainer_restarts=9),
    stop=StopSettings(steps=3),
    checkpoint=CheckpointSettings(every_steps=1),
    eval=EvalSettings(num_tasks=1, every_steps=2),
    rollout_timeout_s=30.0,
    num_replicas=2,
)
SIM = SimSettings(
    max_running=4,
    tokens_sigma=1.0,
    train_s=1.0,
    p_infrastructure_fails=0.05,
    p_score_fails=0.05,
    generator_dies_every_s=15.0,
)
SEED = 3


def killed_after(num_events: int) -> SimRun:
    run = SimRun(Scheduler(SETTINGS))
    SimulatedDriver(run, SIM, SEED).play(stop_after=num_events)
    before = list(run.entries)
    run.scheduler = replayed(SETTINGS, run)  # what a kill leaves is the journal
    calm = replace(SIM, generator_dies_every_s=0.0)  # one that dies while the run ends ends it as failed
    finish = SimulatedDriver(run, calm, SEED + 1, lineage=1, start_s=before[-1].t).play()
    assert finish is not None
    assert finish.outcome == "steps"
    replayed(SETTINGS, run)
    assert_sound(run, SETTINGS.queue.bound)
    finished = {
        entry.event.rollout
        for entry in before
        if isinstance(entry.event, RolloutEnded) and any(isinstance(c, Score) for c in entry.commands)
    }
    again = {
        command.rollout
        for entry in run.entries[len(before) :]
        for command in entry.commands
        if isinstance(command, StartRollout)
    }
    assert not finished & again, "a finished rollout was made again"
    return run


def length() -> int:
    return len(simulate(SETTINGS, SIM, SEED).entries)


def test_the_run_is_about_two_hundred_events_long_and_has_its_faults() -> None:
    run = simulate(SETTINGS, SIM, SEED)
    kinds = {type(entry.event).__name__ for entry in run.entries}
    assert 150 < len(run.entries) < 300
    assert kinds >= {"RolloutFailed", "RolloutParked", "RolloutResumed", "ReplicaLost", "ScoreFailed"}


@pytest.mark.parametrize("part", range(4))
def test_killed_after_any_event_it_resumes_to_its_end_and_loses_no_finished_rollout(part: int) -> None:
    for num_events in range(part, length(), 4):
        try:
            killed_after(num_events)
        except BaseException as error:
            error.add_note(f"killed after {num_events} events")
            raise
