"""Each rule of the queue, shown by its effect in a simulated run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from headway.core.commands import ApplyVersion, Finish, GrantSandbox, StartRollout, Train
from headway.core.events import (
    DeadlinePassed,
    EvalDue,
    Event,
    ReplicaJoined,
    RolloutEnded,
    RolloutFailed,
    RunStarted,
    SandboxReady,
    SandboxReleased,
    SettingChanged,
    StepEnded,
    StopAsked,
    TaskOffered,
    TasksExhausted,
    VersionApplied,
    VersionPublished,
    WorkerJoined,
    WorkerLost,
)
from headway.core.notes import (
    BatchReleased,
    EvalEnded,
    EvalStarted,
    GroupSettled,
    NoSignal,
    Refilled,
    RolloutSettled,
    Warned,
)
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver, simulate
from headway.queue.recovery import RecoverySettings
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    DeadlineSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from headway.weights.publish import KEEP
from tests.simulation.ledger import all_commands, all_notes, assert_conserved

BASE = SchedulerSettings(
    queue=QueueSettings(group_size=4, batch_size=16, bound=2),
    stop=StopSettings(steps=6),
    eval=EvalSettings(num_tasks=8),
    checkpoint=CheckpointSettings(every_steps=2),
    rollout_timeout_s=60.0,
)


def queue(**changes: object) -> SchedulerSettings:
    return replace(BASE, queue=replace(BASE.queue, **changes))


def finish_of(run: SimRun) -> Finish:
    (finish,) = all_commands(run.entries, Finish)
    return finish


def events_of(run: SimRun, kind: type[Event]) -> list[tuple[float, Event]]:
    return [(entry.t, entry.event) for entry in run.entries if isinstance(entry.event, kind)]


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_admission_never_lets_more_groups_ahead_than_the_depth_allows(bound: int) -> None:
    run = simulate(queue(bound=bound, max_refill_batches=0), SimSettings(train_s=30.0, solve_rate=0.5), 1)
    scheduler = Scheduler(queue(bound=bound, max_refill_batches=0))
    for entry in run.entries:
        scheduler.handle(entry.event, entry.t)
        live = [g for g in scheduler.state.groups.values() if g.purpose == "train"]
        ahead = sum(group.stage in ("requested", "running", "signalling", "queued") for group in live)
        assert ahead <= (bound + 1) * BASE.queue.batch_groups


def test_depth_keeps_samples_fresher_than_the_bound() -> None:
    run = simulate(queue(bound=4, depth=1), SimSettings(train_s=20.0), 1)
    assert (
        max(age for batch in all_notes(run.entries, BatchReleased) for age, _ in batch.token_staleness) <= 1
    )


def test_async_takes_less_time_than_sync_for_the_same_steps() -> None:
    sim = SimSettings(train_s=4.0, tokens_sigma=1.0)
    times = {bound: simulate(queue(bound=bound), sim, 1).entries[-1].t for bound in (0, 1, 2)}
    assert times[2] <= times[1] < 0.8 * times[0]


def test_versions_are_applied_while_requests_run() -> None:
    run = simulate(BASE, SimSettings(train_s=1.0), 3)
    spans = [entry.event.spans for entry in run.entries if isinstance(entry.event, RolloutEnded)]
    assert any(len(rollout) > 1 for rollout in spans)


def test_the_version_that_a_slow_replica_takes_up_is_not_pruned_under_it() -> None:
    settings = replace(queue(bound=8), stop=StopSettings(steps=30))
    sim = SimSettings(train_s=0.1, publish_s=0.05, apply_s=1.2, p_weights_late=1.0, solve_rate=0.6)
    run = simulate(settings, sim, 1)
    asked, newer, most = False, 0, 0
    for entry in run.entries:
        if isinstance(entry.event, VersionApplied):
            asked = False
        newer += asked and isinstance(entry.event, VersionPublished)
        most = max(most, newer)
        if any(isinstance(command, ApplyVersion) for command in entry.commands):
            asked, newer = True, 0
    assert most == 1 < KEEP - 1
    assert run.scheduler.state.step == 30


def test_groups_without_signal_are_replaced_within_one_extra_batch() -> None:
    run = simulate(BASE, SimSettings(solve_rate=0.15), 5)
    refills = all_notes(run.entries, Refilled)
    assert refills
    assert max(refill.num_used for refill in refills) <= BASE.queue.batch_groups
    assert any(batch.num_short_groups for batch in all_notes(run.entries, BatchReleased))


def test_without_any_signal_the_run_ends_by_name_after_a_bounded_number_of_groups() -> None:
    settings = queue(max_empty_batches=3)
    run = simulate(settings, SimSettings(solve_rate=0.0), 2)
    assert finish_of(run).outcome == "no_signal"
    assert not all_commands(run.entries, Train)
    assert [note.consecutive for note in all_notes(run.entries, NoSignal)] == [1, 2, 3]
    warnings = [note for note in all_notes(run.entries, Warned) if note.code == "no_signal"]
    assert len(warnings) == 3
    groups = {
        command.group for command in all_commands(run.entries, StartRollout) if command.purpose == "train"
    }
    most = 3 * 2 * settings.queue.batch_groups + 3 * settings.queue.batch_groups
    assert len(groups) <= most


def test_a_rollout_that_never_returns_costs_its_timeout_and_is_reported_by_name() -> None:
    run = simulate(queue(max_attempts=1), SimSettings(p_hangs=0.03, p_ignores_cancel=0.5), 4)
    assert finish_of(run).outcome == "steps"
    named = [note.text for note in all_notes(run.entries, Warned) if note.code == "rollout_timeout"]
    assert named
    assert all("of task" in text and "60 s" in text for text in named)
    assert assert_conserved(run.entries)["failed_environment"] == len(named)


def test_an_infrastructure_failure_is_never_a_reward() -> None:
    run = simulate(queue(max_attempts=1), SimSettings(p_infrastructure_fails=0.1), 4)
    ends = assert_conserved(run.entries)
    assert ends["failed_infrastructure"] > 0
    for command in all_commands(run.entries, Train):
        sizes = Counter(row.group for row in command.rows)
        assert all(2 <= size <= 4 for size in sizes.values())


def test_void_drops_the_group_of_a_lost_member() -> None:
    run = simulate(queue(max_attempts=1, on_failed_rollout="void"), SimSettings(p_environment_fails=0.05), 4)
    assert assert_conserved(run.entries)["voided"] > 0
    for command in all_commands(run.entries, Train):
        assert set(Counter(row.group for row in command.rows).values()) == {4}


def test_a_failed_judge_never_regenerates_a_rollout() -> None:
    run = simulate(BASE, SimSettings(p_score_fails=0.3), 4)
    attempts = Counter(command.rollout for command in all_commands(run.entries, StartRollout))
    assert set(attempts.values()) == {1}


def test_an_environment_that_always_fails_ends_the_run_as_failed() -> None:
    run = simulate(BASE, SimSettings(p_environment_fails=1.0), 4)
    finish = finish_of(run)
    assert (finish.outcome, finish.failed) == ("failed", True)
    assert "environment failure (exception)" in finish.message


def test_trained_lengths_are_the_submitted_ones_when_nothing_is_discarded() -> None:
    settings = replace(queue(drop_zero_advantage=False), stop=StopSettings(steps=25))
    run = simulate(settings, SimSettings(tokens_sigma=1.0, max_answer_tokens=4000), 6)
    lengths = {e.event.rollout: e.event.num_tokens for e in run.entries if isinstance(e.event, RolloutEnded)}
    fates = {note.rollout: note.fate for note in all_notes(run.entries, RolloutSettled)}
    trained = [math.log(lengths[name]) for name, fate in fates.items() if fate == "trained"]
    # sum of two lognormal answers of mean 40 and sigma 1
    assert sum(trained) / len(trained) == pytest.approx(math.log(80) - 0.31, abs=0.12)


def test_an_evaluation_measures_one_version_only() -> None:
    run = simulate(replace(BASE, eval=EvalSettings(num_tasks=8, every_steps=2)), SimSettings(train_s=0.5), 1)
    started = {note.number for note in all_notes(run.entries, EvalStarted)}
    assert {0, 6} <= started
    inside: int | None = None
    for entry in run.entries:
        for note in entry.notes:
            if isinstance(note, EvalStarted):
                inside = note.number
            elif isinstance(note, EvalEnded):
                inside = None
        if isinstance(entry.event, RolloutEnded) and entry.event.rollout.startswith("e"):
            assert {span.number for span in entry.event.spans} == {inside}
        assert inside is None or not any(isinstance(command, ApplyVersion) for command in entry.commands)


def test_eval_due_asks_for_one_more_evaluation() -> None:
    settings = replace(BASE, eval=EvalSettings(num_tasks=4, at_start=False, at_end=False))
    run = SimRun(Scheduler(settings))
    driver = SimulatedDriver(run, SimSettings(), 1)
    driver.later(20.0, EvalDue())
    driver.play()
    assert len(all_notes(run.entries, EvalEnded)) == 1


def test_sandboxes_stay_within_the_quota() -> None:
    settings = replace(BASE, max_sandboxes=6, verify_sandboxes=2)
    run = simulate(settings, SimSettings(tool_s=1.0), 1)
    live: set[str] = set()
    for entry in run.entries:
        if isinstance(entry.event, SandboxReleased):
            live.discard(entry.event.sandbox)
        live |= {command.sandbox for command in entry.commands if isinstance(command, GrantSandbox)}
        assert len(live) <= 4  # the last two places are the verifiers'
    assert events_of(run, SandboxReady)


def test_stop_asked_finishes_the_step_saves_and_keeps_the_queue() -> None:
    run = SimRun(Scheduler(BASE))
    driver = SimulatedDriver(run, SimSettings(train_s=10.0), 1)
    driver.later(40.0, StopAsked("SIGINT"))
    finish = driver.play()
    assert finish is not None
    assert finish.outcome == "interrupted"
    assert run.checkpoints[-1] == run.scheduler.state.step > 0
    ends = assert_conserved(run.entries)
    assert ends["carried"] > 0
    resumed = SimulatedDriver(run, SimSettings(train_s=10.0), 2, lineage=1, start_s=run.entries[-1].t)
    finish = resumed.play()
    assert finish is not None
    assert finish.outcome == "steps"
    assert "carried" not in assert_conserved(run.entries)


def test_after_a_resume_submissions_stay_within_the_bound() -> None:
    """A run resumed at version v submits no more than (bound + 1) batches before its first step."""
    run = SimRun(Scheduler(BASE))
    driver = SimulatedDriver(run, SimSettings(train_s=10.0), 1)
    driver.later(45.0, StopAsked("SIGINT"))
    driver.play()
    before = len(run.entries)
    SimulatedDriver(run, SimSettings(), 2, lineage=1, start_s=run.entries[-1].t).play()
    step = next(i for i, e in enumerate(run.entries) if i >= before and isinstance(e.event, StepEnded))
    started = {c.group for c in all_commands(run.entries[before:step], StartRollout) if c.purpose == "train"}
    assert len(started) <= 3 * BASE.queue.batch_groups


def test_groups_in_flight_at_a_kill_start_again_from_the_checkpoints_weights() -> None:
    run = SimRun(Scheduler(BASE))
    SimulatedDriver(run, SimSettings(train_s=10.0), 1).play(stop_after=1000)
    before, saved = len(run.entries), run.checkpoints[-1]
    assert saved > 0
    SimulatedDriver(run, SimSettings(train_s=10.0), 2, lineage=1, start_s=run.entries[-1].t).play()
    later = [entry.event for entry in run.entries[before:] if isinstance(entry.event, RolloutEnded)]
    versions = {span.number for event in later for span in event.spans if event.rollout.startswith("t")}
    assert min(versions) >= saved
    assert_conserved(run.entries)


@pytest.mark.parametrize("stop_at_s", range(20, 64, 4))
def test_a_resumed_life_starts_no_rollout_twice(stop_at_s: int) -> None:
    """Also when a step is trained from the old queue before the replica has the checkpoint's weights."""
    run = SimRun(Scheduler(BASE))
    driver = SimulatedDriver(run, SimSettings(train_s=10.0), 1)
    driver.later(float(stop_at_s), StopAsked("SIGINT"))
    driver.play()
    before = len(run.entries)
    late = SimSettings(train_s=0.1, publish_s=0.1, apply_s=1.0)
    SimulatedDriver(run, late, 2, lineage=1, start_s=run.entries[-1].t).play()
    going: set[str] = set()
    for entry in run.entries[before:]:
        if isinstance(entry.event, (RolloutEnded, RolloutFailed)):
            going.discard(entry.event.rollout)
        for command in entry.commands:
            if isinstance(command, StartRollout):
                assert command.rollout not in going
                going.add(command.rollout)
    assert_conserved(run.entries)


