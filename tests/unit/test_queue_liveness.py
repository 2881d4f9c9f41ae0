"""Waits that could have lasted for ever, and late events of a lost branch; the state machine found them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from headway.core.commands import (
    ApplyVersion,
    Cancel,
    Checkpoint,
    Finish,
    ReleaseSandbox,
    Rollback,
    Train,
)
from headway.core.events import (
    DeadlinePassed,
    Event,
    RunResumed,
    RunStarted,
    SandboxReady,
    SandboxWanted,
    Scored,
    SettingChanged,
    StepEnded,
    VersionApplied,
    WorkerJoined,
)
from headway.core.notes import Ignored, Note, RolloutSettled
from headway.queue.partial import PartialSettings
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from headway.queue.watch import GuardSettings
from tests.property.outside import Outside

SETTINGS = SchedulerSettings(
    queue=QueueSettings(group_size=2, batch_size=2, bound=1, depth=0, max_refill_batches=0),
    stop=StopSettings(steps=4),
    eval=EvalSettings(num_tasks=0),
    checkpoint=CheckpointSettings(every_steps=1),
)


class Hand:
    """Answers in the usual way until told otherwise."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self.scheduler, self.outside, self.now = Scheduler(settings), Outside(uses_sandbox=False), 0.0
        self.commands: list[object] = []
        self.notes: list[Note] = []
        self.told: list[Event] = []
        self.life(0, RunStarted())

    @property
    def state(self):
        return self.scheduler.state

    def life(self, lineage: int, first: Event) -> None:
        self.outside.begin(lineage, num_workers=1, num_replicas=self.scheduler.settings.num_replicas)
        self.feed(first)

    def feed(self, event: Event) -> None:
        if isinstance(event, DeadlinePassed):
            self.outside.wake_at_s = None
        commands, notes = self.scheduler.handle(event, self.now)
        self.told.append(event)
        self.commands += commands
        self.notes += notes
        for command in commands:
            self.outside.obey(command)

    def usual(self, unless: Callable[[tuple[object, ...]], bool] = lambda key: False) -> None:
        """Answer what has been outstanding longest, but not what `unless` is true of; else let time pass."""
        for key in list(self.outside.open):
            if unless(key):
                continue
            answers = self.outside.answers(key)
            if answers and not answers[0][0].startswith(("fail environment", "lost")):
                self.feed(answers[0][1]())
                return
        assert self.outside.wake_at_s is not None, "nothing is awaited"
        self.now = self.outside.wake_at_s
        self.feed(DeadlinePassed())

    def until(
        self, kind: type, *, unless: Callable[[tuple[object, ...]], bool] = lambda key: False
    ) -> object:
        """Answer until a command or an event of this kind; return it."""
        for _ in range(1000):
            for made in (self.commands, self.told):
                if made and isinstance(made[-1], kind):
                    return made[-1]
            self.usual(unless)
            fresh = [command for command in self.commands if isinstance(command, kind)]
            if fresh:
                return fresh[-1]
        raise AssertionError(f"no {kind.__name__}")

    def answer(self, kind: str, name: str) -> Event:
        """Give the named answer to the oldest outstanding thing of a kind."""
        key = next(key for key in self.outside.open if key[0] == kind)
        event = dict(self.outside.answers(key))[name]()
        self.feed(event)
        return event

    @property
    def finish(self) -> Finish | None:
        return self.outside.finish


def test_a_source_that_runs_dry_while_nothing_else_is_in_flight_ends_the_run_with_its_checkpoint() -> None:
    hand = Hand(replace(SETTINGS, checkpoint=CheckpointSettings(every_steps=0)))
    hand.until(StepEnded)
    while not [key for key in hand.outside.open if key[0] == "task"]:
        hand.usual()
    hand.answer("task", "exhausted")
    assert hand.outside.open, "the end asks for nothing"
    while hand.finish is None:
        hand.usual()
    assert (hand.finish.outcome, hand.finish.failed) == ("tasks_exhausted", False)
    assert [c.step for c in hand.commands if isinstance(c, Checkpoint)] == [hand.state.step]


def test_a_dry_source_whose_last_group_is_dropped_ends_the_run() -> None:
    hand = Hand(replace(SETTINGS, queue=replace(SETTINGS.queue, depth=1)))
    hand.outside.num_train_tasks = 1
    while not [key for key in hand.outside.open if key[0] == "signal"]:
        hand.usual()
    hand.answer("signal", "drop")
    assert hand.state.phase != "running"  # no event would follow
    while hand.finish is None:
        hand.usual()
    assert hand.finish.outcome == "tasks_exhausted"


def test_a_group_of_an_earlier_life_whose_task_is_gone_settles_its_rollouts() -> None:
    hand = Hand(SETTINGS)
    hand.until(Scored)
    hand.life(1, RunResumed(1, 0, 1.0))
    while not [key for key in hand.outside.open if key[0] == "task"]:
        hand.usual()
    hand.answer("task", "exhausted")
    fates = [(note.rollout, note.fate) for note in hand.notes if isinstance(note, RolloutSettled)]
    assert fates == [("t000000.0", "unused"), ("t000000.1", "stopped")]


