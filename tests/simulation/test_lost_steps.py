"""Lost steps are taken again as they were: with bound 0 a broken run trains what the unbroken one trains.

The simulated rewards depend on what a real engine's tokens would depend on: task, seed and version.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from headway.core.commands import Score, StartRollout, Train
from headway.core.events import RolledBack, RolloutEnded, RunResumed, Scored, StepEnded, WorkerLost
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.queue.recovery import RecoverySettings
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from tests.simulation.ledger import assert_conserved, assert_within_bound

STEPS = 6
SETTINGS = SchedulerSettings(
    queue=QueueSettings(group_size=4, batch_size=12, bound=0, max_refill_batches=1),
    stop=StopSettings(steps=STEPS),
    eval=EvalSettings(num_tasks=3, every_steps=2),
    checkpoint=CheckpointSettings(every_steps=2),
)
SIM = SimSettings(save_s=7.0, tokens_sigma=1.0, num_turns=1, uses_sandbox=False)
Rows = list[tuple[str, int, int, float]]  # of one step: (task, seed, version, advantage) a row, in order


class Exact(SimulatedDriver):
    """Scores by task, seed and version."""

    def _score(self, command: Score) -> None:
        reward = drawn(self.run)[command.rollout][3]
        self.later(
            self.sim.score_s,
            Scored(command.rollout, command.attempt, command.tries, reward, (), self.sim.score_s, 0.0),
        )


def drawn(run: SimRun) -> dict[str, tuple[str, int, int, float]]:
    """Return (task, seed, version, reward) of the newest attempt that ended, by rollout."""
    seeds: dict[tuple[str, int], tuple[str, int]] = {}
    found: dict[str, tuple[str, int, int, float]] = {}
    for entry in run.entries:
        event = entry.event
        if isinstance(event, RolloutEnded):
            task, seed = seeds[event.rollout, event.attempt]
            number = event.spans[-1].number
            reward = float(random.Random(f"{task}/{seed}/{number}").random() < 0.07)
            found[event.rollout] = (task, seed, number, reward)
        for command in entry.commands:
            if isinstance(command, StartRollout):
                seeds[command.rollout, command.attempt] = (command.task_id, command.seed)
    return found


def trained(run: SimRun) -> dict[int, Rows]:
    """Return what the surviving steps trained."""
    facts, asked, steps = drawn(run), dict[int, Rows](), dict[int, Rows]()
    for entry in run.entries:
        event = entry.event
        if isinstance(event, (RunResumed, RolledBack)):
            steps = {step: rows for step, rows in steps.items() if step <= event.step}
        elif isinstance(event, StepEnded):
            steps[event.step] = asked[event.step]
        for command in entry.commands:
            if isinstance(command, Train):
                asked[command.step] = [(*facts[row.rollout][:3], row.advantage) for row in command.rows]
    return steps


def broken(kills: list[int], settings: SchedulerSettings = SETTINGS, sim: SimSettings = SIM) -> SimRun:
    """Return a run that was killed after so many events in each of its lives."""
    run = SimRun(Scheduler(settings))
    for lineage, stop_after in enumerate([*kills, None]):
        now = run.entries[-1].t if run.entries else 0.0
        lineage = run.scheduler.state.lineage + 1 if lineage else 0
        Exact(run, sim, 1 + lineage, lineage=lineage, start_s=now).play(stop_after=stop_after)
    assert_conserved(run.entries)
    assert_within_bound(run.entries, 0)
    return run


@pytest.fixture(scope="module")
def whole() -> dict[int, Rows]:
    steps = trained(broken([]))
    assert list(steps) == list(range(1, STEPS + 1))
    assert len({len(rows) for rows in steps.values()}) > 1  # some batches are short
    return steps


@pytest.mark.parametrize("at", range(5, 480, 19))
def test_a_killed_run_trains_what_the_unbroken_one_trains(whole: dict[int, Rows], at: int) -> None:
    assert trained(broken([at])) == whole


@pytest.mark.slow
@pytest.mark.parametrize("at", range(5, 480, 3))
def test_a_run_killed_anywhere_trains_what_the_unbroken_one_trains(whole: dict[int, Rows], at: int) -> None:
    assert trained(broken([at])) == whole


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 200))]
)
def test_a_run_killed_again_and_again_trains_what_the_unbroken_one_trains(
    whole: dict[int, Rows], seed: int
) -> None:
    rng = random.Random(seed)
    assert trained(broken([rng.randrange(30, 250) for _ in range(4)])) == whole


@pytest.mark.parametrize("num_damaged", [1, 2, 3])
def test_damaged_checkpoints_in_a_row_cost_their_steps_and_no_exactness(
    whole: dict[int, Rows], num_damaged: int
) -> None:
    settings = replace(SETTINGS, checkpoint=CheckpointSettings(every_steps=1, keep=num_damaged + 1))
    run = SimRun(Scheduler(settings))
    Exact(run, replace(SIM, save_s=0.1), 1).play(stop_after=560)
    assert run.scheduler.state.contained == run.checkpoints[-1 - num_damaged] > 0
    del run.checkpoints[-num_damaged:]
    Exact(run, SIM, 2, lineage=1, start_s=run.entries[-1].t).play()
    assert trained(run) == whole
    assert_conserved(run.entries)


@pytest.mark.parametrize("probability", [0.3, 1.0])
def test_a_trainer_that_dies_costs_no_exactness(whole: dict[int, Rows], probability: float) -> None:
    lives = 0
    for seed in range(8):
        run = SimRun(Scheduler(SETTINGS))
        Exact(run, replace(SIM, p_trainer_dies=probability), seed).play()
        lives += any(isinstance(entry.event, WorkerLost) for entry in run.entries)
        now = run.entries[-1].t
        if run.scheduler.state.outcome == "failed":  # it died twice
            lineage = run.scheduler.state.lineage + 1
            Exact(run, SIM, seed, lineage=lineage, start_s=now).play()
        assert trained(run) == whole
        assert_conserved(run.entries)
    assert lives


@pytest.mark.parametrize("seed", range(10))
def test_a_planned_step_whose_groups_come_out_otherwise_holds_nothing_up(seed: int) -> None:
    queue = QueueSettings(group_size=3, batch_size=3, bound=0, max_empty_batches=3)
    settings = replace(SETTINGS, queue=queue, checkpoint=CheckpointSettings(every_steps=0))
    settings = replace(settings, recovery=RecoverySettings(trainer_restarts=50))
    run = SimRun(Scheduler(settings))
    finish = SimulatedDriver(run, replace(SIM, p_trainer_dies=0.3, solve_rate=0.1), seed).play()
    assert finish is not None
    assert finish.outcome in ("steps", "no_signal")
    assert_conserved(run.entries)
