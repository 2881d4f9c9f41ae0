"""Parking and resuming: budgets, seams, versions and times right to the token, wherever a rollout stands."""

import asyncio

import pytest
from tokenizers import Tokenizer

from headway.core.events import (
    RolloutEnded,
    RolloutFailed,
    RolloutParked,
    RolloutResumed,
    SandboxReady,
    Scored,
    ToolEnded,
    TurnEnded,
    VerdictGiven,
)
from headway.core.protocols import Outcome
from headway.core.records import Message, Reward
from headway.environments.generation import GenerationLimits
from headway.environments.watch import repeated_share
from tests.unit.host_stage import opened
from tests.unit.rollout_parts import ScriptedEngine

HI = [Message("user", "hi")]
LIMITS = GenerationLimits(8, 256)


async def hello(chat, sandbox):
    reply = await chat.say(HI)
    return Outcome({"text": reply.text, "finish": reply.finish, "tokens": reply.num_tokens})


async def twice(chat, sandbox):
    texts = [(await chat.say(HI)).text for _ in range(2)]
    return Outcome({"texts": texts})


async def fine(outcome, sandbox):
    return Reward(1.0)


@pytest.fixture(scope="module")
def encode(model_dir):
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture
def engine(renderer, encode):
    """An engine whose answer to turn t is `answers[t]`, text to be encoded or ids."""
    engine = ScriptedEngine(decode=renderer.decode)
    engine.answers = [list(range(1, 40))] * 4

    def script(request):
        answer = engine.answers[int(request.request_id.split(".")[2])]
        return encode(answer) if isinstance(answer, str) else answer

    engine._script = script
    return engine


@pytest.fixture
def stage(tmp_path, engine, renderer):
    engine.other = ScriptedEngine(engine._script, decode=renderer.decode)

    def on(rollout=hello, score=fine, limits=LIMITS, **settings):
        engines = {"replica-0": engine, "replica-1": engine.other}
        return opened(tmp_path, engines, renderer, rollout, score, limits, **settings)

    return on


def sampled(sample):
    pairs = zip(sample.token_ids, sample.trainable, strict=True)
    return [token for token, trained in pairs if trained]


def check_sample(sample):
    assert len(sample.token_ids) == len(sample.trainable) == len(sample.logprobs)
    assert sum(span.num_tokens for span in sample.spans) == sum(sample.trainable)
    assert all(
        logprob == 0
        for logprob, trained in zip(sample.logprobs, sample.trainable, strict=True)
        if not trained
    )


async def park_at(s, engine, name, num_tokens):
    """Park when a request has sampled so many tokens."""
    engine.pause_at[name] = num_tokens
    await engine.until_paused(name)
    s.park()
    parked = await s.until(RolloutParked)
    del engine.pause_at[name]
    return parked


async def test_an_answer_of_8_parked_after_5_asks_for_3_more(stage, engine):
    async with stage() as s:
        s.start()
        parked = await park_at(s, engine, "r1.1.0", 5)
        assert engine.ended_sessions == ["r1.1"]
        assert engine.stats().num_running == 0
        await engine.apply(0, 1, "m", "keep")
        await asyncio.sleep(0.05)
        assert len(engine.requests) == 1
        s.resume()
        ended = await s.until(RolloutEnded)
    first, second = engine.requests
    assert s.kinds() == ["RolloutParked", "RolloutResumed", "TurnEnded", "RolloutEnded"]
    assert (first.sampling.max_tokens, second.sampling.max_tokens) == (8, 3)
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert list(second.prompt_ids[len(first.prompt_ids) :]) == [1, 2, 3, 4, 5]
    assert (first.num_answer_tokens, second.num_answer_tokens) == (0, 5)
    assert first.request_id != second.request_id
    assert first.session == second.session
    assert (parked.spans, parked.num_unfinished_tokens, parked.cause) == (((0, 0, 5),), 5, "asked")
    assert parked.payload == ""  # the environment restarts
    turn = await s.until(TurnEnded)
    assert turn.spans == ended.spans == ((0, 0, 5), (0, 1, 3))
    assert (turn.turn, turn.finish, turn.num_prompt_tokens) == (0, "length", len(first.prompt_ids))
    assert ended.num_turns == 1
    payload = s.payload(ended.payload)
    assert payload.outcome["tokens"] == 8
    (sample,) = payload.samples
    check_sample(sample)
    assert sampled(sample) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sample.spans == list(ended.spans)


