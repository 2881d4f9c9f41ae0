"""Grants of sandboxes: starting is a station of its own, and one owner asks again after a refusal."""

import pytest

from headway.core.commands import Cancel, GrantSandbox, RequestTask, Score, StartRollout
from headway.core.events import (
    DeadlinePassed,
    ReplicaJoined,
    RolloutEnded,
    RolloutFailed,
    RunStarted,
    SandboxReady,
    SandboxRefused,
    SandboxReleased,
    SandboxWanted,
    SettingChanged,
    TaskOffered,
    WorkerJoined,
)
from headway.core.notes import AttemptFailed, Warned
from headway.core.records import VersionSpan
from headway.queue.scheduler import Scheduler
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings

SIZE = 8
TIMEOUT_S = 100.0


def begun(**settings):
    """A group of eight, started at 1 s, each of which wants a sandbox then."""
    scheduler = Scheduler(
        SchedulerSettings(
            queue=QueueSettings(group_size=SIZE, batch_size=SIZE, bound=1, max_running_rollouts=SIZE),
            eval=EvalSettings(num_tasks=0),
            **({"max_sandboxes": 100, "verify_sandboxes": 1, "rollout_timeout_s": TIMEOUT_S} | settings),
        )
    )
    asked = []
    for event in (
        RunStarted(),
        WorkerJoined("trainer", "t"),
        WorkerJoined("environment", "e0"),
        ReplicaJoined("g0", 0, 0, 0, 8),
        TaskOffered(0, "train/0", 0),
    ):
        asked += scheduler.handle(event, 1.0)[0]
    assert sum(isinstance(command, StartRollout) for command in asked) == SIZE
    granted = [
        name for number in range(SIZE) for name in grants(scheduler, wanted(number), 1.0)
    ]  # in the order of the wishes
    return scheduler, granted


def wanted(number):
    return SandboxWanted(f"t000000.{number}", 0, f"s{number}", "rollout")


def of(kind, name, *more):
    return kind(f"t000000.{name[1:]}", 0, name, *more)


def grants(scheduler, event, now):
    commands, _ = scheduler.handle(event, now)
    return [command.sandbox for command in commands if isinstance(command, GrantSandbox)]


def test_so_many_start_at_once_and_the_next_when_one_has_started_or_ended():
    scheduler, granted = begun(max_starting_sandboxes=3)
    assert granted == ["s0", "s1", "s2"]
    assert grants(scheduler, of(SandboxReady, "s1", 0.5), 2.0) == ["s3"]
    assert grants(scheduler, of(SandboxReleased, "s1"), 2.5) == []  # its place is free, and three start
    assert grants(scheduler, of(SandboxReleased, "s0"), 3.0) == ["s4"]
    twin = Scheduler.restore(scheduler.settings, scheduler.snapshot())
    assert grants(twin, of(SandboxReady, "s2", 0.5), 3.5) == ["s5"]


def test_a_verifier_s_sandbox_starts_before_those_of_rollouts():
    scheduler, _ = begun(max_starting_sandboxes=1)
    assert grants(scheduler, of(SandboxReady, "s0", 0.5), 2.0) == ["s1"]
    span = VersionSpan(0, 0, 4)
    commands, _ = scheduler.handle(RolloutEnded("t000000.0", 0, "w:0:1", (span,), 4, 0, 1, 1, False), 3.0)
    assert any(isinstance(command, Score) for command in commands)
    assert grants(scheduler, SandboxWanted("t000000.0", 0, "v", "verify"), 3.0) == []
    assert grants(scheduler, of(SandboxReady, "s1", 0.5), 4.0) == ["v"]


