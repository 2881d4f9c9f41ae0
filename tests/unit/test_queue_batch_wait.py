"""queue.batch_wait_s: a batch leaves with what is there once the trainer has waited, and never with less."""

from dataclasses import replace

import pytest

from headway.core.events import DeadlinePassed, StepEnded
from headway.core.notes import BatchReleased
from headway.matching.roles import SimSettings
from headway.matching.simulate import simulate
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings, StopSettings
from tests.simulation.ledger import assert_conserved, assert_within_bound

SETTINGS = SchedulerSettings(
    queue=QueueSettings(group_size=2, batch_size=16, bound=1, drop_zero_advantage=False),
    stop=StopSettings(steps=8),
    eval=EvalSettings(num_tasks=0),
)
SIM = SimSettings(tool_s=5.0, tool_sigma=1.5, train_s=1.0, publish_s=0.2, solve_rate=0.5)


def play(**queue):
    settings = replace(SETTINGS, queue=replace(SETTINGS.queue, **queue))
    run = simulate(settings, SIM, 3)
    assert_conserved(run.entries)
    assert_within_bound(run.entries, 1)
    free_s, found = None, []
    for entry in run.entries:
        if type(entry.event).__name__ == "VersionPublished":
            free_s = entry.t
        for note in entry.notes:
            if isinstance(note, BatchReleased):
                waited_s = None if free_s is None else entry.t - free_s
                found.append((waited_s, len(note.groups), note.num_short_groups, entry.event))
    return run, found[1:]


def test_without_it_every_batch_is_full():
    assert {groups for _, groups, _, _ in play()[1]} == {8}


def test_a_batch_leaves_at_the_deadline_with_what_is_there_and_never_with_less_than_the_share():
    run, released = play(batch_wait_s=2.0, batch_wait_share=0.5)
    assert all(groups + short == 8 and groups >= 4 for _, groups, short, _ in released)
    early = [(waited, groups) for waited, groups, _, _ in released if groups < 8]
    assert early
    assert all(waited >= 2.0 - 1e-9 for waited, _ in early)
    at_deadline = [waited for waited, _, _, event in released if isinstance(event, DeadlinePassed)]
    assert at_deadline == pytest.approx([2.0] * len(at_deadline))
    assert at_deadline  # time alone released some
    assert run.entries[-1].t < play()[0].entries[-1].t
    assert sum(isinstance(entry.event, StepEnded) for entry in run.entries) == 8


def test_the_whole_batch_as_the_share_is_as_if_it_was_not_set():
    assert {groups for _, groups, _, _ in play(batch_wait_s=2.0, batch_wait_share=1.0)[1]} == {8}
