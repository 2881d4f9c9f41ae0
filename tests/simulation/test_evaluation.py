"""Evaluations of n rollouts a task, and their share of the generators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.commands import Finish, RequestTask, StartRollout
from headway.core.events import ReplicaLost, RolloutEnded, RolloutFailed, Scored, WorkerJoined
from headway.core.notes import EvalEnded, EvalStarted
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, simulate
from headway.queue.recovery import RecoverySettings
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings, StopSettings
from headway.telemetry.estimates import pass_estimate
from headway.telemetry.evaluations import Evaluations
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Entry
from tests.simulation.ledger import all_commands, all_notes, assert_conserved
from tests.simulation.scenarios import play_lives

BASE = SchedulerSettings(
    queue=QueueSettings(group_size=4, batch_size=16, bound=3),
    stop=StopSettings(steps=6),
    eval=EvalSettings(num_tasks=20, every_steps=3, rollouts_per_task=4, temperature=1.0),
)
SIM = SimSettings(max_running=40, solve_rate=0.4)


def most_in_flight(run: SimRun) -> int:
    """Return the most evaluation rollouts that were in flight at once while train rollouts were."""
    evals: set[str] = set()
    trains: set[str] = set()
    most = 0
    for entry in run.entries:
        if isinstance(entry.event, (RolloutEnded, RolloutFailed)):
            evals.discard(entry.event.rollout)
            trains.discard(entry.event.rollout)
        for command in entry.commands:
            if isinstance(command, StartRollout):
                (evals if command.purpose == "eval" else trains).add(command.rollout)
        most = max(most, len(evals)) if trains else most
    return most


def test_pass_at_1_is_the_mean_and_pass_at_n_asks_for_one_of_n() -> None:
    run = simulate(BASE, SIM, 1)
    notes = all_notes(run.entries, EvalEnded)
    assert len(notes) >= 3
    rewards: dict[str, list[float]] = {}
    position = iter(notes)
    for entry in run.entries:
        if isinstance(entry.event, Scored) and entry.event.rollout.startswith("e"):
            rewards.setdefault(entry.event.rollout.rpartition(".")[0], []).append(entry.event.reward)
        if any(isinstance(note, EvalEnded) for note in entry.notes):
            note = next(position)
            assert (note.n, note.num_rollouts + note.num_failed) == (4, 80)
            shares = [sum(task) / len(task) for task in rewards.values()]
            assert note.pass_at_1 == pytest.approx(sum(shares) / len(shares))
            assert note.pass_at_n == pytest.approx(sum(share > 0 for share in shares) / len(shares))
            assert note.pass_at_1 < note.pass_at_n
            rewards = {}
    metrics = RunMetrics()
    for entry in run.entries:
        metrics.feed(Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes)))
    summary = metrics.summary()
    assert summary["rl.eval.pass_at.1"] == notes[-1].pass_at_1
    assert summary["rl.eval.pass_at.n"] == notes[-1].pass_at_n
    assert_conserved(run.entries)


@pytest.mark.parametrize(("share", "most"), [(0.1, 4), (0.5, 20), (1.0, 80)])
def test_an_evaluation_beside_training_takes_at_most_its_share_of_the_slots(share: float, most: int) -> None:
    run = simulate(replace(BASE, eval=replace(BASE.eval, max_share=share)), SIM, 1)
    assert most_in_flight(run) == most
    assert all(note.num_rollouts + note.num_failed == 80 for note in all_notes(run.entries, EvalEnded))
    assert_conserved(run.entries)


ONLY = replace(BASE, eval=replace(BASE.eval, only=True))


def only(num_tasks: int, **more: object) -> SchedulerSettings:
    return replace(ONLY, eval=replace(ONLY.eval, num_tasks=num_tasks, **more))  # pyright: ignore


def commands(run: SimRun) -> set[str]:
    return {type(command).__name__ for entry in run.entries for command in entry.commands}


def test_a_run_that_only_evaluates_measures_version_0_once_and_is_over_without_a_trainer() -> None:
    run = simulate(ONLY, SIM, 1)
    (note,) = all_notes(run.entries, EvalEnded)
    assert (note.number, note.num_rollouts) == (0, 80)
    (finish,) = all_commands(run.entries, Finish)
    assert (finish.outcome, finish.failed) == ("evaluated", False)
    assert commands(run).isdisjoint({"Train", "Publish", "Checkpoint", "Signal", "ApplyVersion"})
    joined = [entry.event for entry in run.entries if isinstance(entry.event, WorkerJoined)]
    assert {event.role for event in joined} == {"environment"}
    assert assert_conserved(run.entries) == {"evaluated": 80}


def test_it_has_no_more_in_flight_than_keeps_the_generators_busy() -> None:
    run = simulate(only(200), replace(SIM, max_running=10), 1)
    in_flight: set[str] = set()
    most = 0
    for entry in run.entries:
        if isinstance(entry.event, (RolloutEnded, RolloutFailed)):
            in_flight.discard(entry.event.rollout)
        in_flight |= {c.rollout for c in entry.commands if isinstance(c, StartRollout)}
        most = max(most, len(in_flight))
    assert most == 20  # two for each slot
    assert all_notes(run.entries, EvalEnded)[0].num_rollouts == 800


def test_it_ignores_the_ends_of_training() -> None:
    settings = replace(only(40), stop=StopSettings(steps=1, wall_s=0.5))
    run = simulate(settings, SIM, 1)
    (finish,) = all_commands(run.entries, Finish)
    assert finish.outcome == "evaluated"


def test_it_may_take_train_tasks_and_takes_each_once() -> None:
    run = simulate(only(20, split="train"), replace(SIM, num_tasks=7), 1)
    asked = all_commands(run.entries, RequestTask)
    assert {command.split for command in asked} == {"train"}
    started = [command.task_id for command in all_commands(run.entries, StartRollout)]
    assert sorted(set(started)) == [f"train/{index}" for index in range(7)]
    assert len(started) == 7 * 4
    assert all_commands(run.entries, Finish)[0].outcome == "evaluated"


def test_without_a_score_it_has_failed_and_says_why_before_all_tasks_are_tried() -> None:
    run = simulate(only(200), replace(SIM, p_environment_fails=1.0), 1)
    (finish,) = all_commands(run.entries, Finish)
    assert finish.failed
    assert "8 groups in a row left no usable rollouts; the last: environment failure" in finish.message


def test_killed_at_any_event_it_evaluates_anew_and_ends_once() -> None:
    settings = only(3)
    length = len(simulate(settings, SIM, 1).entries)
    for num_events in range(1, length):
        run, finish = play_lives(settings, SIM, 1, [num_events])
        assert finish.outcome == "evaluated"
        assert len(all_notes(run.entries, EvalEnded)) == 1, num_events


def test_when_a_generator_dies_its_rollouts_go_on_and_no_task_is_evaluated_twice() -> None:
    sim = replace(SIM, generator_dies_every_s=12.0)
    num_lost = 0
    for seed in range(6):
        settings = replace(only(10), recovery=RecoverySettings(generator_restarts=50))
        run = simulate(settings, sim, seed)
        assert all_commands(run.entries, Finish)[0].outcome == "evaluated"
        num_lost += sum(isinstance(entry.event, ReplicaLost) for entry in run.entries)
        assert len(all_notes(run.entries, EvalStarted)) == 1
        assert assert_conserved(run.entries) == {"evaluated": 40}
        (note,) = all_notes(run.entries, EvalEnded)
        assert note.num_rollouts + note.num_failed == 40
        evaluation = Evaluations.of(entries(run)).ended[0]
        assert (evaluation.num_rollouts, evaluation.num_failed) == (note.num_rollouts, note.num_failed)
    assert num_lost >= 3


def entries(run: SimRun) -> list[Entry]:
    return [Entry(e.seq, e.t, e.event, tuple(e.commands), tuple(e.notes)) for e in run.entries]


def test_the_evaluations_that_are_read_back_are_those_that_the_scheduler_noted() -> None:
    sim = replace(SIM, p_environment_fails=0.3, p_score_fails=0.2, p_repeated=0.2)
    for seed in range(5):
        run = simulate(BASE, sim, seed)
        notes = all_notes(run.entries, EvalEnded)
        found = Evaluations.of(entries(run)).ended
        assert len(found) == len(notes) > 0
        for evaluation, note in zip(found, notes, strict=True):
            tasks = [
                (len(task.rollouts), task.num_solved(BASE.solved_reward))
                for task in evaluation.tasks
                if task.rollouts
            ]
            rewards = [reward for task in evaluation.tasks for reward in task.rewards]
            estimate = pass_estimate(tasks, 1)
            assert estimate is not None
            assert (evaluation.number, evaluation.num_rollouts) == (note.number, note.num_rollouts)
            assert evaluation.num_failed == note.num_failed == sum(evaluation.failures.values())
            assert sum(rewards) / len(rewards) == pytest.approx(note.mean_reward)
            assert estimate.value == pytest.approx(note.pass_at_1)


def test_several_greedy_rollouts_of_a_task_are_refused() -> None:
    (problem,) = EvalSettings(rollouts_per_task=2).problems()
    assert problem.key == "rollouts_per_task"
    assert "greedy" in problem.rule