def test_a_refused_one_waits_on_in_its_place_and_is_granted_after_a_pause_that_doubles():
    scheduler, granted = begun(max_starting_sandboxes=2)
    assert granted == ["s0", "s1"]
    commands, notes = scheduler.handle(of(SandboxRefused, "s0", "quota of 10"), 2.0)
    assert [note.text for note in notes if isinstance(note, Warned)] == [
        "the provider of sandboxes refuses: quota of 10"
    ]
    assert not any(isinstance(command, GrantSandbox) for command in commands)
    assert grants(scheduler, of(SandboxRefused, "s1", "quota of 10"), 2.1) == []  # of the same burst
    assert grants(scheduler, DeadlinePassed(), 2.9) == []
    assert grants(scheduler, DeadlinePassed(), 3.0) == ["s0"]  # the first of the line, and it alone
    scheduler = Scheduler.restore(scheduler.settings, scheduler.snapshot())
    _, notes = scheduler.handle(of(SandboxRefused, "s0", "quota of 10"), 3.5)
    assert not any(isinstance(note, Warned) for note in notes)
    assert grants(scheduler, DeadlinePassed(), 5.4) == []
    assert grants(scheduler, DeadlinePassed(), 5.5) == ["s0"]
    assert grants(scheduler, of(SandboxReady, "s0", 0.5), 6.0) == ["s1", "s2"]  # two at once again


def test_the_provider_s_own_wait_is_kept():
    scheduler, _ = begun(max_starting_sandboxes=1)
    scheduler.handle(of(SandboxRefused, "s0", "rate", 20.0), 2.0)
    assert grants(scheduler, DeadlinePassed(), 21.9) == []
    assert grants(scheduler, DeadlinePassed(), 22.0) == ["s0"]


@pytest.mark.parametrize("refused", [False, True])
def test_no_group_is_let_in_behind_those_that_a_provider_refuses(refused):
    scheduler, _ = begun(max_starting_sandboxes=1)
    if refused:
        scheduler.handle(of(SandboxRefused, "s0", "quota"), 2.0)
    commands, _ = scheduler.handle(SettingChanged("queue.max_running_rollouts", 64, True), 2.5)
    assert any(isinstance(command, RequestTask) for command in commands) == (not refused)


def test_time_in_line_for_a_sandbox_moves_the_rollout_s_deadlines_and_a_verifier_s():
    scheduler, _ = begun(max_starting_sandboxes=1)
    for number in range(SIZE - 1):
        grants(scheduler, of(SandboxReady, f"s{number}", 0.5), 61.0)
    assert scheduler.state.deadlines["rollout:t000000.0"] == 1.0 + TIMEOUT_S + 60.0
    assert scheduler.state.deadlines["rollout:t000000.7"] == 1.0 + TIMEOUT_S
    span = VersionSpan(0, 0, 4)
    scheduler.handle(RolloutEnded("t000000.0", 0, "w:0:1", (span,), 4, 0, 1, 1, False), 62.0)
    due = scheduler.state.deadlines["score:t000000.0"]
    scheduler.handle(SandboxWanted("t000000.0", 0, "v", "verify"), 63.0)
    scheduler.handle(SandboxReady("t000000.0", 0, "v", 0.5), 70.0)
    grants(scheduler, of(SandboxReady, "s7", 0.5), 71.0)
    scheduler.handle(SandboxReady("t000000.0", 0, "v", 0.5), 73.0)
    assert scheduler.state.deadlines["score:t000000.0"] == due + 10.0


def test_a_rollout_that_never_gets_one_fails_of_the_infrastructure_and_says_why():
    scheduler, _ = begun(max_starting_sandboxes=1)
    scheduler.handle(of(SandboxRefused, "s0", "no credits left", 500.0), 2.0)
    commands, notes = scheduler.handle(DeadlinePassed(), 1.0 + TIMEOUT_S)
    assert len([command for command in commands if isinstance(command, Cancel)]) == SIZE
    text = next(note.text for note in notes if isinstance(note, Warned))
    assert "it waits for a sandbox (the provider refuses: no credits left)" in text
    _, notes = scheduler.handle(RolloutFailed("t000000.0", 0, "scheduler", "cancelled", "deadline"), 102.0)
    failed = next(note for note in notes if isinstance(note, AttemptFailed))
    assert (failed.owner, failed.retried) == ("infrastructure", True)


@pytest.mark.parametrize("late", ["released", "unknown"])
def test_a_refusal_that_comes_too_late_changes_nothing(late):
    scheduler, _ = begun(max_starting_sandboxes=1)
    if late == "released":
        scheduler.handle(RolloutFailed("t000000.0", 0, "environment", "exception", "x"), 2.0)
    name = "s0" if late == "released" else "other"
    scheduler.handle(of(SandboxRefused, name, "quota") if late == "released" else
                     SandboxRefused("t000000.0", 0, name, "quota"), 3.0)  # fmt: skip
    assert name not in scheduler.state.sandboxes


