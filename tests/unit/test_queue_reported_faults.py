"""What users of other systems reported, as exact cases of the queue; docs/behaviours.md lists them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headway.core.commands import Signal, StartRollout, Train
from headway.core.events import (
    CheckpointDone,
    Event,
    RolloutEnded,
    RunResumed,
    StepEnded,
)
from headway.core.notes import BatchReleased, RolloutSettled
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver, simulate
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from tests.simulation.ledger import all_commands, all_notes
from tests.unit.test_queue_liveness import Hand


def settings(steps: int = 8, **queue: object) -> SchedulerSettings:
    return SchedulerSettings(
        queue=QueueSettings(**({"group_size": 2, "batch_size": 2, "bound": 1} | queue)),  # pyright: ignore
        stop=StopSettings(steps=steps),
        eval=EvalSettings(num_tasks=0),
        checkpoint=CheckpointSettings(every_steps=2),
    )


def test_a_group_of_four_of_which_one_returns_nothing_has_size_three_and_no_reward_0() -> None:
    hand = Hand(settings(group_size=4, batch_size=4, bound=0, max_attempts=1))
    hand.until(StartRollout)
    hand.answer("rollout", "fail infrastructure")
    signal = hand.until(Signal)
    assert isinstance(signal, Signal)
    assert [name for name, _ in signal.rewards] == ["t000000.1", "t000000.2", "t000000.3"]
    train = hand.until(Train)
    assert isinstance(train, Train)
    assert sum(row.advantage for row in train.rows) == pytest.approx(0.0, abs=1e-15)
    assert len(train.rows) == 3
    lost = [note for note in hand.notes if isinstance(note, RolloutSettled) and note.rollout == "t000000.0"]
    assert [note.fate for note in lost] == ["failed_infrastructure"]


def test_a_rollout_that_is_made_anew_has_no_tokens_of_its_first_attempt() -> None:
    hand = Hand(settings(bound=0))
    hand.until(StartRollout)
    hand.answer("rollout", "turn")
    rollout = hand.state.groups["t000000"].rollouts[0]
    assert rollout.num_tokens == 7
    hand.answer("rollout", "fail infrastructure")
    assert (rollout.attempt, rollout.num_tokens, rollout.spans, rollout.num_turns) == (1, 0, [], 0)
    started = [command for command in hand.commands if isinstance(command, StartRollout)]
    assert started[-1].rollout == "t000000.0"
    assert (started[-1].attempt, started[-1].partial) == (1, "")


def killed_when(when: Callable[[SimRun], bool], chosen: SchedulerSettings, sim: SimSettings) -> SimRun:
    """Return a run that was killed as soon as `when` was true of it, and resumed to its end."""
    run = SimRun(Scheduler(chosen))

    class Mortal(SimulatedDriver):
        def feed(self, event: Event) -> None:
            super().feed(event)
            if when(run):
                raise InterruptedError

    with pytest.raises(InterruptedError):
        Mortal(run, sim, 1).play()
    SimulatedDriver(run, sim, 2, lineage=1, start_s=run.entries[-1].t).play()
    return run


def test_saved_with_two_steps_trained_and_two_groups_waiting_the_next_trained_are_these() -> None:
    def two_wait(run: SimRun) -> bool:
        state = run.scheduler.state
        finished = sum(group.stage in ("queued", "training") for group in state.groups.values())
        return run.checkpoints == [2] and state.step == 2 and finished == 2

    sim = SimSettings(train_s=30.0, save_s=0.1, tokens_sigma=0.0, uses_sandbox=False)
    run = killed_when(two_wait, settings(drop_zero_advantage=False), sim)
    trained = [run.trained[step] for step in range(1, 9)]
    assert trained == [[f"t{index:06d}.0", f"t{index:06d}.1"] for index in range(8)]


def test_a_run_saved_at_step_10_goes_on_with_step_11() -> None:
    hand = Hand(replace(settings(steps=12), checkpoint=CheckpointSettings(every_steps=10)))
    hand.until(CheckpointDone)
    while not any(isinstance(event, CheckpointDone) for event in hand.told):
        hand.usual()
    hand.life(1, RunResumed(1, 10, hand.now))
    seen = len(hand.commands)
    while not [command for command in hand.commands[seen:] if isinstance(command, Train)]:
        hand.usual()
    train = next(command for command in hand.commands[seen:] if isinstance(command, Train))
    assert train.step == 11


def test_resumed_at_step_100_no_more_is_submitted_before_the_first_step_than_the_bound_allows() -> None:
    chosen = settings(steps=103, group_size=4, batch_size=8, bound=2, drop_zero_advantage=False)
    sim = SimSettings(train_s=0.2, tokens_sigma=0.0, uses_sandbox=False, num_turns=1)
    run = killed_when(lambda run: run.checkpoints[-1:] == [100], chosen, sim)
    at = next(index for index, entry in enumerate(run.entries) if isinstance(entry.event, RunResumed))
    life = run.entries[at:]
    first = next(index for index, entry in enumerate(life) if isinstance(entry.event, StepEnded))
    started = {command.rollout for command in all_commands(life[:first], StartRollout)}
    assert 0 < len(started) <= (2 + 1) * 8


def test_in_a_synchronous_run_the_trained_version_is_the_sampling_version_of_every_token() -> None:
    run = simulate(settings(bound=0), SimSettings(tokens_sigma=1.0), 3)
    batches = all_notes(run.entries, BatchReleased)
    assert len(batches) == 8
    assert {age for batch in batches for age, _ in batch.token_staleness} == {0}
    told = {e.event.rollout: e.event.spans for e in run.entries if isinstance(e.event, RolloutEnded)}
    for train in all_commands(run.entries, Train):
        for row in train.rows:
            assert {span.number for span in told[row.rollout]} == {train.step - 1}
