"""A rubric: weights, names, reasons, limits; what fails is named and never 0."""

import asyncio
import contextlib
import threading

import pytest

from headway.core import off_loop
from headway.core.errors import EnvironmentSetupError, RewardFault, SandboxError
from headway.core.records import Reward
from headway.rewards import calls
from headway.rewards.calls import call
from headway.rewards.check import MalformedRewardFault
from headway.rewards.faults import JudgeError, RewardRaisedFault, RewardTimeoutFault
from headway.rewards.rubric import Part, Rubric
from headway.rewards.turns import EachTurn, with_outcome
from headway.rewards.waiting import Waiting, busy, outside
from tests.unit.reward_parts import case


def right(answer, payload):
    return answer == payload["value"], "right" if answer == payload["value"] else "wrong"


async def brief(answer):
    return 1 / len(answer)


def num_words(transcript):
    return Reward(3.0, ("three",), {"longest": 4.0})


async def test_the_score_is_the_weighted_sum_and_every_number_is_a_metric():
    rubric = Rubric(Part(right, 0.8), Part(brief, 0.2, name="short"), Part(num_words, 0.0))
    made = case("4567", payload={"value": "4567"})
    reward = await rubric.score(made.task, made.outcome, made.sandbox)
    assert reward.score == pytest.approx(0.8 + 0.2 * 0.25)
    assert reward.metrics == {"right": 1.0, "short": 0.25, "num_words": 3.0, "num_words_longest": 4.0}
    assert reward.reasons == ("right: right", "short: 0.25", "num_words: three")


async def test_functions_run_at_once():
    first, second = asyncio.Event(), asyncio.Event()

    async def one():
        first.set()
        await second.wait()
        return 1.0

    async def two():
        second.set()
        await first.wait()
        return 1.0

    assert (await Rubric(one, two).of(case("4"))).score == 2.0


async def test_plain_functions_block_neither_the_event_loop_nor_one_another():
    barrier = threading.Barrier(3, timeout=20)

    def one():
        barrier.wait()
        return 1

    def two():
        barrier.wait()
        return True

    async def all_three():
        # The loop meets both threads: were one of them in it, nobody would get here.
        await asyncio.to_thread(barrier.wait)
        return 0.5

    assert (await Rubric(one, two, all_three).of(case("4"))).score == 2.5


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (lambda answer: 1 / 0, RewardRaisedFault, "reward bad raised ZeroDivisionError: division by zero at"),
        (lambda answer: float("nan"), RewardFault, "finite number"),
        (lambda answer: "1", RewardFault, "reward bad must return a number"),
        (lambda answer: None, RewardFault, "reward bad must return a number"),
        (lambda answer: exit(3), RewardRaisedFault, "reward bad raised SystemExit"),
    ],
)
async def test_what_raises_or_returns_no_number_is_a_fault_that_names_it_and_never_0(function, kind, words):
    ended = asyncio.Event()

    async def other():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(kind, match=words):
        await Rubric(Part(other), Part(function, name="bad")).of(case("4"))
    assert ended.is_set()


async def exits():
    raise SystemExit(3)


async def is_interrupted():
    raise KeyboardInterrupt


async def cancels_itself():
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (exits, "^reward bad raised SystemExit: 3$"),
        (is_interrupted, "^reward bad raised KeyboardInterrupt:?$"),
        (cancels_itself, "^reward bad cancelled itself"),
        (lambda: exit(3), "^reward bad raised SystemExit: 3$"),
    ],
)
async def test_what_would_end_the_process_ends_one_score(function, words):
    with pytest.raises(RewardRaisedFault, match=words):
        await Rubric(Part(function, name="bad")).of(case("4"))
    with pytest.raises(RewardRaisedFault, match=words.replace("bad", "bad of turn 0")):
        await EachTurn(lambda step: function(), name="bad")(case("4"))


async def test_a_function_that_swallows_its_cancellation_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(calls, "_GRACE_S", 0.01)
    enough = asyncio.Event()

    async def deaf():
        while not enough.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await enough.wait()

    with pytest.raises(RewardTimeoutFault, match="does not end when it is cancelled, and goes on"):
        await call("deaf", deaf, 0.01)
    enough.set()
    await asyncio.wait(calls._left)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"reasons": "because"}, "must be a tuple of strings, not one string"),
        ({"reasons": None}, "the reasons of a reward must be a tuple"),
        ({"metrics": None}, "the metrics of a reward must be a dict"),
        ({"turns": 1.0}, "the turns of a reward must be a tuple"),
    ],
)
async def test_a_reward_that_is_built_otherwise_is_refused_with_the_remedy(parts, words):
    with pytest.raises(MalformedRewardFault, match=words):
        await Rubric(Part(lambda: Reward(1.0, **parts), name="one")).of(case("4"))


