"""What enters the queue, each rule by its effect in a simulated run."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from headway.core.codec import to_plain
from headway.core.commands import Cancel, Command, Finish, RequestTask, Score, StartRollout, Train
from headway.core.events import RolloutEnded, StepEnded, TasksExhausted
from headway.core.notes import (
    BatchReleased,
    GroupSettled,
    GroupSplit,
    NoSignal,
    RolloutSettled,
    TaskRegressed,
    TaskRetired,
    TaskReturned,
    Warned,
)
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver, simulate
from headway.queue.entry_settings import (
    AcceptanceSettings,
    CurriculumSettings,
    OversamplingSettings,
    Source,
)
from headway.queue.scheduler import Scheduler
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings, StopSettings
from headway.telemetry.header import new_header
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Entry
from headway.telemetry.report import report_text
from tests.simulation.ledger import all_commands, all_notes, assert_conserved, assert_within_bound

BASE = SchedulerSettings(
    queue=QueueSettings(group_size=4, batch_size=16, bound=0, drop_zero_advantage=False),
    stop=StopSettings(steps=6),
    eval=EvalSettings(num_tasks=0),
    rollout_timeout_s=600.0,
)
LONG_TAILS = SimSettings(
    max_running=64, tokens_sigma=1.2, max_answer_tokens=4000, train_s=1.0, num_turns=1, uses_sandbox=False
)


def metrics_of(run: SimRun, settings: SchedulerSettings) -> RunMetrics:
    metrics = RunMetrics(new_header(config={}, seed=1, queue=to_plain(settings)))
    for entry in run.entries:
        metrics.feed(Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes)))
    return metrics


def oversampled(**changes: object) -> SchedulerSettings:
    return replace(BASE, oversampling=OversamplingSettings(**changes))  # pyright: ignore


def end_of(run: SimRun) -> Finish:
    (finish,) = all_commands(run.entries, Finish)
    return finish


# --- oversampling


def test_extra_rollouts_shorten_a_step_that_long_tails_hold_up() -> None:
    plain = simulate(BASE, LONG_TAILS, 1).entries[-1].t
    extra = simulate(oversampled(rollouts_extra=2), LONG_TAILS, 1).entries[-1].t
    assert extra < 0.75 * plain


def test_extra_groups_shorten_a_step_that_long_tails_hold_up() -> None:
    plain = simulate(BASE, LONG_TAILS, 1).entries[-1].t
    extra = simulate(oversampled(groups_extra=3), LONG_TAILS, 1).entries[-1].t
    assert extra < 0.8 * plain


def test_a_group_is_the_first_to_be_scored_and_late_members_are_cancelled_and_counted() -> None:
    settings = oversampled(rollouts_extra=2)
    run = simulate(settings, LONG_TAILS, 1)
    ends = assert_conserved(run.entries)
    for command in all_commands(run.entries, Train):
        assert set(Counter(row.group for row in command.rows).values()) == {4}
    assert ends["cancelled"] >= 2 * ends["trained"] // 4
    assert {command.reason for command in all_commands(run.entries, Cancel)} >= {"oversampled"}


def test_the_length_bias_is_reported_as_it_is() -> None:
    """Against what the simulation knows: the lengths of kept ones, and of all, as far as each had come."""
    settings = oversampled(rollouts_extra=3)
    run = simulate(settings, LONG_TAILS, 2)
    fates = {note.rollout: note for note in all_notes(run.entries, RolloutSettled)}
    ended = {e.event.rollout for e in run.entries if isinstance(e.event, RolloutEnded)}
    ignored = ("stopped", "unused")
    known = {name: note for name, note in fates.items() if note.fate not in ignored}
    kept = [note.num_tokens for note in known.values() if note.fate == "trained"]
    every = [note.num_tokens for note in known.values()]
    unfinished = [n for name, n in known.items() if n.fate == "cancelled" and name not in ended]
    summary = metrics_of(run, settings).summary()
    assert summary["rl.oversampling.kept_tokens"] == pytest.approx(sum(kept) / len(kept))
    assert summary["rl.oversampling.all_tokens"] == pytest.approx(sum(every) / len(every))
    assert summary["rl.oversampling.unfinished.rollout_fraction"] == pytest.approx(
        len(unfinished) / len(every)
    )
    assert summary["rl.oversampling.unfinished.token_fraction"] == pytest.approx(
        sum(note.num_tokens for note in unfinished) / sum(every)
    )
    assert summary["rl.oversampling.length_ratio"] < 0.8  # clearly biased towards the short
    assert min(note.num_tokens for note in unfinished) > 0  # the tokens of the answer they were in
    assert "shorter" in report_text(summary, [])


def test_without_oversampling_nothing_is_thrown_away_and_no_bias_is_reported() -> None:
    summary = metrics_of(simulate(BASE, LONG_TAILS, 2), BASE).summary()
    for kind in ("finished", "unfinished", "errored"):
        assert summary[f"rl.oversampling.{kind}.rollout_fraction"] == 0.0
    assert summary["rl.oversampling.length_ratio"] == 1.0


def test_failed_rollouts_are_made_up_for_by_the_extra_ones() -> None:
    settings = replace(
        oversampled(rollouts_extra=2),
        queue=replace(BASE.queue, max_attempts=1, on_failed_rollout="void"),
    )
    sim = replace(LONG_TAILS, p_environment_fails=0.1)
    run = simulate(settings, sim, 3)
    assert not [n for n in all_notes(run.entries, GroupSettled) if n.fate == "voided"]
    assert metrics_of(run, settings).summary()["rl.oversampling.errored.rollout_fraction"] > 0.0


@pytest.mark.parametrize("when_met", ["finish", "park"])
def test_late_members_that_go_on_train_later_as_a_group_of_their_own(when_met: str) -> None:
    settings = replace(
        oversampled(rollouts_extra=2, when_met=when_met),
        queue=replace(BASE.queue, bound=4, depth=1),
        stop=StopSettings(steps=12),
    )
    run = simulate(settings, LONG_TAILS, 1)
    assert end_of(run).outcome == "steps"
    assert_conserved(run.entries)
    assert_within_bound(run.entries, 4)
    split = {note.into: set(note.rollouts) for note in all_notes(run.entries, GroupSplit)}
    trained = {row.group for command in all_commands(run.entries, Train) for row in command.rows}
    assert split.keys() & trained
    for command in all_commands(run.entries, Train):
        for row in command.rows:
            assert row.group not in split or row.rollout in split[row.group]
    assert metrics_of(run, settings).summary()["conservation.ok"]


def test_extra_groups_do_not_count_as_ahead_and_the_rest_ends_with_the_batch() -> None:
    settings = oversampled(groups_extra=3)
    run = simulate(settings, LONG_TAILS, 1)
    scheduler, most = Scheduler(settings), 0
    for entry in run.entries:
        scheduler.handle(entry.event, entry.t)
        index = scheduler.index
        ahead = index.num_admitted - index.num_late + len(index.train["queued"])
        most = max(most, ahead)
        if any(isinstance(command, Train) for command in entry.commands):
            assert index.num_admitted - index.num_late == 0  # bound 0: nothing in flight is of use
    assert most == BASE.queue.batch_groups + 3
    released = all_notes(run.entries, BatchReleased)
    assert {note.num_short_groups for note in released} == {0}
    assert assert_conserved(run.entries)["cancelled"] > 0


# --- acceptance


def test_groups_outside_the_band_are_dropped_and_replaced() -> None:
    settings = replace(
        BASE,
        queue=replace(BASE.queue, bound=1),
        acceptance=AcceptanceSettings(band_low=0.25, band_high=0.75),
    )
    run = simulate(settings, SimSettings(solve_rate=0.5), 1)
    settled = all_notes(run.entries, GroupSettled)
    for note in settled:
        inside = 0.25 <= note.num_solved / note.num_rollouts <= 0.75
        assert (note.fate == "queued") == inside
        assert note.reason == ("" if inside else "band")
    assert metrics_of(run, settings).summary()["rl.acceptance.band.groups"] > 0


@pytest.mark.parametrize("reason", ["verdict", "band"])
def test_when_a_filter_takes_everything_the_run_ends_by_name_and_says_which(reason: str) -> None:
    """A filter that removes everything for 10 batches is a bounded, named outcome, not a silent loop."""
    acceptance = AcceptanceSettings() if reason == "verdict" else AcceptanceSettings(0.99, 1.0)
    settings = replace(BASE, acceptance=acceptance)
    sim = SimSettings(p_verdict_drops=1.0 if reason == "verdict" else 0.0, solve_rates={"": 0.0})
    run = simulate(settings, sim, 1)
    finish = end_of(run)
    assert finish.outcome == "no_signal"
    assert len(all_notes(run.entries, NoSignal)) == settings.queue.max_empty_batches
    assert ("acceptance.verdict" if reason == "verdict" else "acceptance.band_low") in finish.message
    assert {note.code for note in all_notes(run.entries, Warned)} == {"no_signal"}
    assert not all_commands(run.entries, Train)


def test_a_verdict_s_reason_is_in_the_ledger() -> None:
    run = simulate(replace(BASE, queue=replace(BASE.queue, bound=1)), SimSettings(p_verdict_drops=0.3), 1)
    reasons = {n.reason for n in all_notes(run.entries, RolloutSettled) if n.fate == "filtered"}
    assert reasons == {"verdict: simulated"}


# --- sources

MIX = (Source("sums", 0.5), Source("code", 0.3, group_size=2), Source("proofs", 0.2))


def test_the_mix_is_met_to_within_one_group_at_any_moment() -> None:
    settings = replace(BASE, queue=replace(BASE.queue, bound=2), sources=MIX, stop=StopSettings(steps=10))
    run = simulate(settings, SimSettings(), 1)
    asked: Counter[str] = Counter()
    for number, command in enumerate(all_commands(run.entries, RequestTask), start=1):
        asked[command.source] += 1
        for source in MIX:
            assert abs(asked[source.name] - source.weight * number) < 1.0


def test_each_source_has_its_group_size_and_a_batch_counts_groups() -> None:
    settings = replace(BASE, sources=MIX)
    run = simulate(settings, SimSettings(), 1)
    sizes = {"sums": 4, "code": 2, "proofs": 4}
    source_of = {n.group: n.source for n in all_notes(run.entries, GroupSettled)}
    for command in all_commands(run.entries, Train):
        rows = Counter(row.group for row in command.rows)
        assert len(rows) == BASE.queue.batch_groups
        assert all(size == sizes[source_of[group]] for group, size in rows.items())


def test_what_is_trained_follows_the_weights_although_one_source_is_filtered_more() -> None:
    settings = replace(
        BASE,
        queue=replace(BASE.queue, bound=1, drop_zero_advantage=True, max_refill_batches=4),
        sources=(Source("easy", 1.0), Source("hard", 1.0)),
        stop=StopSettings(steps=20),
    )
    run = simulate(settings, SimSettings(solve_rates={"easy": 0.5, "hard": 0.12}), 1)
    trained = metrics_of(run, settings).summary()["rl.mix.trained"]
    assert abs(trained["easy"] - trained["hard"]) <= 4
    settled = metrics_of(run, settings).summary()["rl.mix.settled"]
    assert settled["hard"]["groups"] > 1.5 * settled["easy"]["groups"]


def test_the_mix_goes_on_right_after_a_kill() -> None:
    settings = replace(BASE, queue=replace(BASE.queue, bound=2), sources=MIX, stop=StopSettings(steps=10))
    run = SimRun(Scheduler(settings))
    SimulatedDriver(run, SimSettings(), 1).play(stop_after=500)
    SimulatedDriver(run, SimSettings(), 2, lineage=1, start_s=run.entries[-1].t).play()
    trained = metrics_of(run, settings).summary()["rl.mix.trained"]
    assert sum(trained.values()) == 40
    for source in MIX:
        assert abs(trained[source.name] - 40 * source.weight) <= 3.0  # what is still in flight
    assert_conserved(run.entries)


def test_when_every_source_with_a_weight_runs_out_the_run_is_dry() -> None:
    sources = (Source("rich", 1.0), Source("never", 0.0))
    settings = replace(BASE, sources=sources, stop=StopSettings(steps=50))

    class Dry(SimulatedDriver):
        def _obey(self, command: Command) -> None:
            if isinstance(command, RequestTask) and command.index > 5:
                self.later(0.0, TasksExhausted(command.request))
            else:
                super()._obey(command)

    driver = Dry(SimRun(Scheduler(settings)), SimSettings(), 0)
    finish = driver.play()
    assert finish is not None
    assert finish.outcome == "tasks_exhausted"


def test_tasks_of_a_level_may_have_another_group_size() -> None:
    settings = replace(
        BASE,
        queue=replace(BASE.queue, group_size_by_level={"2": 6}),
        curriculum=CurriculumSettings(levels=(1, 2), explore=0.5),
    )
    run = simulate(settings, SimSettings(), 1)
    sizes = {note.level: note.num_rollouts for note in all_notes(run.entries, GroupSettled)}
    assert sizes == {1: 4, 2: 6}


# --- curriculum


def test_the_curriculum_moves_to_the_band_as_the_policy_learns() -> None:
    settings = replace(
        BASE,
        queue=replace(BASE.queue, bound=1),
        curriculum=CurriculumSettings(levels=(1, 2, 3), explore=0.1, memory_groups=8.0),
        stop=StopSettings(steps=60),
    )
    rates = {"1": 0.5, "2": 0.1, "3": -0.5}
    run = simulate(settings, SimSettings(solve_rates=rates, learning=0.015, train_s=1.0), 1)
    step, asked = 0, {"early": Counter[int | None](), "late": Counter[int | None]()}
    for entry in run.entries:
        step += isinstance(entry.event, StepEnded)
        when = "early" if step < 8 else "late" if step >= 45 else ""
        if when:
            asked[when].update(c.level for c in entry.commands if isinstance(c, RequestTask))
    assert asked["early"].most_common(1)[0][0] == 1
    assert asked["late"].most_common(1)[0][0] == 2  # level 1 is solved, level 3 is not begun to be
    plain = replace(settings, curriculum=replace(settings.curriculum, explore=1.0))  # all levels alike
    even = simulate(plain, SimSettings(solve_rates=rates, learning=0.015, train_s=1.0), 1)
    share, even_share = (
        metrics_of(*pair).summary()["rl.curriculum.in_band_fraction"]
        for pair in ((run, settings), (even, plain))
    )
    assert share > even_share + 0.15


def test_solved_tasks_rest_return_and_the_regressed_are_listed() -> None:
    settings = replace(
        BASE,
        queue=replace(BASE.queue, bound=1),
        curriculum=CurriculumSettings(retire_after=2, retire_at=1.0, return_after_steps=5),
        stop=StopSettings(steps=40),
    )
    run = simulate(settings, SimSettings(solve_rates={"": 0.85}, num_tasks=12, train_s=0.5), 1)
    retired, returned = all_notes(run.entries, TaskRetired), all_notes(run.entries, TaskReturned)
    regressed = all_notes(run.entries, TaskRegressed)
    assert retired
    assert returned
    assert regressed
    resting: dict[str, int] = {}
    for entry in run.entries:
        for note in entry.notes:
            if isinstance(note, TaskRetired):
                resting[note.task_id] = note.due_step
            elif isinstance(note, TaskReturned):
                assert note.step >= resting.pop(note.task_id)
            elif isinstance(note, TaskRegressed):
                resting.pop(note.task_id, None)
        for command in entry.commands:
            if isinstance(command, RequestTask) and command.split == "train" and len(resting) < 12:
                assert f"train/{command.index % 12}" not in resting
    summary = metrics_of(run, settings).summary()
    assert summary["rl.curriculum.retirements"] == len(retired)
    assert summary["rl.curriculum.resting"] == len(resting)
    assert [row["task"] for row in summary["rl.curriculum.regressed"]] == [n.task_id for n in regressed]
    assert "regressed" in report_text(summary, [])


# --- what users of other systems reported


def test_one_of_three_rollouts_fails_and_every_one_is_accounted_for() -> None:
    settings = replace(oversampled(rollouts_extra=1), queue=replace(BASE.queue, bound=2, max_attempts=1))
    run = simulate(settings, replace(LONG_TAILS, p_environment_fails=1 / 3), 5)
    ends = assert_conserved(run.entries)
    started = {c.rollout for c in all_commands(run.entries, StartRollout)}
    assert sum(ends.values()) == len(started)
    assert ends["failed_environment"] > 0


def test_a_target_that_is_met_does_not_wait_for_a_judge_that_sleeps() -> None:
    """The step goes on within the score's own time; the slow judge's rollout ends as cancelled."""
    settings = replace(oversampled(rollouts_extra=1), score_timeout_s=900.0)
    run = SimRun(Scheduler(settings))

    class SlowJudge(SimulatedDriver):
        def _score(self, command: Score) -> None:
            if command.rollout.endswith(".0"):
                return  # asleep for 600 s; nobody waits for it
            super()._score(command)

    SlowJudge(run, LONG_TAILS, 1).play()
    steps = [entry.t for entry in run.entries if isinstance(entry.event, StepEnded)]
    assert len(steps) == 6
    assert steps[-1] < 600.0
