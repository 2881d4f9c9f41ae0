"""A running rollout: what the scheduler says of it is what events told, and a repetition changes nothing."""

import pytest

from headway.core.commands import Cancel, GrantSandbox, Score, StartRollout
from headway.core.events import (
    DeadlinePassed,
    ReplicaJoined,
    RolloutEnded,
    RolloutFailed,
    RunStarted,
    SandboxReady,
    SandboxWanted,
    Scored,
    TaskOffered,
    ToolEnded,
    TurnEnded,
    WorkerJoined,
)
from headway.core.notes import Ignored, Warned
from headway.core.records import VersionSpan
from headway.queue.scheduler import Scheduler
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings

ROLLOUT = "t000000.0"
TIMEOUT_S = 10.0


@pytest.fixture
def scheduler():
    """One group of two, started at 1 s; room for one sandbox of a rollout."""
    settings = SchedulerSettings(
        queue=QueueSettings(group_size=2, batch_size=2, bound=0),
        eval=EvalSettings(num_tasks=0),
        rollout_timeout_s=TIMEOUT_S,
        max_sandboxes=2,
        verify_sandboxes=1,
    )
    scheduler = Scheduler(settings)
    events = [
        RunStarted(),
        WorkerJoined("trainer", "t"),
        WorkerJoined("environment", "e0"),
        ReplicaJoined("g0", 0, 0, 0, 8),
        TaskOffered(0, "train/0", 0),
    ]
    commands = [command for event in events for command in scheduler.handle(event, 1.0)[0]]
    assert [c.rollout for c in commands if isinstance(c, StartRollout)] == [ROLLOUT, "t000000.1"]
    return scheduler


def turn(index, num_tokens=3, attempt=0):
    spans = (VersionSpan(0, 0, num_tokens),)
    return TurnEnded(ROLLOUT, attempt, index, "g0", spans, 4, 8, 0.0, 0.0, 0.0, "stop")


def tool(call, after=0, attempt=0):
    return ToolEnded(ROLLOUT, attempt, after, call, 0.5, "exit")


def state_of(scheduler):
    return scheduler.state.groups["t000000"].rollouts[0]


def warning(scheduler, now):
    commands, notes = scheduler.handle(DeadlinePassed(), now)
    assert ROLLOUT in [command.rollout for command in commands if isinstance(command, Cancel)]
    return next(n.text for n in notes if isinstance(n, Warned) and ROLLOUT in n.text)


@pytest.mark.parametrize(
    ("events", "last"),
    [
        ([], "its start"),
        ([turn(0)], "the end of answer 0"),
        ([turn(0), tool(0)], "the end of tool call 0"),
        ([turn(0), tool(0), turn(1)], "the end of answer 1"),
    ],
)
def test_a_rollouts_timeout_names_the_last_thing_that_ended(scheduler, events, last):
    for event in events:
        scheduler.handle(event, 2.0)
        assert state_of(scheduler).station == "running"
    assert warning(scheduler, 20.0) == (
        f"rollout {ROLLOUT} of task train/0 is cancelled: no answer and no tool call ended for 10 s since "
        f"{last} (environment.rollout_timeout_s)"
    )


def test_a_rollout_that_goes_on_and_on_is_told_by_its_total_time(scheduler):
    for index in range(5):
        scheduler.handle(turn(index), 1.0 + 9.0 * index)
    text = warning(scheduler, 1.0 + 4 * TIMEOUT_S)
    assert "it had not ended after 40 s; the last sign was the end of answer 4" in text


def test_a_rollout_that_waits_for_a_sandbox_says_so(scheduler):
    scheduler.handle(SandboxWanted("t000000.1", 0, "s1", "rollout"), 2.0)
    commands, _ = scheduler.handle(SandboxWanted(ROLLOUT, 0, "s0", "rollout"), 2.0)
    assert not any(isinstance(command, GrantSandbox) for command in commands)
    assert "it waits for a sandbox (sandbox.max_live)" in warning(scheduler, 11.0)


def test_a_rollout_whose_sandbox_starts_says_so_until_it_runs(scheduler):
    scheduler.handle(SandboxWanted(ROLLOUT, 0, "s0", "rollout"), 2.0)
    twin = Scheduler.restore(scheduler.settings, scheduler.snapshot())
    assert "its sandbox is starting" in warning(scheduler, 11.0)
    twin.handle(SandboxReady(ROLLOUT, 0, "s0", 0.1), 3.0)
    assert "sandbox" not in warning(twin, 12.0)  # the second that it waited for it does not count


@pytest.mark.parametrize("again", [turn(0), tool(0), tool(1)])
def test_a_repeated_event_of_a_running_attempt_is_ignored(scheduler, again):
    for event in (turn(0), tool(0), tool(1), turn(1)):
        _, notes = scheduler.handle(event, 2.0)
        assert not any(isinstance(note, Ignored) for note in notes)
    before = scheduler.snapshot()
    commands, notes = scheduler.handle(again, 3.0)
    assert (commands, notes) == ([], [Ignored(type(again).__name__, ROLLOUT)])
    assert scheduler.snapshot() == before
    assert state_of(scheduler).num_tokens == 6


def test_the_next_attempt_counts_from_the_beginning(scheduler):
    scheduler.handle(turn(0), 2.0)
    scheduler.handle(tool(0), 2.0)
    scheduler.handle(RolloutFailed(ROLLOUT, 0, "environment", "exception", "x"), 3.0)
    assert state_of(scheduler).last_sign == "its start"
    for event in (turn(0, attempt=1), tool(0, attempt=1)):
        _, notes = scheduler.handle(event, 4.0)
        assert notes == []
    assert scheduler.handle(turn(0), 5.0)[1] == [Ignored("TurnEnded", ROLLOUT)]


def test_a_rollout_that_ends_as_its_deadline_cancels_it_is_scored(scheduler):
    spans = (VersionSpan(0, 0, 3),)
    warning(scheduler, 1.0 + TIMEOUT_S)
    ended = RolloutEnded(ROLLOUT, 0, "w0.0.bin:0:9", spans, 1, 0, 4, 3, False)
    commands, notes = scheduler.handle(ended, 1.1 + TIMEOUT_S)
    assert [command.rollout for command in commands if isinstance(command, Score)] == [ROLLOUT]
    late = RolloutFailed(ROLLOUT, 0, "scheduler", "cancelled", "nothing of this attempt runs here")
    _, notes = scheduler.handle(late, 1.2 + TIMEOUT_S)
    assert [note.event for note in notes if isinstance(note, Ignored)] == ["RolloutFailed"]
    scheduler.handle(Scored(ROLLOUT, 0, 1, 1.0, (), 0.1, 0.0), 1.3 + TIMEOUT_S)
    assert (state_of(scheduler).station, state_of(scheduler).reward) == ("scored", 1.0)