def test_parked_rollouts_go_on_when_nothing_runs_and_no_newer_weights_are_on_their_way() -> None:
    settings = replace(
        SETTINGS,
        queue=replace(SETTINGS.queue, depth=1, publish_every=2),
        partial=PartialSettings(park="batch", after_steps=0),
    )
    hand = Hand(settings)
    hand.outside.num_train_tasks = 2
    hand.until(Train, unless=lambda key: "t000001" in str(key[1:]))
    while any(isinstance(command, Train) for command in [hand.outside.open.get(("Train",))]):
        hand.answer("Train", "step")
    while hand.finish is None:
        hand.usual()
    assert hand.finish.outcome in ("steps", "tasks_exhausted")
    assert {note.fate for note in hand.notes if isinstance(note, RolloutSettled)} == {"trained"}


@pytest.mark.parametrize("by_setting", [True, False])
def test_a_pause_has_a_deadline_whoever_asked_for_it(by_setting: bool) -> None:
    guard = GuardSettings(paused=not by_setting, max_pause_s=70.0)
    hand = Hand(replace(SETTINGS, guard=guard))
    if by_setting:
        hand.feed(SettingChanged("guard.paused", True))
    while hand.finish is None:
        hand.usual()
    assert (hand.finish.outcome, hand.state.step, hand.now) == ("guard", 0, 70.0)
    assert "guard.max_pause_s = 70" in hand.finish.message


def test_an_attempt_that_never_ends_gives_its_sandbox_back() -> None:
    hand = Hand(replace(SETTINGS, queue=replace(SETTINGS.queue, max_attempts=1)))
    hand.outside.uses_sandbox = True
    hand.until(SandboxReady)
    name = next(event.sandbox for event in hand.told if isinstance(event, SandboxReady))
    rollout = next(event.rollout for event in hand.told if isinstance(event, SandboxReady))
    while not [c for c in hand.commands if isinstance(c, ReleaseSandbox) and c.sandbox == name]:
        hand.usual(unless=lambda key: key[0] == "rollout" and key[1] == rollout)
    assert next(c.rollout for c in hand.commands if isinstance(c, Cancel)) == rollout
    while hand.finish is None:
        hand.usual(unless=lambda key: key[0] == "rollout" and key[1] == rollout)
    assert hand.finish.outcome == "steps"


def test_a_sandbox_whose_ready_is_lost_is_asked_to_go() -> None:
    hand = Hand(SETTINGS)
    hand.outside.uses_sandbox = True
    hand.until(SandboxWanted)
    key = next(key for key in hand.outside.open if key[0] == "grant")
    dict(hand.outside.answers(key))["ready"]()  # and nobody hears it
    name = key[1]
    while not [c for c in hand.commands if isinstance(c, ReleaseSandbox) and c.sandbox == name]:
        assert hand.now <= SETTINGS.deadlines.sandbox_s
        hand.usual(unless=lambda other: other[0] in ("rollout", "grant"))


def test_a_verifiers_wish_that_comes_after_its_score_is_ignored() -> None:
    hand = Hand(SETTINGS)
    train = hand.until(Train)
    assert isinstance(train, Train)
    hand.feed(SandboxWanted(train.rows[0].rollout, 0, "late", "verify"))
    assert "late" not in hand.state.sandboxes
    assert hand.notes[-1] == Ignored("SandboxWanted", "late")


def test_the_step_of_a_lost_branch_is_not_the_step_that_is_being_taken() -> None:
    guard = GuardSettings(action="rollback", window=1, max_grad_norm=2.0, max_rollbacks=1)
    hand = Hand(replace(SETTINGS, guard=guard))
    hand.until(Train)
    hand.answer("Train", "step")
    hand.until(Train, unless=lambda key: key[0] == "Checkpoint")
    while ("Train",) not in hand.outside.open:
        hand.usual()
    wild = hand.answer("Train", "wild step")
    assert [c for c in hand.commands if isinstance(c, Rollback)]
    while ("Train",) not in hand.outside.open:
        hand.usual()
    train = hand.outside.open["Train",]
    step = hand.state.step
    hand.feed(replace(wild, step=train.step))
    assert (hand.state.step, hand.state.trainer) == (step, "training")
    assert hand.notes[-1] == Ignored("StepEnded", str(train.step))


def test_the_version_of_a_lost_branch_does_not_answer_for_the_new_one() -> None:
    hand = Hand(SETTINGS)
    hand.until(VersionApplied)
    old = next(event for event in hand.told if isinstance(event, VersionApplied))
    assert (old.lineage, old.number) == (0, 1)
    hand.feed(hand.outside.trainer_dies())
    while ("apply", "g0", 0) not in hand.outside.open:
        hand.usual()
    asked = hand.outside.open["apply", "g0", 0]
    assert isinstance(asked, ApplyVersion)
    assert asked.lineage == 1
    hand.feed(replace(old, number=asked.number))
    assert hand.state.replicas["g0"].pending == asked.number
    assert isinstance(hand.notes[-1], Ignored)


def test_a_trainer_that_says_twice_that_it_is_ready_loads_its_checkpoint_once() -> None:
    hand = Hand(SETTINGS)
    hand.until(StepEnded)
    hand.feed(hand.outside.trainer_dies())
    hand.answer("join", "join")
    hand.feed(WorkerJoined("trainer", "trainer"))
    assert len([command for command in hand.commands if isinstance(command, Rollback)]) == 1