async def test_parts_that_reward_other_numbers_of_turns_are_named():
    one, two = (
        Part(lambda: Reward(1.0, turns=(1.0,)), name="one"),
        Part(lambda: Reward(1.0, turns=(1.0, 2.0))),
    )
    with pytest.raises(MalformedRewardFault, match="reward as many turns each; <lambda> rewards 2"):
        await Rubric(one, two).of(case("4"))


async def test_failures_of_the_infrastructure_stay_what_they_are():
    for error in (SandboxError("gone"), JudgeError("away")):

        async def broken(error=error):
            raise error

        with pytest.raises(type(error)):
            await Rubric(broken).of(case("4"))


async def test_an_async_function_past_its_limit_is_cancelled_and_named():
    cancelled = asyncio.Event()

    async def slow():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(RewardTimeoutFault, match=r"reward slow must end within 0\.01 s$"):
        await Rubric(Part(slow, timeout_s=0.01)).of(case("4"))
    assert cancelled.is_set()


async def test_a_plain_function_past_its_limit_is_left_to_itself_and_counted():
    goes_on = threading.Event()
    try:
        with pytest.raises(RewardTimeoutFault, match="its thread cannot be ended and goes on"):
            await Rubric(Part(lambda: goes_on.wait(60), name="stuck", timeout_s=0.01)).of(case("4"))
        assert off_loop.num_left() == 1
    finally:
        goes_on.set()
    while off_loop.num_left():  # noqa: ASYNC110 - the thread tells nobody
        await asyncio.sleep(0.01)


async def test_no_further_thread_is_started_where_too_many_are_left(monkeypatch):
    monkeypatch.setattr(off_loop, "MAX_LEFT", 0)
    with pytest.raises(RewardTimeoutFault, match="reward one cannot be called: 0 calls are overdue"):
        await call("one", lambda: 1, 5.0)


async def test_waiting_outside_does_not_count_and_counts_once():
    waiting = Waiting()

    async def waits():
        with outside():
            await asyncio.sleep(0.05)
        return 1.0

    with waiting.here():
        assert (
            await Rubric(Part(waits, name="a", timeout_s=0.02), Part(waits, name="b", timeout_s=0.02)).of(
                case("4")
            )
        ).score == 2.0
    assert waiting.outside_s >= 0.05
    assert not waiting.is_waiting


async def test_a_limit_that_passes_while_a_service_is_asked_is_the_service_s():
    async def asks():
        with busy("the judge at http://x"):
            await asyncio.Event().wait()

    with pytest.raises(JudgeError, match="it waited for the judge at http://x"):
        await call("asks", asks, 0.01)


def test_a_rubric_is_checked_when_it_is_made():
    with pytest.raises(EnvironmentSetupError, match="each with a name of its own"):
        Rubric(right, right)
    with pytest.raises(EnvironmentSetupError, match="must have parts"):
        Rubric()
    with pytest.raises(EnvironmentSetupError, match="a parameter that Headway knows nothing for"):
        Rubric(lambda answr: 1)
    with pytest.raises(EnvironmentSetupError, match="must be a finite"):
        Rubric(Part(right, float("inf")))
    with pytest.raises(EnvironmentSetupError, match="the weight of right must be a finite number"):
        Rubric(Part(right, "1"))
    with pytest.raises(EnvironmentSetupError, match="the timeout_s of right must be a finite number"):
        Rubric(Part(right, timeout_s=float("nan")))


async def test_each_turn_has_its_own_reward():
    def on_time(step):
        return 1.0 if step.index == 0 else (0.5, f"{len(step.before)} messages before")

    reward = await Rubric(Part(EachTurn(on_time), 2.0), Part(right)).of(
        case("a", "b", payload={"value": "b"})
    )
    assert reward.turns == (2.0, 1.0)
    assert reward.score == 2.0 * 0.75 + 1.0
    assert reward.reasons == ("on_time: turn 1: 3 messages before", "right: right")
    assert with_outcome(reward, 1.0).turns == (2.0, 2.0)
    last = await EachTurn(on_time, "last")(case("a", "b"))
    assert (last.score, last.turns) == (0.5, (1.0, 0.5))


async def test_a_turn_that_fails_is_named():
    async def bad(step):
        return 1 / step.index

    with pytest.raises(RewardRaisedFault, match="reward bad of turn 0 raised ZeroDivisionError"):
        await EachTurn(bad)(case("a", "b"))
