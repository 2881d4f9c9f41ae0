"""The table of rollouts against what independent readings of a simulated journal say.

Runs with faults, kills, rollbacks, retries, splits, masks; their journals are read record by record.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from headway.core.commands import StartRollout, Train
from headway.core.events import RolledBack, RolloutEnded, RunResumed, Scored
from headway.core.notes import AttemptFailed, BatchReleased, GroupSplit, RolloutRevived
from headway.matching.roles import SimSettings
from headway.queue.entry_settings import OversamplingSettings
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from headway.telemetry.records import Entry
from headway.telemetry.rollout_record import RolloutRecord
from headway.telemetry.rollout_table import RolloutTable
from tests.simulation.ledger import all_commands, all_notes, fates
from tests.simulation.scenarios import draw_settings, draw_sim, play_lives

SEEDS = range(24)


def table_of(run) -> dict[str, RolloutRecord]:
    table = RolloutTable()
    for entry in run.entries:
        table.feed(Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes)))
    return {record.rollout: record for record in table.records()}


def played(seed):
    rng = random.Random(f"table/{seed}")
    kills = [rng.randint(50, 600) for _ in range(seed % 3)]
    return play_lives(draw_settings(rng), draw_sim(rng), seed, kills)[0]


def released(run):
    """The surviving batches: step -> (Train, BatchReleased)."""
    asked, found = {}, {}
    for entry in run.entries:
        if isinstance(entry.event, (RunResumed, RolledBack)):
            found = {step: batch for step, batch in found.items() if step <= entry.event.step}
        for command in entry.commands:
            if isinstance(command, Train):
                (note,) = [note for note in entry.notes if isinstance(note, BatchReleased)]
                found[command.step] = asked[command.step] = (command, note)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_rollout_has_its_end_its_step_and_its_ages(seed):
    run = played(seed)
    table = table_of(run)
    starts = all_commands(run.entries, StartRollout)
    assert list(table) == list(dict.fromkeys(command.rollout for command in starts))
    assert {name: record.fate for name, record in table.items()} == fates(run.entries)
    newest = {command.rollout: command.attempt for command in starts}
    assert {name: record.attempt for name, record in table.items()} == newest
    assert {name: record.num_revived for name, record in table.items() if record.num_revived} == Counter(
        note.rollout for note in all_notes(run.entries, RolloutRevived)
    )
    num_failures = Counter(note.rollout for note in all_notes(run.entries, AttemptFailed))
    assert {name: len(record.failures) for name, record in table.items() if record.failures} == num_failures

    trained = {name: record.step for name, record in table.items() if record.fate == "trained"}
    assert trained == {rollout: step for step, rows in run.trained.items() for rollout in rows}
    for step, (command, note) in released(run).items():
        records = [table[row.rollout] for row in command.rows]
        if any(record.step != step for record in records):
            assert step not in run.trained  # released as the run ended
            continue
        assert tuple(record.trajectory_staleness for record in records) == note.trajectory_staleness
        assert tuple(record.environment_staleness for record in records) == note.environment_staleness
        assert sum(record.num_masked_tokens for record in records) == note.num_masked_tokens
        oldest = max(record.token_staleness for record in records if record.token_staleness is not None)
        assert oldest == max(age for age, _ in note.token_staleness)
        assert [record.advantage for record in records] == [row.advantage for row in command.rows]
        assert [record.weight for record in records] == [row.weight for row in command.rows]


@pytest.mark.parametrize("seed", SEEDS)
def test_rewards_and_lengths_are_those_of_the_newest_attempt(seed):
    run = played(seed)
    newest, ends, scores = {}, {}, {}
    for entry in run.entries:
        match entry.event:
            case RolloutEnded() as event:
                ends.setdefault((event.rollout, event.attempt), event)
            case Scored() as event:
                scores.setdefault((event.rollout, event.attempt), event)
        for command in entry.commands:
            if isinstance(command, StartRollout):
                newest[command.rollout] = (command, entry.t)
    for name, record in table_of(run).items():
        command, started_s = newest[name]
        key = (name, command.attempt)
        assert (record.task_id, record.purpose) == (command.task_id, command.purpose)
        assert record.started_s == started_s
        if record.reward is not None:
            assert record.reward == scores[key].reward
            assert record.payload == ends[key].payload
            assert record.spans == ends[key].spans
            assert record.num_tokens == ends[key].num_tokens == sum(s.num_tokens for s in record.spans)
            assert record.end_to_end_s == pytest.approx(record.ended_s - started_s)


def test_late_members_are_in_the_group_that_they_went_on_in():
    settings = SchedulerSettings(
        queue=QueueSettings(group_size=4, batch_size=8, bound=4),
        oversampling=OversamplingSettings(rollouts_extra=3, when_met="finish"),
        checkpoint=CheckpointSettings(every_steps=1),
        eval=EvalSettings(num_tasks=2, every_steps=2),
        stop=StopSettings(steps=6),
    )
    run, _ = play_lives(settings, SimSettings(tokens_sigma=1.2), 5, [400])
    splits = all_notes(run.entries, GroupSplit)
    assert splits
    table = table_of(run)
    for note in splits:
        for name in note.rollouts:
            assert table[name].group == note.into
