"""The controller: each rule on hand-made cycles; what it remembers; who may overrule it."""

from dataclasses import replace
from itertools import pairwise

import pytest

from headway.config.control import ControlSettings
from headway.core.commands import StartRollout
from headway.core.events import (
    DeadlinePassed,
    EvalDue,
    Noticed,
    ReplicaChanged,
    RolloutEnded,
    RunResumed,
    Scored,
    SettingChanged,
    StepEnded,
    TurnEnded,
)
from headway.core.notes import BatchReleased, EvalStarted, GroupSettled, QueueDepth, RolloutSettled, Warned
from headway.matching.control import Controller
from headway.matching.simulate import SimEntry
from headway.queue.entry_settings import OversamplingSettings
from headway.queue.pruning_settings import PruningSettings
from headway.queue.settings import QueueSettings, SchedulerSettings

ON = ControlSettings(mode="on")
QUEUE = QueueSettings(group_size=4, batch_size=16, bound=4, depth=2)
STEP_S = 10.0  # that the trainer computes


class Run:
    """A made-up run: one cycle after the other, each with what the controller is to see in it."""

    def __init__(self, control=ON, **scheduler):
        self.controller = Controller(control, SchedulerSettings(**{"queue": QUEUE, **scheduler}))
        self.t, self.step, self.entries, self.decided = 0.0, 0, [], []
        self.obeys = True
        self.feed(DeadlinePassed(), commands=[self._start("t000000.0")])
        self.t = 5.0
        self.feed(Scored("t000000.0", 0, 1, 1.0, (), 0.0, 0.0))  # a rollout's lifetime is 5 s
        self.feed(DeadlinePassed(), notes=[RolloutSettled("t000000.0", "t000000", "filtered", 100)])
        self.t = 20.0
        self._release(16, 0)

    def _start(self, name):
        return StartRollout(name, 0, name.partition(".")[0], "train/0", "train", "main", 0, 1.0, "g0")

    def feed(self, event, commands=(), notes=()):
        entry = SimEntry(len(self.entries), self.t, event, list(commands), list(notes))
        self.entries.append(entry)
        decisions = self.controller.feed(entry)
        self.decided += decisions
        for decision in decisions:
            if self.obeys:
                self.feed(decision)
        return decisions

    def _release(self, num_rollouts, queued, in_flight=8):
        self.step += 1
        groups = tuple(f"g{self.step}.{index}" for index in range(num_rollouts // 4))
        notes = [
            BatchReleased(self.step, self.step, groups, num_rollouts, 0, (), (), queued),
            QueueDepth(in_flight, queued),
        ]
        return self.feed(DeadlinePassed(), notes=notes)

    def cycle(self, wait=0.0, queued=0, more=(), num_rollouts=16):
        """Compute a step, wait for so large a share of the cycle, release; return what was decided."""
        self.t += STEP_S
        self.feed(StepEnded(self.step, self.step, STEP_S, 1, 1))
        for event in more:
            self.feed(event)
        self.t += STEP_S * wait / (1.0 - wait)
        return self._release(num_rollouts, queued)

    def cycles(self, num, wait=0.0, queued=0, **more):
        return [decision for _ in range(num) for decision in self.cycle(wait, queued, **more)]

    @property
    def changes(self):
        return [(d.key, d.value) for d in self.decided if isinstance(d, SettingChanged)]


def turn(waiting_s, num=1):
    return [TurnEnded("r", 0, 0, "g0", (), 1, 1, waiting_s, 0.0, 1.0, "stop")] * num


def queued(group):
    return GroupSettled(group, "train/0", 0, "train", "queued", 4, 0.5, 1.0, 0.0, 2, "")


def test_one_starved_cycle_after_a_hundred_calm_ones_is_answered_at_once():
    run = Run(ControlSettings(mode="on", levers=("depth",)))
    run.cycles(100, wait=0.0, queued=0)
    assert run.changes == []
    decided = run.cycle(wait=0.5)
    assert [(d.key, d.value, d.by) for d in decided] == [("queue.depth", 3, "control")]
    assert (
        decided[0].reason
        == "the trainer waited 50% of the cycle, engines have room, and depth held production"
    )


def test_one_cycle_that_waits_a_little_is_no_reason_yet():
    run = Run()
    run.cycles(10)
    assert run.cycle(wait=0.08) == []
    assert run.cycle(wait=0.08)  # with the one before it is more than control.wait_high over three


def test_a_trainer_that_waits_and_waits_is_seen_before_the_batch_is_there():
    run = Run()
    run.cycles(5)
    run.t += STEP_S
    run.feed(StepEnded(run.step, run.step, STEP_S, 1, 1))
    run.t += 9.0
    assert run.feed(EvalDue()) == []
    run.t += 3.0  # longer than a cycle was
    assert [d.key for d in run.feed(EvalDue())] == ["queue.depth"]


def test_depth_goes_up_to_the_bound_and_oversampling_follows():
    run = Run()
    for _ in range(40):
        run.cycle(wait=0.4, num_rollouts=16 + 4 * len(run.changes))  # each change helps
    keys = [key for key, _ in run.changes]
    assert [value for key, value in run.changes if key == "queue.depth"] == [3, 4]
    assert keys[:3] == ["queue.depth", "queue.depth", "oversampling.groups_extra"]
    assert max(value for key, value in run.changes if key == "oversampling.groups_extra") <= 8


def test_what_does_not_help_is_taken_back_and_tried_again_after_twice_as_long():
    run = Run(ControlSettings(mode="on", levers=("depth",)))
    at = [index for index in range(120) if run.cycle(wait=0.4)]
    assert {value for _, value in run.changes} == {3, 2}
    assert [value for _, value in run.changes[:4]] == [3, 2, 3, 2]
    pauses = [up - down for down, up in zip(at[1::2], at[2::2], strict=False)]
    assert pauses == sorted(pauses)
    assert pauses[0] >= 7
    assert all(later >= 2 * earlier - 2 for earlier, later in pairwise(pauses))


def slow_group(run, wait_s=None, times=(4.0, 5.0, 6.0, 18.0), answers=()):
    """Let a group be scored whose members took so long, then release a batch; return what was decided."""
    run.t += STEP_S
    starts = [run._start(f"t{run.step}.{index}") for index in range(len(times))]
    group, began = f"t{run.step}", run.t
    run.feed(StepEnded(run.step, run.step, STEP_S, 1, 1), commands=starts)
    for event in answers:
        run.feed(event)
    for index, took_s in enumerate(times):
        run.t = began + took_s
        run.feed(Scored(f"{group}.{index}", 0, 1, 1.0, (), 0.0, 0.0))
    run.feed(DeadlinePassed(), notes=[queued(group)])
    run.t = max(run.t, began + (wait_s or 0.0))
    return run._release(16, 0)


def test_a_slow_member_asks_for_more_in_each_group_before_any_extra_group():
    run = Run(queue=replace(QUEUE, bound=2))
    decided = slow_group(run)
    assert [(d.key, d.value) for d in decided] == [("oversampling.rollouts_extra", 2)]
    assert "3.0 times the second slowest" in decided[0].reason


@pytest.mark.parametrize(("slowest_s", "extra"), [(2.0, 1), (5.0, 2), (8.0, 3), (30.0, 4)])
def test_extra_members_are_in_proportion_to_what_is_missing(slowest_s, extra):
    run = Run(queue=replace(QUEUE, group_size=8, bound=2))
    decided = slow_group(run, times=(*[0.5] * 7, slowest_s))  # a step computes for 10 s
    assert [(d.key, d.value) for d in decided] == [("oversampling.rollouts_extra", extra)]


def test_engines_that_are_busy_and_have_room_get_extra_members():
    run = Run(queue=replace(QUEUE, bound=2))
    decided = slow_group(run, answers=turn(0.0, 50))  # no tool ran: all of the time is the engine's
    assert [d.key for d in decided] == ["oversampling.rollouts_extra"]


def test_members_that_are_alike_ask_for_extra_groups():
    run = Run(queue=replace(QUEUE, bound=2))
    assert [d.key for d in slow_group(run, times=(9.9, 9.9, 9.9, 10.0))] == ["oversampling.groups_extra"]


def test_what_was_thrown_away_is_judged_by_several_cycles():
    run = Run(ControlSettings(mode="on", levers=("rollouts_extra",)), oversampling=OversamplingSettings(1, 0))
    at = []
    for index in range(4):
        name = f"w{index}"
        run.feed(DeadlinePassed(), commands=[run._start(name)])
        run.feed(DeadlinePassed(), notes=[RolloutSettled(name, "w", "cancelled", 100)])
        if run.cycle(wait=0.0):
            at.append(index)
    assert at == [2]
    assert run.changes == [("oversampling.rollouts_extra", 0)]


@pytest.mark.parametrize(("line_s", "key"), [(0.0, "depth"), (0.23, "depth"), (0.27, None), (9.0, None)])
def test_prefills_that_wait_for_one_another_are_no_full_engine(line_s, key):
    """Up to a fifth of the answers' time in line engines have room; a turn decodes for a second here."""
    run = Run(ControlSettings(mode="on", levers=("depth",)))
    decided = run.cycle(wait=0.4, more=turn(line_s, 3))
    assert [d.key for d in decided] == ([f"queue.{key}"] if key else [])


def test_extra_groups_beside_extra_members_must_show_their_gain():
    """What slow ones cost is mostly made up for by then, and either throws work away."""

    def changes(members):
        control = ControlSettings(mode="on", levers=("groups_extra",))
        run = Run(control, queue=replace(QUEUE, bound=2), oversampling=OversamplingSettings(members))
        run.cycles(2, wait=0.0)
        for num_rollouts in (20, 20, 12, 28, 24):  # the last three against the first: 7 % more, or chance
            run.cycle(wait=0.4, num_rollouts=num_rollouts)
        return [value for _, value in run.changes][:2]

    assert changes(0) == [2]
    assert changes(1) == [1, 0]


def test_more_is_thrown_away_only_once_what_is_thrown_away_is_known():
    run = Run(ControlSettings(mode="on", levers=("rollouts_extra",)), oversampling=OversamplingSettings(1, 0))
    decided = [[(d.key, d.value) for d in slow_group(run)] for _ in range(3)]
    assert decided == [[], [], [("oversampling.rollouts_extra", 2)]]


def test_what_threw_too_much_away_is_left_alone_and_then_goes_up_by_one():
    control = ControlSettings(mode="on", levers=("rollouts_extra",))
    run = Run(control, queue=replace(QUEUE, group_size=8, bound=2))
    at: list[tuple[int, float]] = []
    for index in range(60):
        extra = run.controller.levers.value("rollouts_extra")
        name = f"w{index}"
        run.feed(DeadlinePassed(), commands=[run._start(f"{name}.{place}") for place in range(2)])
        for place, fate in enumerate(("trained", "cancelled")):
            share = 50 * extra / 4  # 4 extra ones throw half of the tokens away, 3 throw 37.5 %, 2 a quarter
            num = round(100 - share if fate == "trained" else share)
            run.feed(DeadlinePassed(), notes=[RolloutSettled(f"{name}.{place}", name, fate, num)])
        slowest_s = 30.0 - 4.0 * extra  # so that each one gains
        at += [(index, d.value) for d in slow_group(run, times=(*[0.5] * 7, slowest_s))]
    assert [value for _, value in at] == [4, 3]
    assert run.controller.levers.barred == {"rollouts_extra"}


def test_depth_that_shows_no_gain_beyond_its_error_is_given_back():
    """What wastes is kept until it is refuted; what makes samples older must be proven."""

    def changes(lever):
        run = Run(ControlSettings(mode="on", levers=(lever,)))
        for num_rollouts in (20, 20, 12, 28, 24):  # the last three against the first: 7 % more, or chance
            run.cycle(wait=0.4, num_rollouts=num_rollouts)
        return [value for _, value in run.changes][:2]

    assert changes("depth") == [3, 2]
    assert changes("groups_extra") == [2]


def test_engines_that_preempt_get_fewer_at_once():
    run = Run(queue=replace(QUEUE, bound=2))
    run.feed(DeadlinePassed(), commands=[run._start(f"t{index}.0") for index in range(40)])
    load = [ReplicaChanged("g0", 0, 20, 20, 1.0, 100.0, num_preemptions=30)]
    decided = run.cycle(wait=0.3, more=[*turn(0.1, 40), *load])
    assert [(d.key, d.value) for d in decided] == [("queue.max_running_rollouts", 28)]
    assert "0.75 times an answer" in decided[0].reason


def test_engines_that_are_full_get_no_oversampling():
    run = Run(oversampling=OversamplingSettings(groups_extra=4), queue=replace(QUEUE, bound=2))
    wasted = [RolloutSettled(f"w{index}", "w", "cancelled", 100) for index in range(4)]
    run.feed(DeadlinePassed(), commands=[run._start(f"w{index}") for index in range(4)])
    run.feed(DeadlinePassed(), notes=wasted)
    decided = run.cycle(wait=0.3, more=turn(9.0))
    assert [(d.key, d.value) for d in decided] == [("oversampling.groups_extra", 3)]


def test_enough_is_taken_back_in_the_order_of_its_cost():
    run = Run(
        queue=replace(QUEUE, batch_wait_s=2.0),
        oversampling=OversamplingSettings(groups_extra=2, rollouts_extra=1),
    )
    run.cycles(60, wait=0.0, queued=4)
    assert run.changes == [
        ("oversampling.groups_extra", 0),
        ("oversampling.rollouts_extra", 0),
        ("queue.batch_wait_s", 0.0),
        ("queue.depth", 1),
    ]


def test_nothing_is_taken_back_that_the_queue_does_not_show_to_be_spare():
    run = Run(oversampling=OversamplingSettings(groups_extra=2, rollouts_extra=1))
    run.cycles(50, wait=0.0, queued=0)
    assert run.changes == []


@pytest.mark.parametrize(
    ("bound", "changes"), [(4, [("queue.batch_wait_s", 2.0)]), (1, [("queue.batch_wait_s", 2.0)]), (0, [])]
)
def test_a_batch_that_is_nearly_there_need_not_be_waited_for(bound, changes):
    """At bound 0 it is: what a batch leaves behind is too old for the next one."""
    queue = replace(QUEUE, bound=bound, depth=min(1, bound))
    run = Run(ControlSettings(mode="on", levers=("batch_wait",)), queue=queue)
    run.t += STEP_S
    run.feed(StepEnded(run.step, run.step, STEP_S, 1, 1))
    run.feed(DeadlinePassed(), notes=[queued(f"q{index}") for index in range(3)])
    run.t += 8.0
    decided = run._release(16, 0)
    assert [(d.key, d.value) for d in decided] == changes


def test_pruning_is_touched_only_where_the_settings_allow_it():
    def starved(control):
        run = Run(control)
        for index in range(200):
            run.feed(DeadlinePassed(), commands=[run._start(f"p{index}.0")])
            run.feed(
                RolloutEnded(f"p{index}.0", 0, "p", (), 1, 0, 1, 1000 if index % 50 == 0 else 100, False)
            )
        run.cycle(wait=0.5)
        return run.changes

    assert starved(ControlSettings(mode="on", levers=("pruning",))) == [("pruning.max_tokens", 1000)]
    assert starved(ControlSettings(mode="on", levers=("batch_wait",))) == []


def test_a_key_that_a_person_set_is_left_alone_and_said_so():
    run = Run()
    said = run.feed(SettingChanged("queue.depth", 3, checked=True))
    assert said == [Noticed("control", "queue.depth was set by hand: control leaves it alone from now on")]
    run.cycles(30, wait=0.6)
    assert "queue.depth" not in {key for key, _ in run.changes}


def test_a_smaller_bound_takes_depth_with_it_at_once():
    run = Run(queue=replace(QUEUE, depth=4))
    decided = run.feed(SettingChanged("queue.bound", 2, checked=True))
    assert [(d.key, d.value, d.reason) for d in decided] == [("queue.depth", 2, "queue.bound allows no more")]


def test_what_the_scheduler_refuses_is_not_asked_for_again():
    run = Run(ControlSettings(mode="on", levers=("depth",)))
    run.obeys = False
    decided = run.cycle(wait=0.5)
    run.feed(decided[0], notes=[Warned("setting", "queue.depth: no; nothing changed")])
    run.cycles(30, wait=0.6)
    assert run.changes == [("queue.depth", 3)]


def test_off_decides_nothing_until_it_is_switched_on():
    run = Run(ControlSettings())
    run.cycles(10, wait=0.6)
    assert run.changes == []
    run.feed(SettingChanged("control.mode", "on", checked=True))
    assert run.cycle(wait=0.6)


def test_a_decision_that_never_reached_the_journal_is_made_again():
    run = Run()
    run.obeys = False
    assert [d.key for d in run.cycle(wait=0.5)] == ["queue.depth"]
    assert [d.key for d in run.cycle(wait=0.5)] == ["queue.depth"]


def test_the_same_journal_gives_the_same_controller():
    run = Run()
    for index in range(60):
        run.cycle(wait=0.5 if index % 7 < 3 else 0.0, queued=4 if index % 7 > 4 else 0)
    again, decided = Controller(ON, SchedulerSettings(queue=QUEUE)), []
    for entry in run.entries:
        decided += again.feed(entry)
    assert decided == run.decided


@pytest.mark.parametrize("odd", [EvalStarted(0, 1, 8)])
def test_a_cycle_with_an_evaluation_in_it_says_nothing(odd):
    run = Run()
    run.cycles(5)
    run.feed(DeadlinePassed(), notes=[odd])
    assert run.cycle(wait=0.8) == []


def test_a_resume_forgets_what_was_measured_and_keeps_what_was_decided():
    run = Run()
    run.cycle(wait=0.5)
    assert run.changes == [("queue.depth", 3)]
    run.feed(RunResumed(1, 1, run.t))
    assert run.controller.levers.value("depth") == 3


def test_extra_groups_that_are_kept_leave_room_within_the_bound():
    run = Run(oversampling=OversamplingSettings(groups_extra=4, when_met="finish"))
    levers = run.controller.levers
    assert levers.high("depth") == 3
    assert levers.high("groups_extra") == 8
    assert levers.low("depth") == 1


def test_pruning_that_a_person_set_up_is_not_switched_off():
    run = Run(pruning=PruningSettings(max_tokens=500))
    run.cycles(40, wait=0.0, queued=8)
    assert "pruning.max_tokens" not in {key for key, _ in run.changes}
