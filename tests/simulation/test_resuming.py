"""Resumes that meet an ending: a run killed while it ended, and a stop before a resumed run is up again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headway.core.commands import Cancel, Finish
from headway.core.events import Event, RunResumed, StepEnded, StopAsked
from headway.core.notes import EvalEnded, EvalStarted
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimEntry, SimRun, SimulatedDriver
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from tests.simulation.ledger import all_commands, all_notes, assert_conserved, fates

SETTINGS = SchedulerSettings(
    queue=QueueSettings(group_size=4, batch_size=8, bound=1),
    stop=StopSettings(steps=4),
    eval=EvalSettings(num_tasks=6),
)
SIM = SimSettings(save_s=0.05)


class Killed(Exception):
    """Ends a simulated life at once."""


class Mortal(SimulatedDriver):
    """Dies right after the first entry that `when` is true of."""

    when: Callable[[SimEntry], bool]

    def feed(self, event: Event) -> None:
        super().feed(event)
        if self.when(self.run.entries[-1]):
            raise Killed


def killed(
    when: Callable[[SimEntry], bool], settings: SchedulerSettings = SETTINGS
) -> tuple[SimRun, SimulatedDriver]:
    """Return a run that was killed when `when` said so, and its next life."""
    run = SimRun(Scheduler(settings))
    first = Mortal(run, SIM, 1)
    first.when = when
    with pytest.raises(Killed):
        first.play()
    return run, SimulatedDriver(run, SIM, 2, lineage=1, start_s=first.now_s)


def last_evaluation(entry: SimEntry) -> bool:
    return any(isinstance(note, EvalStarted) and note.number == 4 for note in entry.notes)


def in_training(entry: SimEntry) -> bool:
    return isinstance(entry.event, StepEnded) and entry.event.step == 2


def test_a_run_killed_in_its_last_evaluation_evaluates_again_and_ends() -> None:
    run, resumed = killed(last_evaluation)
    finish = resumed.play()
    assert finish is not None
    assert (finish.outcome, run.scheduler.state.step) == ("steps", 4)
    assert [note.number for note in all_notes(run.entries, EvalEnded)] == [0, 4]
    assert_conserved(run.entries)


def test_a_run_killed_after_its_wall_time_measures_its_weights_when_resumed() -> None:
    settings = replace(SETTINGS, stop=StopSettings(steps=0, wall_s=20.0))
    run, resumed = killed(lambda entry: entry.t > 20.0, settings)
    finish = resumed.play()
    assert finish is not None
    assert (finish.outcome, finish.failed) == ("wall", False)
    assert all_notes(run.entries, EvalEnded)[-1].number == run.scheduler.state.step
    assert_conserved(run.entries)


@pytest.mark.parametrize("delay_s", [0.0, 2.5, 5.0, 5.05, 5.2, 5.35, 6.0])
def test_a_stop_before_a_resumed_run_is_up_waits_for_nothing_of_the_earlier_life(delay_s: float) -> None:
    run, resumed = killed(in_training)
    before = len(run.entries)
    resumed.later(delay_s, StopAsked("SIGINT"))
    finish = resumed.play()
    assert finish is not None
    assert (finish.outcome, finish.failed) == ("interrupted", False)
    life = run.entries[before:]
    assert life[-1].t - life[0].t < delay_s + 10.0
    if delay_s < SIM.start_s:
        assert not all_commands(life, Cancel)  # of rollouts that nobody runs
    ends = assert_conserved(run.entries)
    assert ends["carried"] > 0
    finish = SimulatedDriver(run, SIM, 3, lineage=2, start_s=life[-1].t).play()
    assert finish is not None
    assert finish.outcome == "steps"
    assert "carried" not in assert_conserved(run.entries)


def test_wall_time_that_passes_while_the_first_life_starts_ends_it_in_order() -> None:
    run = SimRun(Scheduler(replace(SETTINGS, stop=StopSettings(steps=0, wall_s=1.0))))
    finish = SimulatedDriver(run, SIM, 1).play()
    assert isinstance(finish, Finish)
    assert finish.outcome == "wall"
    assert not [entry for entry in run.entries if isinstance(entry.event, (RunResumed, StepEnded))]
    assert [note.number for note in all_notes(run.entries, EvalEnded)] == [0]


def test_a_damaged_checkpoint_costs_its_steps_and_no_rollout() -> None:
    every_two = CheckpointSettings(every_steps=2)
    settings = replace(SETTINGS, stop=StopSettings(steps=6), checkpoint=every_two)
    run, resumed = killed(lambda e: isinstance(e.event, StepEnded) and e.event.step == 5, settings)
    assert run.checkpoints == [2, 4]
    lost = {row for step, rows in run.trained.items() if step > 2 for row in rows}
    run.checkpoints.pop()
    finish = resumed.play()
    assert finish is not None
    assert finish.outcome == "steps"
    again = {row for step, rows in run.trained.items() if step > 2 for row in rows}
    assert lost & again
    ends = fates(run.entries)
    surviving = sorted(row for rows in run.trained.values() for row in rows)
    assert surviving == sorted(row for row, fate in ends.items() if fate == "trained")
    assert_conserved(run.entries)