def scoring(scheduler, at):
    """The first rollout ends, and its verifier wants a sandbox; return its deadline."""
    span = VersionSpan(0, 0, 4)
    scheduler.handle(RolloutEnded("t000000.0", 0, "w:0:1", (span,), 4, 0, 1, 1, False), at)
    due = scheduler.state.deadlines["score:t000000.0"]
    scheduler.handle(SandboxWanted("t000000.0", 0, "v", "verify"), at)
    return due


def test_a_verifier_that_waits_for_a_refused_sandbox_is_charged_nothing():
    scheduler, _ = begun(max_starting_sandboxes=1, score_timeout_s=5.0, rollout_timeout_s=1000.0)
    grants(scheduler, of(SandboxReady, "s0", 0.5), 1.5)
    due = scoring(scheduler, 2.0)
    scheduler.handle(of(SandboxRefused, "s1", "quota", 700.0), 3.0)
    now = due
    while now < 703.0:
        _, notes = scheduler.handle(DeadlinePassed(), now)
        assert not [note for note in notes if isinstance(note, AttemptFailed)]
        now, before = scheduler.state.deadlines["score:t000000.0"], now
        assert now > before
    assert grants(scheduler, DeadlinePassed(), 703.0) == ["v"]
    scheduler.handle(SandboxReady("t000000.0", 0, "v", 0.5), 704.0)
    # All that it waited is excused, once, but for seconds.
    assert scheduler.state.deadlines["score:t000000.0"] == pytest.approx(due + 702.0, abs=3.0)


def test_a_verifier_that_never_gets_one_fails_of_the_infrastructure_in_bounded_time():
    scheduler, _ = begun(max_starting_sandboxes=1, score_timeout_s=5.0, max_score_tries=1)
    grants(scheduler, of(SandboxReady, "s0", 0.5), 1.5)
    now = scoring(scheduler, 2.0)
    scheduler.handle(of(SandboxRefused, "s1", "no credits left", 9000.0), 3.0)
    failed = []
    while not failed:
        _, notes = scheduler.handle(DeadlinePassed(), now)
        failed = [n for n in notes if isinstance(n, AttemptFailed) and n.rollout == "t000000.0"]
        now = scheduler.state.deadlines.get("score:t000000.0", now)
    assert (failed[0].owner, failed[0].cause) == ("infrastructure", "sandbox")
    assert "the provider refuses: no credits left" in failed[0].message
    assert now < 3 * (TIMEOUT_S + 5.0 + 2 * scheduler.settings.deadlines.sandbox_s)


def test_at_a_steady_quota_the_pause_grows_and_places_that_become_free_are_filled_at_once():
    scheduler, granted = begun(max_starting_sandboxes=SIZE)
    assert len(granted) == SIZE
    for name in ("s0", "s1"):
        scheduler.handle(of(SandboxReady, name, 0.1), 1.5)
    for name in granted[2:]:
        scheduler.handle(of(SandboxRefused, name, "quota of 2"), 2.0)
    now, pauses = 2.0, []
    for number in range(2, 6):
        pauses.append(scheduler.state.refusals.until_s - now)
        now += 0.25
        over = f"s{number - 2}"
        assert grants(scheduler, of(SandboxReleased, over), now) == [f"s{number}"]  # in the pause
        assert grants(scheduler, of(SandboxReady, f"s{number}", 0.1), now) == []  # and no more
        now = scheduler.state.refusals.until_s
        assert grants(scheduler, DeadlinePassed(), now) == [f"s{number + 1}"]  # whether there is more
        scheduler.handle(of(SandboxRefused, f"s{number + 1}", "quota of 2"), now)
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_places_left_to_what_workers_keep_ready_are_granted_to_nobody():
    scheduler, granted = begun(max_sandboxes=8, verify_sandboxes=2, ready_sandboxes=2)
    assert len(granted) == 4
    grants(scheduler, SettingChanged("sandbox.max_live", 4, True), 2.0)
    assert (scheduler.settings.ready_sandboxes, scheduler.settings.verify_sandboxes) == (1, 1)