@pytest.mark.parametrize("stop_at_s", range(20, 64, 4))
def test_groups_in_flight_at_an_interruption_are_whole_after_the_resume(stop_at_s: int) -> None:
    """Their members were cancelled; a resumed life starts them again and settles no group without them."""
    run = SimRun(Scheduler(BASE))
    driver = SimulatedDriver(run, SimSettings(train_s=10.0), 1)
    driver.later(float(stop_at_s), StopAsked("SIGINT"))
    driver.play()
    before = len(run.entries)
    finish = SimulatedDriver(run, SimSettings(), 2, lineage=1, start_s=run.entries[-1].t).play()
    assert finish is not None
    assert finish.outcome == "steps"
    settled = [note for note in all_notes(run.entries[before:], GroupSettled) if note.purpose == "train"]
    assert all(note.num_rollouts == BASE.queue.group_size for note in settled)
    assert "voided" not in {note.fate for note in settled}


def test_steps_that_a_checkpoint_contains_are_not_trained_again() -> None:
    run = SimRun(Scheduler(BASE))
    driver = SimulatedDriver(run, SimSettings(), 1)
    driver.play(stop_after=1000)
    saved = run.checkpoints[-1]
    assert saved < 6
    before = {step: rows for step, rows in run.trained.items() if step <= saved}
    SimulatedDriver(run, SimSettings(), 2, lineage=1, start_s=run.entries[-1].t).play()
    steps = [event.step for _, event in events_of(run, StepEnded)]  # pyright: ignore
    assert steps[-1] == 6
    assert {step: run.trained[step] for step in before} == before


