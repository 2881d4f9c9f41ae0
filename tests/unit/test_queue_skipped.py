"""Steps that are not finite: told of, and a run that has only such steps has failed."""

import pytest

from headway.core.events import StepEnded
from headway.core.notes import Warned
from headway.queue import skipped
from headway.queue.context import Context
from headway.queue.index import Index
from headway.queue.settings import SchedulerSettings
from headway.queue.state import State


@pytest.fixture
def ctx():
    state = State()
    return Context(SchedulerSettings(), state, Index(state), 0.0, [], [])


def take(ctx, step, **metrics):
    ctx.state.step = step
    skipped.step_ended(ctx, StepEnded(step - 1, step, 1.0, 1, 1, {"nonfinite": 1.0, **metrics}))
    return skipped.all_skipped(ctx.state)


def test_what_was_not_finite_is_named(ctx):
    take(ctx, 1)
    take(ctx, 2, loss=0.5)
    assert [note.text.partition(" (")[0] for note in ctx.notes if isinstance(note, Warned)] == [
        "step 1 left the weights as they were: loss and grad_norm were not finite",
        "step 2 left the weights as they were: grad_norm was not finite",
    ]


def test_one_finite_step_is_enough(ctx):
    assert skipped.all_skipped(ctx.state) == ""
    assert "the one step was skipped, at step 1 because loss and" in take(ctx, 1)
    assert "each of the 2 steps was skipped, at step 2 because grad_norm was" in take(ctx, 2, loss=0.5)
    assert take(ctx, 3, loss=0.5, grad_norm=1.0, nonfinite=0.0) == ""
    assert take(ctx, 4) == ""


def test_a_lost_step_counts_as_it_was_taken_last(ctx):
    for step in (1, 2, 3):
        take(ctx, step)
    assert take(ctx, 2) != ""  # the run went back to step 1
    assert take(ctx, 2, nonfinite=0.0) == ""
    assert take(ctx, 3) == ""