async def test_times_of_the_parts_add_up_and_standing_still_is_apart(stage, engine):
    async with stage() as s:
        s.start()
        await park_at(s, engine, "r1.1.0", 5)
        await asyncio.sleep(0.2)
        s.resume()
        resumed = await s.until(RolloutResumed)
        turn = await s.until(TurnEnded)
    assert 0.2 <= resumed.parked_s < 10
    assert turn.waiting_s + turn.prefill_s + turn.decode_s < 0.2 + resumed.parked_s
    assert turn.prefill_s == pytest.approx(2e-9)  # 1e-9 a request, says the scripted engine
    assert resumed.num_recomputed_tokens == len(engine.requests[0].prompt_ids) + 5


async def test_a_stop_string_that_spans_the_seam_is_found(stage, engine, encode):
    engine.answers = ["ab\n```\nab and more"]
    whole = encode("ab\n```\n")
    for cut in range(1, len(whole)):
        async with stage(limits=GenerationLimits(64, 256), name=f"w{cut}") as s:
            s.start("r1", cut)
            engine.pause_at = {f"r1.{cut}.0": cut}
            await engine.until_paused(f"r1.{cut}.0")
            s.park("r1", cut)
            await s.until(RolloutParked)
            s.resume("r1", cut)
            ended = await s.until(RolloutEnded)
            (sample,) = s.payload(ended.payload).samples
            assert sampled(sample) == whole
            assert s.payload(ended.payload).outcome["finish"] == "stop"


async def test_a_stop_id_ends_the_second_part(stage, engine, renderer, encode):
    engine.answers = ["hello<|im_end|>more"]
    async with stage() as s:
        s.start()
        await park_at(s, engine, "r1.1.0", 3)
        s.resume()
        ended = await s.until(RolloutEnded)
    (sample,) = s.payload(ended.payload).samples
    assert sampled(sample) == encode("hello<|im_end|>")
    assert engine.requests[1].sampling.stop_ids == renderer.stop_ids
    assert engine.requests[1].sampling.stop_strings == engine.requests[0].sampling.stop_strings


async def test_it_may_be_parked_many_times(stage, engine):
    async with stage() as s:
        s.start()
        for part in range(4):
            name = "r1.1.0" + (f".p{part}" if part else "")
            engine.pause_at[name] = 2 if part < 3 else 1
            await engine.until_paused(name)
            s.park()
            await s.until(RolloutParked, part + 1)
            await engine.apply(0, part + 1, "m", "keep")
            s.resume()
        ended = await s.until(RolloutEnded)
    assert [request.sampling.max_tokens for request in engine.requests] == [8, 6, 4, 2, 1]
    assert ended.spans == ((0, 0, 2), (0, 1, 2), (0, 2, 2), (0, 3, 1), (0, 4, 1))
    assert ended.num_tokens == 8


async def test_parked_before_its_first_say_it_says_nothing_until_it_is_resumed(stage, engine):
    go = asyncio.Event()

    async def late(chat, sandbox):
        await go.wait()
        return await hello(chat, sandbox)

    async with stage(late) as s:
        s.start()
        await asyncio.sleep(0.01)
        s.park()
        parked = await s.until(RolloutParked)
        assert (parked.spans, parked.num_unfinished_tokens) == ((), 0)
        go.set()
        await asyncio.sleep(0.05)
        assert engine.requests == []
        s.resume(replica="replica-1")
        resumed = await s.until(RolloutResumed)
        await s.until(RolloutEnded)
    assert (resumed.replica, resumed.num_recomputed_tokens) == ("replica-1", 0)
    assert (len(engine.requests), len(engine.other.requests)) == (0, 1)