def test_wall_time_ends_the_run_after_the_step_in_progress() -> None:
    settings = replace(BASE, stop=StopSettings(steps=0, wall_s=50.0))
    run = simulate(settings, SimSettings(train_s=8.0), 1)
    assert finish_of(run).outcome == "wall"
    assert run.checkpoints[-1] == run.scheduler.state.step
    assert all_notes(run.entries, EvalEnded)[-1].number == run.scheduler.state.step


def test_target_reward_ends_the_run() -> None:
    settings = replace(BASE, stop=StopSettings(steps=50, target_reward=0.4, target_window=16))
    run = simulate(settings, SimSettings(solve_rate=0.6), 1)
    assert finish_of(run).outcome == "target"


def started(settings: SchedulerSettings = BASE) -> Scheduler:
    scheduler = Scheduler(settings)
    for event in (
        RunStarted(),
        WorkerJoined("trainer", "trainer"),
        WorkerJoined("environment", "e0"),
        ReplicaJoined("g0", 0, 0, 0, 32),
    ):
        scheduler.handle(event, 1.0)
    return scheduler


def test_start_up_that_hangs_names_who_waits_for_whom() -> None:
    scheduler = Scheduler(BASE)
    scheduler.handle(RunStarted(), 0.0)
    scheduler.handle(WorkerJoined("trainer", "trainer"), 5.0)
    commands, _ = scheduler.handle(DeadlinePassed(), 180.0)
    (finish,) = commands
    assert isinstance(finish, Finish)
    assert finish.failed
    assert "1 generator replica(s) and 1 environment worker(s) to start for 180 s" in finish.message
    assert "deadlines.start_s" in finish.message


