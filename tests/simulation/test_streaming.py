"""An idle trainer that begins steps early: what it gains in simulated runs, and what becomes of its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.commands import Finish, Rollback, StartRollout, Train, TrainPart
from headway.core.events import PartEnded, SettingChanged, StopAsked
from headway.core.notes import BatchReleased, Ignored, PartsDiscarded
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, simulate
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.records import Entry
from tests.simulation.ledger import all_commands, all_notes, assert_conserved
from tests.simulation.scenarios import assert_sound, replayed
from tests.simulation.scripted import play

SYNC = SchedulerSettings(
    queue=QueueSettings(group_size=8, batch_size=64, bound=0, drop_zero_advantage=False),
    eval=EvalSettings(num_tasks=0),
    stop=StopSettings(steps=20),
    checkpoint=CheckpointSettings(every_steps=0),
)
LONG_TAILED = SimSettings(max_running=64, tokens_sigma=1.2, max_answer_tokens=1024, train_s=8.0)


def streamed(settings: SchedulerSettings, stream: bool = True) -> SchedulerSettings:
    return replace(settings, queue=replace(settings.queue, stream=stream))


def measured(run: SimRun) -> RunMetrics:
    metrics = RunMetrics()
    for entry in run.entries:
        metrics.feed(Entry(entry.seq, entry.t, entry.event, tuple(entry.commands), tuple(entry.notes)))
    return metrics


def last(run: SimRun) -> Finish:
    finish = run.entries[-1].commands[-1]
    assert isinstance(finish, Finish)
    return finish


def batches(run: SimRun) -> list[tuple[int, list[str]]]:
    return [
        (train.step, sorted(row.rollout for row in train.rows)) for train in all_commands(run.entries, Train)
    ]


@pytest.mark.parametrize("bound", [0, 1])
def test_the_trainer_waits_less_where_rollouts_are_long_tailed(bound: int) -> None:
    settings = replace(SYNC, queue=replace(SYNC.queue, bound=bound))
    runs = [simulate(streamed(settings, stream), LONG_TAILED, seed=1) for stream in (False, True)]
    plain, early = (measured(run).summary() for run in runs)
    assert early["rl.trainer.wait_fraction"] < plain["rl.trainer.wait_fraction"] - 0.05
    assert early["window_s"] < 0.95 * plain["window_s"]
    assert plain["rl.trainer.streamed_fraction"] == 0
    assert 0.3 < early["rl.trainer.streamed_fraction"] < 1
    shares = [early[f"rl.trainer.{name}_fraction"] for name in ("wait", "compute", "publish")]
    assert sum(shares) == pytest.approx(1)
    computed = [measured(run).window.compute_s for run in runs]
    assert computed[1] == pytest.approx(computed[0])  # the same work, done earlier


def test_with_bound_0_each_step_trains_the_groups_that_it_trains_otherwise() -> None:
    plain, early = (simulate(streamed(SYNC, stream), LONG_TAILED, seed=1) for stream in (False, True))
    assert [(step, len(rows)) for step, rows in batches(early)] == [(step, 64) for step in range(1, 21)]
    assert batches(early) == batches(plain)
    assert all(dict(batch.token_staleness).keys() == {0} for batch in all_notes(early.entries, BatchReleased))


def test_what_is_handed_over_is_the_beginning_of_the_batch() -> None:
    run = simulate(streamed(SYNC), LONG_TAILED, seed=2)
    handed: list[object] = []
    for entry in run.entries:
        for command in entry.commands:
            if isinstance(command, TrainPart):
                handed += command.rows
            elif isinstance(command, Train):
                assert list(command.rows[: command.num_gathered]) == handed
                handed = []
    assert_sound(run, 0)
    replayed(streamed(SYNC), run)


def test_a_dead_trainer_loses_its_parts_and_they_wait_again() -> None:
    settings = replace(streamed(SYNC), checkpoint=CheckpointSettings(every_steps=1))
    settings = replace(settings, recovery=replace(settings.recovery, trainer_restarts=100))
    run = simulate(settings, replace(LONG_TAILED, p_trainer_dies=0.1), seed=4)
    assert last(run).outcome == "steps"
    discarded = all_notes(run.entries, PartsDiscarded)
    assert discarded
    assert all_commands(run.entries, Rollback)
    trained = {row.group for train in all_commands(run.entries, Train) for row in train.rows}
    assert {group for note in discarded for group in note.groups} <= trained
    assert_sound(run, 0)


@pytest.mark.parametrize("reason", ["interrupt", "wall"])
def test_a_run_that_stops_while_a_part_is_computed_ends_and_conserves(reason: str) -> None:
    asked: list[int] = []

    def follow(event: object):
        if isinstance(event, PartEnded):
            asked.append(1)
        if reason == "interrupt" and len(asked) == 3:
            asked.append(1)
            yield StopAsked("enough")

    whole = simulate(streamed(SYNC), LONG_TAILED, seed=1)
    asked_at = [entry.t for entry in whole.entries if any(isinstance(c, TrainPart) for c in entry.commands)]
    wall_s = asked_at[4] + 0.01 if reason == "wall" else 0.0
    settings = replace(streamed(SYNC), stop=replace(SYNC.stop, wall_s=wall_s))
    run = play(settings, LONG_TAILED, 1, follow=follow)
    assert last(run).outcome == {"interrupt": "interrupted"}.get(reason, reason)
    fates = assert_conserved(run.entries)
    assert sum(fates.values()) == len({start.rollout for start in all_commands(run.entries, StartRollout)})
    assert fates["carried" if reason == "interrupt" else "unused"] > 0


def test_a_setting_that_changes_takes_nothing_from_the_trainer() -> None:
    """A bound of 0 would void what waits; what was handed over stays as it was handed over."""
    settings = replace(streamed(SYNC), queue=replace(streamed(SYNC).queue, bound=2, batch_size=32))
    told: list[int] = []

    def follow(event: object):
        if isinstance(event, PartEnded):
            told.append(1)
            if len(told) == 5:
                yield SettingChanged("queue.bound", 0)
                yield SettingChanged("queue.stream", False)

    run = play(settings, LONG_TAILED, 3, follow=follow)
    assert last(run).outcome == "steps"
    assert_conserved(run.entries)
    assert not all_notes(run.entries, PartsDiscarded)
    replayed(settings, run)


def test_a_repeated_answer_of_a_part_is_ignored() -> None:
    def follow(event: object):
        if isinstance(event, PartEnded) and event.compute_s:
            yield replace(event, compute_s=0.0)

    run = play(streamed(SYNC), LONG_TAILED, 1, follow=follow)
    assert last(run).outcome == "steps"
    ignored = [note for note in all_notes(run.entries, Ignored) if note.event == "PartEnded"]
    assert ignored
    assert batches(run) == batches(simulate(streamed(SYNC), LONG_TAILED, seed=1))


def test_tokens_that_limit_a_batch_limit_what_is_handed_over() -> None:
    settings = replace(streamed(SYNC), queue=replace(streamed(SYNC).queue, batch_tokens=1500, bound=1))
    run = simulate(settings, LONG_TAILED, seed=1)
    assert last(run).outcome == "steps"
    assert all_commands(run.entries, TrainPart)
    assert_sound(run, 1)