async def test_a_tool_goes_on_while_parked_and_the_next_answer_waits(stage, engine):
    engine.answers = ["ok<|im_end|>"] * 2

    async def tool(chat, sandbox):
        await chat.say(HI)
        result = await sandbox.exec(["sh", "-c", "sleep 0.3; echo done"])
        reply = await chat.say([Message("user", result.stdout)])
        return Outcome({"text": reply.text, "printed": result.stdout})

    async with stage(tool, limits=GenerationLimits(8, 512)) as s:
        s.start()
        await s.until(SandboxReady)
        s.park()
        parked = await s.until(RolloutParked)
        assert "ToolEnded" not in s.kinds()
        assert sum(span.num_tokens for span in parked.spans) == 3
        await s.until(ToolEnded)
        await asyncio.sleep(0.1)
        assert len(engine.requests) == 1
        s.resume()
        resumed = await s.until(RolloutResumed)
        ended = await s.until(RolloutEnded)
    assert 0.05 < resumed.parked_s < 0.25  # the tool's time is its own
    assert s.payload(ended.payload).outcome["printed"] == "done\n"


async def test_a_rollout_that_ends_while_parked_is_settled_by_its_end(stage, engine):
    go = asyncio.Event()

    async def leaves(chat, sandbox):
        outcome = await hello(chat, sandbox)
        await go.wait()
        return outcome

    async with stage(leaves) as s:
        s.start()
        await s.until(TurnEnded)
        s.park()
        await s.until(RolloutParked)
        go.set()
        await s.until(RolloutEnded)
        s.park()
        s.resume()
        await asyncio.sleep(0.02)
    assert s.kinds() == ["TurnEnded", "RolloutParked", "RolloutEnded"]


async def test_an_answer_that_ends_before_its_abort_is_whole_and_the_next_one_waits(
    stage, engine, monkeypatch
):
    async def deaf(request_ids):
        engine.pause_at.clear()

    engine.answers = ["ok<|im_end|>"] * 2
    monkeypatch.setattr(engine, "abort", deaf)
    async with stage(twice) as s:
        s.start()
        engine.pause_at["r1.1.0"] = 2
        await engine.until_paused("r1.1.0")
        s.park()
        await s.until(RolloutParked)
        assert s.kinds() == ["TurnEnded", "RolloutParked"]
        await asyncio.sleep(0.02)
        assert len(engine.requests) == 1
        s.resume()
        ended = await s.until(RolloutEnded)
    assert s.payload(ended.payload).outcome["texts"] == ["ok", "ok"]


async def test_parking_a_score_or_a_stranger_does_nothing(stage):
    go = asyncio.Event()

    async def slow(outcome, sandbox):
        await go.wait()
        return Reward(1.0)

    async with stage(score=slow) as s:
        scoring = asyncio.ensure_future(s.run_and_score())
        await s.until(RolloutEnded)
        await asyncio.sleep(0.01)
        for name, attempt in (("r1", 1), ("r1", 2), ("r9", 1)):
            s.park(name, attempt)
            s.resume(name, attempt)
        go.set()
        assert isinstance(await scoring, Scored)
    assert s.kinds() == ["TurnEnded", "RolloutEnded", "Scored"]


async def test_repeated_parks_and_resumes_change_nothing(stage, engine):
    async with stage() as s:
        s.start()
        s.resume()  # nothing is parked
        engine.pause_at["r1.1.0"] = 5
        await engine.until_paused("r1.1.0")
        s.park()
        s.park()
        await s.until(RolloutParked)
        s.park()
        engine.pause_at = {"r1.1.0.p1": 1}
        s.resume()
        s.resume()
        await engine.until_paused("r1.1.0.p1")
        s.resume()
        engine.pause_at.clear()
        ended = await s.until(RolloutEnded)
    assert s.kinds() == ["RolloutParked", "RolloutResumed", "TurnEnded", "RolloutEnded"]
    assert ended.num_tokens == 8


async def test_a_resume_that_comes_before_the_parking_is_over_is_honoured(stage, engine):
    async with stage() as s:
        s.start()
        engine.pause_at["r1.1.0"] = 5
        await engine.until_paused("r1.1.0")
        s.park()
        await asyncio.sleep(0)
        s.resume(replica="replica-1")
        await s.until(RolloutEnded)
    assert s.kinds() == ["RolloutParked", "RolloutResumed", "TurnEnded", "RolloutEnded"]
    assert len(engine.other.requests) == 1


