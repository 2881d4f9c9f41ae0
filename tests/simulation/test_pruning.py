"""Early pruning, shown by its effect in simulated runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import pytest

from headway.core.commands import Cancel, Finish, StartRollout, Train
from headway.core.events import Event, RolloutEnded, Scored, TurnEnded, VerdictGiven
from headway.core.notes import GroupSettled, PruneAudited, RolloutSettled
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, simulate
from headway.queue.pruning_settings import PruningSettings
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings, StopSettings
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Entry
from tests.simulation.ledger import all_commands, all_notes, assert_conserved
from tests.simulation.scripted import play

BASE = SchedulerSettings(
    queue=QueueSettings(group_size=4, batch_size=16, bound=2),
    stop=StopSettings(steps=6),
    eval=EvalSettings(num_tasks=4),
    rollout_timeout_s=60.0,
)
SIM = SimSettings(num_turns=4, tokens_sigma=1.0)


def pruning(**changes: object) -> SchedulerSettings:
    return replace(BASE, pruning=PruningSettings(**changes))  # pyright: ignore


def verdicts(source: str, value: float, turn: int = 0, share: float = 0.3):
    """After this answer of a share of the rollouts, chosen by their ids, somebody says something."""

    def follow(event: Event) -> Iterable[Event]:
        if isinstance(event, TurnEnded) and event.turn == turn and chosen(event.rollout, share):
            yield VerdictGiven(event.rollout, event.attempt, source, value, "a test's")  # pyright: ignore

    return follow


def chosen(rollout: str, share: float) -> bool:
    return hashlib.sha256(rollout.encode()).digest()[0] < 256 * share


def pruned(run: SimRun) -> list[RolloutSettled]:
    return [note for note in all_notes(run.entries, RolloutSettled) if note.fate == "pruned"]


def metrics_of(run: SimRun) -> dict[str, object]:
    metrics = RunMetrics()
    for entry in run.entries:
        metrics.feed(Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes)))
    return metrics.summary()


def test_a_length_budget_ends_long_rollouts_and_costs_fewer_tokens() -> None:
    run = simulate(pruning(max_tokens=150), SIM, 1)
    gone = pruned(run)
    assert gone
    assert all(note.reason == "length" and note.num_tokens > 150 for note in gone)
    assert {c.reason for c in all_commands(run.entries, Cancel)} >= {"pruned: length"}
    assert assert_conserved(run.entries)["pruned"] == len(gone)
    summary = metrics_of(run)
    assert summary["rl.prune.length.rollouts"] == len(gone)
    assert summary["rl.prune.length.tokens"] == sum(note.num_tokens for note in gone)
    assert summary["rl.prune.length_ratio"] > 1.0  # pyright: ignore


def test_without_settings_no_verdict_but_a_users_prunes() -> None:
    for source in ("length", "repetition", "environment", "value"):
        assert not pruned(play(BASE, SIM, 1, follow=verdicts(source, -1.0)))
    assert {note.reason for note in pruned(play(BASE, SIM, 1, follow=verdicts("user", -1.0)))} == {"user"}


@pytest.mark.parametrize(
    ("settings", "source", "against", "for_it"),
    [
        ({"max_tokens": 10_000}, "length", 10_001.0, 10_000.0),
        ({"max_repetition": 0.5}, "repetition", 0.5, 0.49),
        ({"environment": True}, "environment", -1.0, 0.0),
        ({"value_threshold": 0.2}, "value", 0.1, 0.2),
        ({}, "user", -1.0, 1.0),
    ],
)
def test_a_verdict_beyond_its_threshold_prunes_and_one_within_does_not(
    settings: dict[str, object], source: str, against: float, for_it: float
) -> None:
    run = play(pruning(**settings), SIM, 2, follow=verdicts(source, against))
    assert {note.reason for note in pruned(run)} == {source}
    assert all(chosen(note.rollout, 0.3) for note in pruned(run))
    assert_conserved(run.entries)
    assert not pruned(play(pruning(**settings), SIM, 2, follow=verdicts(source, for_it)))


def test_a_predicted_reward_counts_only_after_enough_answers() -> None:
    settings = {"value_threshold": 0.5, "min_turns": 3}
    assert not pruned(play(pruning(**settings), SIM, 1, follow=verdicts("value", 0.0, turn=1)))
    assert pruned(play(pruning(**settings), SIM, 1, follow=verdicts("value", 0.0, turn=2)))


def test_pruned_members_leave_their_group_and_do_not_void_it() -> None:
    settings = replace(pruning(environment=True), queue=replace(BASE.queue, on_failed_rollout="void"))
    run = play(settings, SIM, 3, follow=verdicts("environment", -1.0))
    gone = {note.rollout for note in pruned(run)}
    trained = {row.group for command in all_commands(run.entries, Train) for row in command.rows}
    assert any(rollout.rpartition(".")[0] in trained for rollout in gone)
    assert "failed_environment" not in assert_conserved(run.entries)
    for command in all_commands(run.entries, Train):
        assert not gone & {row.rollout for row in command.rows}


def test_everything_pruned_ends_by_name_after_a_bounded_number_of_groups() -> None:
    settings = replace(pruning(environment=True), queue=replace(BASE.queue, max_empty_batches=2))
    run = play(settings, SIM, 3, follow=verdicts("environment", -1.0, share=1.0))
    (finish,) = all_commands(run.entries, Finish)
    assert finish.outcome == "no_signal"
    assert {note.fate for note in all_notes(run.entries, GroupSettled) if note.purpose == "train"} == {
        "voided"
    }
    assert_conserved(run.entries)


def test_an_evaluation_is_never_pruned() -> None:
    run = play(pruning(environment=True), SIM, 3, follow=verdicts("environment", -1.0, share=1.0))
    assert not [note for note in pruned(run) if note.rollout.startswith("e")]


def test_a_group_that_cannot_be_trained_any_more_stops_generating() -> None:
    faulty = replace(SIM, p_environment_fails=0.05)
    settings = replace(
        pruning(dead_groups=True), queue=replace(BASE.queue, on_failed_rollout="void", max_attempts=1)
    )
    run = simulate(settings, faulty, 1)
    gone = pruned(run)
    assert gone
    assert {note.reason for note in gone} == {"group"}
    fates = {note.group: note.fate for note in all_notes(run.entries, GroupSettled)}
    assert {fates[note.group] for note in gone} == {"voided"}
    without = replace(settings, pruning=PruningSettings())
    spent = [wasted(simulate(s, faulty, 1)) for s in (settings, without)]
    assert spent[0] < spent[1]


def wasted(run: SimRun) -> float:
    """Tokens of rollouts in voided groups, a group."""
    voided = [n for n in all_notes(run.entries, GroupSettled) if n.fate == "voided"]
    groups = {note.group for note in voided}
    tokens = sum(n.num_tokens for n in all_notes(run.entries, RolloutSettled) if n.group in groups)
    return tokens / len(groups)


@pytest.mark.parametrize(("share", "low", "high"), [(1.0, 1.0, 1.0), (0.4, 0.25, 0.55)])
def test_an_audit_lets_its_share_finish_and_measures_wrong_prunes(
    share: float, low: float, high: float
) -> None:
    settings = replace(pruning(environment=True, audit=share), stop=StopSettings(steps=30))
    run = play(settings, SIM, 4, follow=verdicts("environment", -1.0))
    audits, gone = all_notes(run.entries, PruneAudited), pruned(run)
    assert low <= len(audits) / (len(audits) + len(gone)) <= high
    rewards = {e.event.rollout: e.event.reward for e in run.entries if isinstance(e.event, Scored)}
    assert all(audit.reward == rewards[audit.rollout] for audit in audits)
    # the verdict is blind, so that it is wrong wherever a rollout solved what another of its group did not
    wrong = sum(audit.would_have_been_wrong for audit in audits) / len(audits)
    solved = sum(audit.reward for audit in audits) / len(audits)
    assert 0.1 < wrong <= solved
    summary = metrics_of(run)
    assert summary["rl.prune.wrong_fraction"] == pytest.approx(wrong)
    assert summary["rl.prune.audited_solved_fraction"] == pytest.approx(solved)
    trained = {row.rollout for command in all_commands(run.entries, Train) for row in command.rows}
    assert trained & {audit.rollout for audit in audits}


def test_an_end_that_crosses_its_pruning_counts_unless_a_user_asked() -> None:
    last = SIM.num_turns - 1  # the end follows this answer at once
    run = play(pruning(environment=True), SIM, 1, follow=verdicts("environment", -1.0, turn=last))
    assert not pruned(run)

    def user(event: Event) -> Iterable[Event]:
        if isinstance(event, TurnEnded) and event.turn == last and chosen(event.rollout, 0.3):
            yield VerdictGiven(event.rollout, event.attempt, "user", -1.0, "x")

    assert_conserved(play(pruning(), SIM, 1, follow=user).entries)
    ended = [e.event.rollout for e in run.entries if isinstance(e.event, RolloutEnded)]
    assert len(set(ended)) == len(ended)


def test_an_audit_counts_only_what_pruning_would_have_ended() -> None:
    last, settings = SIM.num_turns - 1, pruning(environment=True, audit=1.0)
    at_the_end = play(settings, SIM, 1, follow=verdicts("environment", -1.0, last))
    assert not all_notes(at_the_end.entries, PruneAudited)
    before = play(settings, SIM, 1, follow=verdicts("environment", -1.0, last - 1))
    assert all_notes(before.entries, PruneAudited)


def test_a_pruned_rollout_is_never_started_again() -> None:
    run = play(pruning(environment=True), SIM, 5, follow=verdicts("environment", -1.0))
    gone = {note.rollout for note in pruned(run)}
    starts = [c.rollout for c in all_commands(run.entries, StartRollout)]
    assert all(starts.count(rollout) == 1 for rollout in gone)
