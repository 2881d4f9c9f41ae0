"""Whose fault a score is that is not there, how long it may wait, and what rewards of a group need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.commands import Score, Signal
from headway.core.events import ScoreFailed
from headway.core.notes import AttemptFailed, RolloutSettled
from tests.unit.test_queue_liveness import SETTINGS, Hand


@pytest.mark.parametrize(
    ("cause", "fate"),
    [
        ("judge", "failed_infrastructure"),
        ("sandbox", "failed_infrastructure"),
        ("timeout", "failed_reward"),
        ("exception", "failed_reward"),
    ],
)
def test_a_judge_that_fails_is_infrastructure_and_is_asked_again_once(cause: str, fate: str) -> None:
    hand = Hand(SETTINGS)
    for tries in (1, 2):
        command = hand.until(Score)
        assert isinstance(command, Score)
        assert command.tries == tries
        hand.outside.open.pop(("score", command.rollout, command.attempt), None)
        hand.feed(ScoreFailed(command.rollout, command.attempt, tries, cause, "away"))
        hand.commands.remove(command)
    told = [note for note in hand.notes if isinstance(note, AttemptFailed)]
    assert [(note.owner, note.retried) for note in told] == [
        (fate.removeprefix("failed_"), True),
        (fate.removeprefix("failed_"), False),
    ]
    while not any(
        isinstance(note, RolloutSettled) and note.rollout == told[0].rollout for note in hand.notes
    ):
        hand.usual()
    fates = [n.fate for n in hand.notes if isinstance(n, RolloutSettled) and n.rollout == told[0].rollout]
    assert fates == [fate]


def test_a_score_may_wait_for_a_rate_beside_its_own_time() -> None:
    for wait_s in (0.0, 100.0):
        hand = Hand(replace(SETTINGS, score_timeout_s=10.0, score_wait_s=wait_s))
        command = hand.until(Score)
        assert isinstance(command, Score)
        due = hand.state.deadlines[f"score:{command.rollout}"]
        assert due == hand.now + 10.0 + wait_s + 2 * SETTINGS.deadlines.sandbox_s


def test_where_a_group_is_rewarded_as_a_whole_its_payloads_are_named_and_it_may_take_longer() -> None:
    plain = Hand(SETTINGS).until(Signal)
    assert isinstance(plain, Signal)
    assert (plain.payloads, plain.task_id) == ((), "")
    hand = Hand(replace(SETTINGS, group_reward_s=50.0))
    signal = hand.until(Signal)
    assert isinstance(signal, Signal)
    assert len(signal.payloads) == len(signal.rewards) == 2
    assert all(signal.payloads)
    assert "train/0" in signal.task_id
    due = hand.state.deadlines[f"signal:{signal.group}"]
    assert due == hand.now + SETTINGS.deadlines.signal_s + 50.0