def test_a_lost_worker_ends_the_run_with_its_cause() -> None:
    settings = replace(BASE, recovery=RecoverySettings(trainer_restarts=0))
    commands, _ = started(settings).handle(
        WorkerLost("trainer", "trainer", "MemoryError: out of memory"), 2.0
    )
    assert commands == [
        Finish("failed", "trainer worker trainer was lost: MemoryError: out of memory", failed=True)
    ]


def test_a_task_source_that_does_not_answer_is_named() -> None:
    scheduler = started(replace(BASE, deadlines=DeadlineSettings(task_s=7.0)))
    commands, _ = scheduler.handle(DeadlinePassed(), 10.0)
    assert isinstance(commands[-1], Finish)
    assert "waited for the task source to offer a task" in commands[-1].message


def test_exhausted_tasks_end_the_run() -> None:
    scheduler = started(replace(BASE, eval=EvalSettings(num_tasks=0)))
    outcome: list[str] = []
    for request in range(12):
        commands, _ = scheduler.handle(TasksExhausted(request), 2.0)
        outcome += [command.outcome for command in commands if isinstance(command, Finish)]
    assert outcome == ["tasks_exhausted"]


def test_an_event_of_an_unknown_request_changes_nothing() -> None:
    scheduler = started()
    before = scheduler.snapshot()
    commands, notes = scheduler.handle(TaskOffered(999, "train/999", 0), 2.0)
    assert commands == []
    assert [type(note).__name__ for note in notes] == ["Ignored"]
    assert scheduler.snapshot() == before


