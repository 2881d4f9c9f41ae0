"""A state machine that drives the scheduler with any legal event in any order: no simulated driver, no model
of time.

It keeps what is outstanding (`outside`), what is true (`truth`), and a second scheduler restored from the
first one's snapshot before each event. After each event every invariant of the design is looked at. At the
end everything is answered in the usual way: the run must finish and its ledger add up.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headway.core.events import (
    CommandRefused,
    DeadlinePassed,
    EvalDue,
    Event,
    RunResumed,
    RunStarted,
    SandboxReady,
    SettingChanged,
    StopAsked,
)
from headway.queue.band import ConcurrencySettings
from headway.queue.entry_settings import (
    AcceptanceSettings,
    CurriculumSettings,
    OversamplingSettings,
    Source,
)
from headway.queue.partial import PartialSettings
from headway.queue.pruning_settings import PruningSettings
from headway.queue.recovery import RecoverySettings
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from headway.queue.staleness import StalenessSettings
from headway.queue.watch import GuardSettings
from tests.property.ledger_of_truth import Truth
from tests.property.outside import Outside

MOST_EVENTS = 6000  # that a run may take to its end; one that takes more hangs
ONCE = ("RunStarted", "RunResumed", "SettingChanged", "StopAsked", "CommandRefused", "WorkerLost", "EvalDue")
MAY_BE_LOST = ("rollout", "score", "grant", "live", "release")


def chosen_settings(of: Callable[..., Any]) -> SchedulerSettings:
    """Every rule on and off; `of` chooses one of its arguments."""
    group, bound = of(2, 3), of(0, 1, 2, 3)
    depth = of(-1, 0, 1)
    level = of(-1, 0, 1)
    lags = min(depth if depth >= 0 else bound, bound) > 0 and level != 0
    return SchedulerSettings(
        queue=QueueSettings(
            group_size=group,
            batch_size=group * of(1, 2),
            bound=bound,
            depth=min(depth, bound),
            batch_tokens=of(0, 30),
            publish_every=of(1, 2) if lags else 1,
            max_updating_replicas=of(0, 1),
            stream=of(False, True),
            max_running_rollouts=of(0, 4),
            drop_zero_advantage=of(True, False),
            max_refill_batches=of(0, 1),
            max_empty_batches=3,
            on_failed_rollout=of("shrink", "void"),
        ),
        oversampling=OversamplingSettings(of(0, 0, 1), of(0, 0, 2), of("cancel", "park", "finish")),
        acceptance=AcceptanceSettings(of(0.0, 0.2), of(1.0, 0.8)),
        curriculum=CurriculumSettings(levels=of((), (1, 2)), retire_after=of(0, 1), return_after_steps=1),
        sources=of((), (Source("a", 0.7), Source("b", 0.3, group_size=2))),
        pruning=PruningSettings(
            max_tokens=of(0, 40),
            max_repetition=of(None, 0.5),
            environment=of(False, True),
            dead_groups=of(False, True),
            audit=of(0.0, 0.5),
        ),
        partial=PartialSettings(of("never", "batch", "update"), of(0, 1), 2, of("all", "newest")),
        staleness=StalenessSettings(
            token=of("drop", "mask"),
            down_weight_from=level,
            trajectory_bound=level,
            trajectory=of("drop", "restart") if level else "drop",
            environment_bound=level,
            environment=of("mask", "drop", "restart"),
        ),
        concurrency=ConcurrencySettings(mode=of("fixed", "adaptive"), initial=of(0, 6)),
        guard=GuardSettings(
            action=of("off", "warn", "pause", "rollback", "stop"),
            window=1,
            max_grad_norm=2.0,
            max_pause_s=50.0,
            max_rollbacks=1,
        ),
        recovery=RecoverySettings(of(0, 2, 2), of(0, 2, 2)),
        eval=evaluates(of),
        stop=StopSettings(steps=of(2, 4)),
        checkpoint=CheckpointSettings(every_steps=of(0, 1, 2), keep=of(1, 2)),
        group_reward_s=of(0.0, 20.0),
        judge_outage_s=of(0.0, 50.0),
        max_sandboxes=of(2, 6),
        verify_sandboxes=1,
        max_sandbox_starts_per_s=of(0.0, 2.0),
        max_starting_sandboxes=of(0, 1),
        num_environment_workers=1,
        num_replicas=of(1, 2),
    )


def evaluates(of: Callable[..., Any]) -> EvalSettings:
    only = of(False, False, False, True)
    return EvalSettings(
        num_tasks=of(1, 2) if only else of(0, 2),
        every_steps=2,
        temperature=1.0,
        rollouts_per_task=of(1, 2),
        split=of("eval", "train"),
        only=only,
    )


@st.composite
def drawn_settings(draw: st.DrawFn) -> SchedulerSettings:
    return chosen_settings(lambda *choices: draw(st.sampled_from(choices)))


CHANGES = (
    ("queue.bound", (0, 2)),
    ("queue.batch_size", (6, 12)),
    ("queue.stream", (True, False)),
    ("queue.max_running_rollouts", (0, 6)),
    ("queue.on_failed_rollout", ("void", "shrink")),
    ("partial.park", ("update", "batch", "never")),
    ("oversampling.when_met", ("park", "cancel", "finish")),
    ("oversampling.rollouts_extra", (0, 2)),
    ("guard.paused", (False, True)),
    ("guard.action", ("stop", "rollback", "off")),
    ("staleness.token", ("mask", "drop")),
    ("eval.num_tasks", (0, 3)),
    ("sandbox.max_live", (2, 8)),
    ("checkpoint.keep", (1, 3)),
    ("checkpoint.every_steps", (0, 1)),
)
some = st.integers(0, 1000)
waits_s = st.sampled_from([0.0, 0.01, 0.7, 4.0])


class SchedulerMachine(RuleBasedStateMachine):
    """One run, in as many lives as its crashes leave."""

    @initialize(
        chosen=drawn_settings(), sandbox=st.booleans(), num_tasks=st.sampled_from([0, 0, 3]), solved=some
    )
    def begin(self, chosen: SchedulerSettings, sandbox: bool, num_tasks: int, solved: int) -> None:
        self.chosen, self.now = chosen, 0.0
        self.scheduler = Scheduler(chosen)
        self.outside = Outside(uses_sandbox=sandbox, num_train_tasks=num_tasks, solved_every=2 + solved % 2)
        self.truth = Truth()
        self.journal: list[tuple[Event, float]] = []
        self.kept: tuple[int, Any] = (0, None)  # a snapshot, and how many events it contains
        self.life_began = 0
        self.start_life(0, RunStarted())

    def start_life(self, lineage: int, event: Event) -> None:
        self.life_began = len(self.journal)
        current = self.scheduler.settings
        self.outside.begin(
            lineage, num_workers=current.num_environment_workers, num_replicas=current.num_replicas
        )
        self.feed(event)

    # --- one event

    def feed(self, event: Event) -> None:
        """Let an event happen, and look at every invariant."""
        plain = json.loads(json.dumps(self.scheduler.snapshot()))
        twin = Scheduler.restore(self.chosen, plain)
        bound = self.scheduler.settings.queue.bound
        self.journal.append((event, self.now))
        commands, notes = self.scheduler.handle(event, self.now)
        assert twin.handle(event, self.now) == (commands, notes), "a snapshot goes on otherwise"
        if isinstance(event, SettingChanged):
            bound = self.scheduler.settings.queue.bound
        if isinstance(event, DeadlinePassed):
            self.outside.wake_at_s = None
        self.truth.take(event, commands, notes, bound, self.outside)
        for command in commands:
            self.outside.obey(command)
        self.truth.invariant_1_conservation(self.scheduler)
        self.truth.invariant_7_no_sandbox_is_left(self.scheduler, self.outside)
        self.truth.invariant_8_something_is_awaited(self.scheduler, self.outside.wake_at_s)
        self.truth.what_was_handed_over_waits_for_its_batch(self.scheduler)
        self.truth.the_index_is_what_the_state_says(self.scheduler)

    @property
    def alive(self) -> bool:
        return self.outside.finish is None

    # --- rules

    @rule(which=some, how=some, wait_s=waits_s)
    def answer_anything(self, which: int, how: int, wait_s: float) -> None:
        """Any outstanding thing is answered, in any legal way."""
        self.now += wait_s
        event = self.some_answer(which, how)
        if event is not None:
            self.feed(event)

    @rule(which=some, how=some)
    def lose_a_message(self, which: int, how: int) -> None:
        """It is said, and nobody hears it. The trainer's, whose loss ends a run, are lost rarely."""
        self.some_answer(which, how, MAY_BE_LOST if which % 16 else ())

    def some_answer(self, which: int, how: int, kinds: tuple[str, ...] = ()) -> Event | None:
        keys = [key for key in self.outside.open if not kinds or key[0] in kinds]
        choices = [answers for key in keys if (answers := self.outside.answers(key))]
        if not choices or not self.alive:
            return None
        answers = choices[which % len(choices)]
        return answers[how % len(answers)][1]()

    @rule(num=st.integers(1, 60), wait_s=waits_s)
    def go_on_as_usual(self, num: int, wait_s: float) -> None:
        """The oldest things are answered in the usual way."""
        for _ in range(num):
            if not self.alive:
                return
            self.now += wait_s / num
            self.next_usual()

    def next_usual(self) -> None:
        answer = self.outside.usual()
        if answer is None:
            assert self.outside.wake_at_s is not None
            self.now = max(self.now, self.outside.wake_at_s)
        self.feed(DeadlinePassed() if answer is None else answer())

    @rule()
    def let_time_pass(self) -> None:
        """Nothing happens until the next wake."""
        if self.alive and self.outside.wake_at_s is not None:
            self.now = max(self.now, self.outside.wake_at_s)
            self.feed(DeadlinePassed())

    @rule(which=some)
    def repeat_an_event(self, which: int) -> None:
        """What this life has told before is told again."""
        told = [event for event, _ in self.journal[self.life_began :] if type(event).__name__ not in ONCE]
        if told:
            self.feed(told[-1 - which % len(told)])

    @rule(which=some, value=some)
    def change_a_setting(self, which: int, value: int) -> None:
        key, values = CHANGES[which % len(CHANGES)]
        self.feed(SettingChanged(key, values[value % len(values)]))

    @rule(which=some, used=st.sampled_from([0.1, 0.7, 0.9, 0.99]))
    def tell_load(self, which: int, used: float) -> None:
        names = list(self.outside.replicas)
        if names:
            self.feed(self.outside.load(names[which % len(names)], used))

    @rule(which=some)
    def verify_in_a_sandbox(self, which: int) -> None:
        scores = [key for key in self.outside.open if key[0] == "score"]
        if scores:
            self.feed(self.outside.wish_to_verify(self.outside.open[scores[which % len(scores)]]))  # pyright: ignore

    @rule(which=some)
    def lie_about_a_sandbox(self, which: int) -> None:
        """One that is gone or runs says that it is ready."""
        told = [event for event, _ in self.journal[self.life_began :] if hasattr(event, "sandbox")]
        if told:
            event: Any = told[which % len(told)]
            self.feed(SandboxReady(event.rollout, event.attempt, event.sandbox, 0.1))

    @rule()
    def ask_for_an_evaluation(self) -> None:
        self.feed(EvalDue())

    @precondition(lambda self: self.outside.trainer_alive)
    @rule()
    def lose_the_trainer(self) -> None:
        if self.alive:
            self.feed(self.outside.trainer_dies())

    @rule(which=some)
    def lose_a_replica(self, which: int) -> None:
        names = [name for name, replica in self.outside.replicas.items() if not replica.dead]
        if names and self.alive:
            self.feed(self.outside.replica_dies(names[which % len(names)]))

    @precondition(lambda self: len(self.journal) > 60)
    @rule(refused=st.sampled_from([False, False, True]))
    def stop(self, refused: bool) -> None:
        self.feed(CommandRefused("Train", "batch 1", "drawn") if refused else StopAsked("drawn"))

    @rule()
    def keep_a_snapshot(self) -> None:
        self.kept = (len(self.journal), json.loads(json.dumps(self.scheduler.snapshot())))

    @rule(which=some)
    def crash_and_resume(self, which: int) -> None:
        """What is left is a snapshot, the journal's tail, and the checkpoints on disk."""
        number, snapshot = self.kept
        scheduler = Scheduler(self.chosen) if snapshot is None else Scheduler.restore(self.chosen, snapshot)
        for event, at in self.journal[number:]:
            scheduler.handle(event, at)
        assert scheduler.snapshot() == self.scheduler.snapshot()
        self.scheduler = scheduler
        state = scheduler.state
        on_disk = list(state.saved_steps)
        if state.saving_step >= 0 and which % 2:
            on_disk.append(state.saving_step)  # it is whole, and its CheckpointDone was not written any more
        if state.contained == 0:
            on_disk.insert(0, 0)
        step = on_disk[-1 - which // 2 % len(on_disk)]
        self.start_life(state.lineage + 1, RunResumed(state.lineage + 1, step, self.now))

    # --- the end

    def teardown(self) -> None:
        """Answer everything in the usual way; the run must finish, and its ledger add up."""
        if not hasattr(self, "journal"):
            return
        if self.scheduler.settings.guard.paused and self.alive:
            self.feed(SettingChanged("guard.paused", False))
        for _ in range(MOST_EVENTS):
            if not self.alive:
                break
            self.next_usual()
        state = self.scheduler.state
        assert not self.alive, f"no Finish; {state.phase}, step {state.step}, waits {state.deadlines}"
        assert set(self.truth.settled) == self.truth.started


class ThoroughMachine(SchedulerMachine):
    """The same, for longer."""


def at_most(num_runs: int, num_rules: int) -> settings:
    return settings(
        max_examples=num_runs,
        stateful_step_count=num_rules,
        deadline=None,
        phases=[phase for phase in Phase if phase is not Phase.explain],  # it traces every line
        suppress_health_check=list(HealthCheck),
    )


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = at_most(100, 40)
TestSchedulerThoroughly = pytest.mark.slow(pytest.mark.timeout(1800)(ThoroughMachine.TestCase))
TestSchedulerThoroughly.settings = at_most(1500, 80)