async def test_a_cancel_ends_a_parked_rollout_at_once(stage, engine):
    async def tool(chat, sandbox):
        await sandbox.exec(["true"])
        return await hello(chat, sandbox)

    async with stage(tool) as s:
        s.start()
        await park_at(s, engine, "r1.1.0", 5)
        s.cancel()
        failed = await s.until(RolloutFailed)
        assert (failed.owner, failed.cause) == ("scheduler", "cancelled")
        s.resume()
        await asyncio.sleep(0.02)
    assert s.kinds()[-3:] == ["RolloutParked", "SandboxReleased", "RolloutFailed"]
    assert len(engine.requests) == 1


async def test_an_environments_own_timeout_leaves_the_park_answered(stage, engine):
    async def impatient(chat, sandbox):
        try:
            async with asyncio.timeout(0.1):
                await chat.say(HI)
        except TimeoutError:
            pass
        return await hello(chat, sandbox)

    async with stage(impatient) as s:
        s.start()
        await park_at(s, engine, "r1.1.0", 5)
        await asyncio.sleep(0.15)
        s.resume()
        ended = await s.until(RolloutEnded)
    assert ended.num_tokens == 8
    assert engine.requests[-1].sampling.max_tokens == 8


async def test_an_engine_that_dies_costs_no_token_that_was_handed_on(stage, engine):
    engine.die_at["r1.1.0"] = 5
    async with stage() as s:
        s.start()
        parked = await s.until(RolloutParked)
        assert (parked.cause, parked.spans, parked.num_unfinished_tokens) == ("engine_lost", ((0, 0, 5),), 5)
        s.park()  # crossed it
        s.resume(replica="replica-1")
        ended = await s.until(RolloutEnded)
        turn = await s.until(TurnEnded)
    (request,) = engine.other.requests
    assert (request.sampling.max_tokens, request.num_answer_tokens) == (3, 5)
    assert turn.num_prompt_tokens == len(engine.requests[0].prompt_ids)
    assert sampled(s.payload(ended.payload).samples[0]) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert s.kinds() == ["RolloutParked", "RolloutResumed", "TurnEnded", "RolloutEnded"]


async def test_an_engine_that_ends_a_request_unasked_parks_it(stage, engine):
    engine.finish_as["r1.1.0"] = ("aborted", "")
    async with stage() as s:
        s.start()
        assert (await s.until(RolloutParked)).cause == "engine_lost"
        s.resume()
        assert (await s.until(RolloutEnded)).num_tokens == 8


async def test_a_request_that_is_lost_three_times_without_a_token_fails(stage, engine):
    for name in ("r1.1.0", "r1.1.0.p1", "r1.1.0.p2"):
        engine.finish_as[name] = ("lost", "logits that are not finite")
    async with stage() as s:
        s.start()
        for number in (1, 2):
            await s.until(RolloutParked, number)
            s.resume()
        failed = await s.until(RolloutFailed)
    assert (failed.owner, failed.cause) == ("infrastructure", "engine_lost")
    assert "not finite" in failed.message


@pytest.mark.parametrize(("ids", "finish"), [([1, 2, 260], "stop"), ([1, 2, 3, 4, 5, 6, 7, 8], "length")])
async def test_an_answer_that_was_complete_when_its_engine_died_needs_no_other(stage, engine, ids, finish):
    class Dying(ScriptedEngine):
        def _finish(self, request, ids):
            return None

    dying = Dying(lambda request: [*ids, 9, 9])
    dying.die_at["r1.1.0"] = len(ids)
    async with stage() as s:
        s.host._engines["replica-0"] = dying
        s.start()
        ended = await s.until(RolloutEnded)
    assert s.kinds() == ["TurnEnded", "RolloutEnded"]
    assert s.payload(ended.payload).outcome["finish"] == finish
    assert sampled(s.payload(ended.payload).samples[0]) == ids


async def test_an_unknown_replica_at_a_resume_fails_the_rollout(stage, engine):
    async with stage() as s:
        s.start()
        await park_at(s, engine, "r1.1.0", 5)
        s.resume(replica="replica-9")
        failed = await s.until(RolloutFailed)
    assert (failed.owner, failed.cause) == ("infrastructure", "engine_lost")
    assert "replica-9" in failed.message


