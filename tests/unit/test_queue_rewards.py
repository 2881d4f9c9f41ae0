"""Whose fault a score is that is not there, how long it may wait, and what rewards of a group need."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.commands import Finish, Score, Signal, StartRollout
from headway.core.events import GroupSignal, RunResumed, ScoreFailed, StopAsked
from headway.core.notes import AttemptFailed, GroupSettled, RolloutSettled, Warned
from headway.queue.settings import StopSettings
from tests.unit.test_queue_liveness import SETTINGS, Hand


@pytest.mark.parametrize(
    ("cause", "fate"),
    [
        ("judge", "failed_infrastructure"),
        ("sandbox", "failed_infrastructure"),
        ("worker_lost", "failed_infrastructure"),
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


AWAY = "the judge at http://127.0.0.1:9/v1 gave no answer after 4 tries: ConnectError"
PATIENT = replace(
    SETTINGS,
    queue=replace(SETTINGS.queue, bound=2, depth=2, max_failed_groups=2),
    judge_outage_s=100.0,
)


class Judged(Hand):
    """Its judge answers nobody while it is away."""

    is_away = False

    def usual(self, unless=lambda key: False) -> None:
        for key, command in list(self.outside.open.items()):
            if unless(key):
                continue
            if isinstance(command, Score) and not self.is_away:
                self.answer_of(key, "judged")
                return
            if not self.is_away:
                continue
            if isinstance(command, Score):
                of = (command.rollout, command.attempt, command.tries)
                del self.outside.open[key]
                self.feed(ScoreFailed(*of, "judge_away", AWAY))
                return
            if isinstance(command, Signal) and command.payloads:
                del self.outside.open[key]
                self.feed(GroupSignal(command.group, (), False, AWAY, failed="judge_away"))
                return
        super().usual(unless)

    def answer_of(self, key: tuple[object, ...], name: str) -> None:
        self.feed(dict(self.outside.answers(key))[name]())

    def find_score(self, rollout: str, tries: int) -> tuple[object, ...] | None:
        key = ("score", rollout, 0, tries)
        return key if key in self.outside.open else None

    def until_s(self, at_s: float) -> None:
        while self.now < at_s and self.finish is None:
            self.usual()

    def to_the_end(self) -> Finish:
        while self.finish is None:
            self.usual()
        return self.finish

    @property
    def fates(self) -> list[str]:
        return [note.fate for note in self.notes if isinstance(note, RolloutSettled)]

    @property
    def warnings(self) -> list[Warned]:
        return [note for note in self.notes if isinstance(note, Warned)]


@pytest.mark.parametrize("of_group", [False, True])
def test_what_a_judge_is_needed_for_waits_until_it_answers_again_and_nothing_is_lost(of_group: bool) -> None:
    hand = Judged(replace(PATIENT, group_reward_s=20.0 if of_group else 0.0))
    hand.until(Signal)
    hand.is_away = True
    hand.until_s(40.0)
    num_started = sum(isinstance(command, StartRollout) for command in hand.commands)
    hand.until_s(60.0)
    assert hand.finish is None
    assert num_started == sum(isinstance(command, StartRollout) for command in hand.commands)
    asked = [event for event in hand.told if isinstance(event, (GroupSignal, ScoreFailed))]
    waiting = len(hand.state.outage.waiting)
    assert waiting > 1
    assert len(asked) <= waiting + 8  # every one once, then probes, after 1, 2, 4, ... s
    hand.is_away = False
    assert hand.to_the_end().outcome == "steps"
    assert set(hand.fates) <= {"trained", "stopped", "unused"}
    away, back = hand.warnings
    assert away.code == "judge_away"
    assert away.text.startswith(AWAY)
    assert back.code == "judge_back"
    assert not hand.state.outage.num_in_row


def test_a_judge_that_stays_away_ends_the_run_by_its_name_and_a_resume_scores_what_is_there() -> None:
    hand = Judged(PATIENT)
    hand.is_away = True
    finish = hand.to_the_end()
    assert (finish.outcome, finish.failed, hand.now) == ("failed", True, 100.0)
    assert finish.message == (
        f"{AWAY}; it has answered nobody for 100 s (reward.max_outage_s), and the scores of 6 finished "
        "rollouts are wanted of it"
    )
    assert hand.fates == ["carried"] * 6
    told = [note for note in hand.notes if isinstance(note, AttemptFailed)]
    assert {(note.owner, note.cause, note.retried) for note in told} == {
        ("infrastructure", "judge_away", True)
    }
    num_started = sum(isinstance(command, StartRollout) for command in hand.commands)
    hand.is_away = False
    hand.life(1, RunResumed(1, 0, 100.0))
    hand.until(Signal)
    assert num_started == sum(isinstance(command, StartRollout) for command in hand.commands)
    assert hand.to_the_end().outcome == "steps"


def test_a_question_that_no_judge_answers_costs_its_own_group_only() -> None:
    hand = Judged(replace(PATIENT, queue=replace(PATIENT.queue, depth=0)))
    hand.is_away = True
    hand.until_s(100.0)
    hand.is_away = False
    assert hand.fates == ["failed_infrastructure"] * 2
    assert AWAY in hand.state.last_failure
    assert hand.to_the_end().outcome == "steps"


def test_a_failure_counts_where_the_judge_answered_somebody_meanwhile() -> None:
    hand, poison, tries = Judged(PATIENT), "t000000.0", 0
    while (at := hand.find_score(poison, tries + 1)) is None:
        hand.usual()
    for tries in (1, 2):
        answered = hand.state.outage.num_answers
        while hand.state.outage.num_answers == answered:
            hand.usual(unless=lambda key: key[:2] == ("score", poison))
        assert at is not None
        hand.outside.open.pop(at)
        hand.feed(ScoreFailed(poison, 0, tries, "judge_away", AWAY))
        at = hand.find_score(poison, tries + 1)
    told = [note.retried for note in hand.notes if isinstance(note, AttemptFailed)]
    assert told == [True, False]
    assert not hand.state.outage.waiting
    assert not hand.warnings


@pytest.mark.parametrize("after_s", [None, 30.0])
def test_a_stop_does_not_wait_for_a_judge(after_s: float | None) -> None:
    settings = replace(PATIENT, stop=StopSettings(steps=0, wall_s=after_s)) if after_s else PATIENT
    hand = Judged(settings)
    hand.is_away = True
    hand.until_s(20.0)
    if after_s is None:
        hand.feed(StopAsked("enough"))
    finish = hand.to_the_end()
    assert finish.outcome == ("wall" if after_s else "interrupted")
    assert hand.now <= 31.0  # the pause that was under way
    assert set(hand.fates) == ({"stopped"} if after_s else {"carried"})


def test_a_judge_that_refuses_the_pairs_of_a_group_is_asked_once_more_and_the_group_fails() -> None:
    hand = Hand(replace(PATIENT, group_reward_s=20.0))
    for number in range(2):
        hand.until(Signal)
        for _ in range(2):
            command = next(c for c in hand.outside.open.values() if isinstance(c, Signal))
            del hand.outside.open["signal", command.group]
            hand.feed(GroupSignal(command.group, (), False, "HTTP 400", failed="judge"))
        settled = [note for note in hand.notes if isinstance(note, GroupSettled)]
        assert [note.fate for note in settled] == ["voided"] * (number + 1)
        hand.commands = [c for c in hand.commands if not isinstance(c, Signal)]
    fates = [note.fate for note in hand.notes if isinstance(note, RolloutSettled)]
    assert fates[:4] == ["failed_infrastructure"] * 4
    while hand.finish is None:
        hand.usual()
    assert hand.finish.failed
    assert "2 groups in a row left no usable rollouts" in hand.finish.message
    assert "HTTP 400" in hand.finish.message
