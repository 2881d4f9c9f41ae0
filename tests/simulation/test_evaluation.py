"""Evaluations of n rollouts a task, and their share of the generators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.commands import StartRollout
from headway.core.events import RolloutEnded, RolloutFailed, Scored
from headway.core.notes import EvalEnded
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, simulate
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings, StopSettings
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Entry
from tests.simulation.ledger import all_notes, assert_conserved

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


def test_several_greedy_rollouts_of_a_task_are_refused() -> None:
    (problem,) = EvalSettings(rollouts_per_task=2).problems()
    assert problem.key == "rollouts_per_task"
    assert "greedy" in problem.rule