def test_a_setting_changes_during_the_run_and_survives_a_snapshot() -> None:
    scheduler = started()
    scheduler.handle(SettingChanged("queue.max_running_rollouts", 8), 2.0)
    assert scheduler.settings.queue.max_running_rollouts == 8
    assert Scheduler.restore(BASE, scheduler.snapshot()).settings.queue.max_running_rollouts == 8
    _, notes = scheduler.handle(SettingChanged("queue.batch_size", 6), 3.0)
    assert isinstance(notes[0], Warned)
    assert "multiple of group_size" in notes[0].text
    assert scheduler.settings.queue.batch_size == 16


def test_requests_of_older_groups_come_first_in_the_engines_line() -> None:
    run = simulate(BASE, SimSettings(train_s=1.0), 1)
    starts = [command for command in all_commands(run.entries, StartRollout) if command.purpose == "train"]
    by_group = {command.group: command.priority for command in starts}
    assert all(by_group[command.group] == command.priority for command in starts)
    assert [by_group[group] for group in sorted(by_group)] == sorted(set(by_group.values()))


def test_a_batch_is_limited_by_its_tokens_and_the_oldest_that_fit_leave_first() -> None:
    limit = 700
    settings = queue(group_size=2, batch_size=16, bound=8, batch_tokens=limit)
    run = simulate(settings, SimSettings(train_s=1.0, tokens_sigma=0.8), 1)
    tokens: dict[str, int] = {}
    for entry in run.entries:
        if isinstance(entry.event, RolloutEnded):
            tokens[entry.event.rollout] = entry.event.num_tokens
    sizes: list[int] = []
    for command in all_commands(run.entries, Train):
        groups: dict[str, int] = {}
        for row in command.rows:
            groups[row.group] = groups.get(row.group, 0) + tokens[row.rollout]
        assert len(groups) == 1 or sum(groups.values()) <= limit
        sizes.append(len(groups))
    assert len(set(sizes)) > 1
    assert max(sizes) < settings.queue.batch_groups
    assert_conserved(run.entries)