async def test_without_parking_an_aborted_attempt_leaves_no_tokens(stage, engine):
    # Behaviour check 19.
    async with stage() as s:
        s.start()
        engine.pause_at["r1.1.0"] = 5
        await engine.until_paused("r1.1.0")
        s.cancel()
        await s.until(RolloutFailed)
        await engine.apply(0, 1, "m", "keep")
        s.start("r1", 2)
        ended = await s.until(RolloutEnded)
    first, second = engine.requests
    assert second.prompt_ids == first.prompt_ids
    assert (second.num_answer_tokens, second.sampling.max_tokens) == (0, 8)
    assert ended.spans == ((0, 1, 8),)


async def test_many_rollouts_parked_and_resumed_at_once(stage, engine):
    async with stage(twice) as s:
        for number in range(30):
            s.start(f"r{number}")
        for _ in range(3):
            await asyncio.sleep(0.001)
            for number in range(30):
                s.park(f"r{number}")
            await asyncio.sleep(0.01)
            for number in range(30):
                s.resume(f"r{number}")
        for number in range(30):
            s.resume(f"r{number}")
        await s.until(RolloutEnded, 30)
        for event in s.events:
            if isinstance(event, RolloutEnded):
                (sample,) = s.payload(event.payload).samples
                check_sample(sample)
                assert sampled(sample) == [*range(1, 9), *range(1, 9)]
    assert s.kinds().count("RolloutParked") == s.kinds().count("RolloutResumed")


# --- what is watched


async def test_an_environments_verdict_is_told(stage):
    async def doubts(chat, sandbox):
        chat.report(-1, "off the track\nfor good")
        return await hello(chat, sandbox)

    async with stage(doubts) as s:
        s.start()
        await s.until(RolloutEnded)
    assert s.events[0] == VerdictGiven("r1", 1, "environment", -1.0, "off the track")


async def test_a_verdict_that_is_no_number_is_the_environments_fault(stage):
    async def doubts(chat, sandbox):
        chat.report(float("nan"))

    async with stage(doubts) as s:
        s.start()
        assert "finite" in (await s.until(RolloutFailed)).message


async def test_length_is_told_once_when_it_is_reached_within_an_answer(stage, engine):
    async with stage(twice, watch_tokens=11) as s:
        s.start()
        await s.until(RolloutEnded)
    (verdict,) = [event for event in s.events if isinstance(event, VerdictGiven)]
    assert (verdict.source, verdict.value) == ("length", 11.0)
    assert s.kinds() == ["TurnEnded", "VerdictGiven", "TurnEnded", "RolloutEnded"]


async def test_repetition_is_told_once_and_not_of_an_evaluation(stage, engine):
    engine.answers = [[5] * 40]
    limits = GenerationLimits(40, 256)
    async with stage(limits=limits, watch_repetition=0.5, repetition_window=16) as s:
        s.start()
        await s.until(RolloutEnded)
    (verdict,) = [event for event in s.events if isinstance(event, VerdictGiven)]
    assert (verdict.source, verdict.value) == ("repetition", pytest.approx(12 / 13))


def test_the_share_of_repetition():
    assert repeated_share([1, 2, 3]) == 0.0
    assert repeated_share(range(50)) == 0.0
    assert repeated_share([7] * 11) == pytest.approx(7 / 8)
    assert repeated_share([1, 2, 3, 4, 1, 2, 3, 4]) == pytest.approx(1 / 5)


async def test_a_value_hook_is_asked_at_each_turns_end(stage, tmp_path):
    hook = tmp_path / "hook.py"
    hook.write_text(
        "def predict(record):\n"
        "    assert record.messages[-1].role == 'assistant' and record.task.id == 'train/0'\n"
        "    return record.num_tokens / 100\n"
    )
    async with stage(twice, value_hook=f"{hook}:predict") as s:
        s.start()
        await s.until(RolloutEnded)
    values = [event.value for event in s.events if isinstance(event, VerdictGiven)]
    assert values == [0.08, 0.16]
