"""The rollout host: events in the right order, whose fault a failure is, and nothing left behind."""

# ruff: noqa: ASYNC110 - the abandoned coroutine tells nobody

import asyncio
import math
from array import array
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from headway.core.commands import Cancel, GrantSandbox, ReleaseSandbox, Score
from headway.core.errors import EngineError, EnvironmentFault, SandboxError, SandboxRefusedError
from headway.core.events import (
    RolloutEnded,
    RolloutFailed,
    SandboxLost,
    SandboxReady,
    SandboxRefused,
    SandboxReleased,
    SandboxWanted,
    Scored,
    ScoreFailed,
    ToolEnded,
    TurnEnded,
)  # fmt: skip
from headway.core.payload import read_payload
from headway.core.protocols import Outcome
from headway.core.records import Message, Reward
from headway.environments.generation import GenerationLimits
from headway.sandbox.bubblewrap import BubblewrapSandbox
from tests.unit.host_stage import TASK, opened
from tests.unit.rollout_parts import ScriptedEngine


async def hello(chat, sandbox):
    reply = await chat.say([Message("user", "hi")])
    return Outcome({"text": reply.text})


async def one(outcome, sandbox):
    return Reward(1.0, ("fine",), {"extra": 2})


@pytest.fixture
def engine(model_dir, renderer):
    """An engine whose answer to a request is `answers[turn]`, text to be encoded or ids."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    engine = ScriptedEngine(decode=renderer.decode)
    engine.answers = ["ok<|im_end|>"]

    def script(request):
        answer = engine.answers[int(request.request_id.rpartition(".")[2])]
        return tokenizer.encode(answer, add_special_tokens=False).ids if isinstance(answer, str) else answer

    engine._script = script
    return engine


@pytest.fixture
def stage(tmp_path, engine, renderer):
    def on(rollout=hello, score=one, limits=None, **settings):
        return opened(tmp_path, {"replica-0": engine}, renderer, rollout, score, limits, **settings)

    return on


async def test_a_rollout_is_written_before_it_is_told_and_then_scored(stage, engine, renderer):
    async with stage() as s:
        told = s.host._emit
        s.host._emit = lambda event: (
            isinstance(event, RolloutEnded) and read_payload(s.payload_dir, event.payload),
            told(event),
        )
        scored = await s.run_and_score()
    assert s.kinds() == ["TurnEnded", "RolloutEnded", "Scored"]
    turn, ended, _ = s.events
    (request,) = engine.requests
    assert (request.request_id, request.session, request.group) == ("r1.1.0", "r1.1", "g1")
    assert request.prompt_ids == renderer.first_prompt([Message("user", "hi")])
    assert request.sampling.stop_ids == renderer.stop_ids
    assert request.sampling.stop_strings == ("\n```\n",)
    assert (turn.turn, turn.num_prompt_tokens, turn.finish) == (0, len(request.prompt_ids), "stop")
    assert (ended.num_turns, ended.num_tool_calls, ended.num_tokens, ended.truncated) == (1, 0, 3, False)
    assert ended.num_prompt_tokens == len(request.prompt_ids)
    assert sum(span.num_tokens for span in ended.spans) == 3
    payload = read_payload(s.payload_dir, ended.payload)
    assert payload.outcome == {"text": "ok"}
    assert [entry["role"] for entry in payload.transcript] == ["user", "assistant"]
    assert (scored.reward, scored.reasons, scored.metrics, scored.tries) == (
        1.0,
        ("fine",),
        {"extra": 2.0},
        1,
    )
    assert engine.ended_sessions == ["r1.1"]


async def test_turns_join_into_one_sample_with_the_sampled_ids(stage, engine, renderer):
    # Behaviour check 25, with ids that no encoder would choose, and an answer cut at a stop string.
    tokenizer = Tokenizer.from_str(renderer._tokenizer.to_str())
    odd = [tokenizer.token_to_id(token) for token in ("a", "b", "<|im_end|>")]
    fence = tokenizer.encode("```python\n1\n```\nmore<|im_end|>", add_special_tokens=False).ids
    engine.answers = [odd, fence, "done<|im_end|>"]

    async def three(chat, sandbox):
        texts = [(await chat.say([Message("user", ask)])).text for ask in "xyz"]
        return Outcome({"texts": texts})

    async with stage(three) as s:
        s.start()
        ended = await s.until(RolloutEnded)
    payload = read_payload(s.payload_dir, ended.payload)
    (sample,) = payload.samples
    last = engine.requests[-1]
    sampled = [token for token, mask in zip(sample.token_ids, sample.trainable, strict=True) if mask]
    cut = fence[: len(tokenizer.encode("```python\n1\n```\n", add_special_tokens=False).ids)]
    assert sampled == [*odd, *cut, *tokenizer.encode("done<|im_end|>", add_special_tokens=False).ids]
    assert payload.outcome["texts"] == ["ab", "```python\n1\n```\n", "done"]
    assert sample.token_ids[: len(last.prompt_ids)] == last.prompt_ids
    text = renderer.decode(sample.token_ids, skip_special=False)
    expected = "".join(
        f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
        for ask, answer in zip("xyz", payload.outcome["texts"], strict=True)
    )
    assert text == expected.removesuffix("\n")
    assert all(
        logprob == 0 for logprob, mask in zip(sample.logprobs, sample.trainable, strict=True) if not mask
    )
    assert len({request.sampling.seed for request in engine.requests}) == 3


async def test_an_answer_is_asked_for_no_more_than_there_is_room(stage, engine):
    # Behaviour checks 26 and 27.
    engine.answers = [[5] * 100, [5] * 100, [5] * 100]
    seen = []

    async def talk(chat, sandbox):
        seen.append(await chat.say([Message("user", "hi")], max_tokens=3))
        seen.append(await chat.say([Message("user", "hi")], max_tokens=1000))
        seen.append(await chat.say([Message("user", "hi")]))
        return Outcome({})

    async with stage(talk, limits=GenerationLimits(20, 120)) as s:
        s.start()
        ended = await s.until(RolloutEnded)
    wanted = [request.sampling.max_tokens for request in engine.requests]
    room = 120 - len(engine.requests[2].prompt_ids)
    assert wanted == [3, 20, min(20, room)]
    assert [reply.finish for reply in seen] == ["length"] * 3
    assert seen[2].num_room_tokens == room - wanted[2]
    assert ended.truncated


async def test_a_prompt_longer_than_the_context_names_both_lengths(stage, engine):
    async def long(chat, sandbox):
        await chat.say([Message("user", "x" * 300)])

    async with stage(long, limits=GenerationLimits(20, 100)) as s:
        s.start()
        failed = await s.until(RolloutFailed)
    assert (failed.owner, failed.cause) == ("environment", "exception")
    assert "100 tokens" in failed.message
    assert "prompt of 3" in failed.message
    assert engine.requests == []


async def test_an_engine_that_rejects_is_told_apart(stage, engine):
    engine.finish_as["r1.1.0"] = ("rejected", "for a reason")
    async with stage() as s:
        s.start()
        failed = await s.until(RolloutFailed)
    assert (failed.owner, failed.cause) == ("environment", "exception")
    assert "for a reason" in failed.message
    assert s.kinds() == ["TurnEnded", "RolloutFailed"]


async def test_an_answer_after_a_rejected_one_has_an_index_of_its_own(stage, engine):
    engine.finish_as["r1.1.0"] = ("rejected", "for a reason")

    async def stubborn(chat, sandbox):
        with pytest.raises(EnvironmentFault):
            await chat.say([Message("user", "hi")])
        engine.finish_as.clear()
        reply = await chat.say([Message("user", "hi")])
        await sandbox.exec(["true"])
        return Outcome({"text": reply.text})

    async with stage(stubborn) as s:
        s.start()
        ended = await s.until(RolloutEnded)
        assert [(e.turn, e.finish) for e in s.events if isinstance(e, TurnEnded)] == [
            (0, "rejected"),
            (1, "stop"),
        ]
        assert [(e.turn, e.call) for e in s.events if isinstance(e, ToolEnded)] == [(1, 0)]
        assert ended.num_turns == 1


async def test_an_unknown_replica_is_an_infrastructure_failure(stage):
    async with stage() as s:
        s.start(replica="replica-9")
        assert (await s.until(RolloutFailed)).cause == "engine_lost"


async def raises(chat, sandbox):
    raise KeyError("no such thing")


async def exits(chat, sandbox):
    raise SystemExit(3)


async def cancels_itself(chat, sandbox):
    raise asyncio.CancelledError


async def panics(chat, sandbox):
    raise BaseExceptionGroup("as Rust libraries do", [KeyboardInterrupt()])


async def silent(chat, sandbox):
    return Outcome({})


async def no_outcome(chat, sandbox):
    await chat.say([Message("user", "hi")])


async def not_json(chat, sandbox):
    await chat.say([Message("user", "hi")])
    return Outcome({"x": {1, 2}})


async def two_at_once(chat, sandbox):
    async with asyncio.TaskGroup() as group:
        group.create_task(chat.say([Message("user", "a")]))
        group.create_task(chat.say([Message("user", "b")]))


@pytest.mark.parametrize(
    ("rollout", "words"),
    [
        (raises, "KeyError: 'no such thing' at test_environments_host.py:"),
        (exits, "SystemExit"),
        (panics, "BaseExceptionGroup"),
        (cancels_itself, "cancel itself"),
        (silent, "say something"),
        (no_outcome, "must return an Outcome"),
        (not_json, "JSON values only"),
        (two_at_once, "ExceptionGroup"),
    ],
)
async def test_an_environment_that_breaks_is_a_failure_of_its_own(stage, rollout, words):
    async with stage(rollout) as s:
        s.start()
        failed = await s.until(RolloutFailed)
        s.start("r2")  # the host goes on
        await s.until(RolloutFailed, 2)
    assert (failed.owner, failed.cause) == ("environment", "exception")
    assert words in failed.message


async def use_sandbox(chat, sandbox):
    await chat.say([Message("user", "hi")])
    await sandbox.write("x", b"1")
    result = await sandbox.exec(["cat", "x"])
    await sandbox.exec(["false"])
    return Outcome({"stdout": result.stdout})


async def test_a_sandbox_is_asked_for_at_first_use_and_released_on_command(stage):
    async with stage(use_sandbox) as s:
        s.start()
        ended = await s.until(RolloutEnded)
        names = ["TurnEnded", "SandboxWanted", "SandboxReady", "ToolEnded", "ToolEnded", "RolloutEnded"]
        assert s.kinds() == names
        wanted, ready, tool = s.events[1:4]
        assert (wanted.sandbox, wanted.purpose) == (ready.sandbox, "rollout")
        assert (tool.turn, tool.call, tool.cause) == (0, 0, "exit")
        assert s.events[4].call == 1
        assert tool.duration_s > 0
        assert ended.num_tool_calls == 2
        assert await s.provider.list({"run": "run"}) == [wanted.sandbox]
        release = ReleaseSandbox("r1", 1, wanted.sandbox)
        s.host.release(release)
        released = await s.until(SandboxReleased)
        assert replace(released, end_s=None, use=None) == SandboxReleased("r1", 1, wanted.sandbox)
        assert released.end_s > 0
        assert released.use.num_files == 1
        assert await s.provider.list({}) == []
        s.host.release(release)  # answered again
        await s.until(SandboxReleased, 2)
    assert read_payload(s.payload_dir, ended.payload).outcome == {"stdout": "1"}


async def test_a_failing_rollout_gives_its_sandbox_back_before_it_says_so(stage):
    async def fails(chat, sandbox):
        await sandbox.exec(["true"])
        raise RuntimeError("no")

    async with stage(fails) as s:
        s.start()
        await s.until(RolloutFailed)
        assert s.kinds() == ["SandboxWanted", "SandboxReady", "ToolEnded", "SandboxReleased", "RolloutFailed"]


async def test_a_sandbox_that_fails_is_an_infrastructure_failure(stage):
    async def escapes(chat, sandbox):
        await sandbox.write("../x", b"")

    async with stage(escapes) as s:
        s.start()
        failed = await s.until(RolloutFailed)
    assert (failed.owner, failed.cause) == ("infrastructure", "sandbox")


async def test_a_sandbox_that_is_not_created_is_lost(stage):
    async with stage(use_sandbox) as s:
        for number in range(16):
            await s.provider.create(f"other{number}", {"run": "other"})
        s.start()
        assert "max_live" in (await s.until(SandboxLost)).cause
        assert (await s.until(RolloutFailed)).owner == "infrastructure"
        await s.provider.reap("other")


async def test_a_refused_sandbox_waits_for_another_grant_and_no_limit_runs_meanwhile(stage):
    async def verify(outcome, sandbox):
        await sandbox.write("x", b"1")
        return Reward(1.0)

    async with stage(hello, verify, score_timeout_s=0.5) as s:
        create, refusals = s.provider.create, []

        async def refuses_once(sandbox_id, labels):
            refusals.append(labels["purpose"])
            if len(refusals) == 1:
                raise SandboxRefusedError("quota of 10", retry_after_s=3.0)
            await asyncio.sleep(0.7)
            return await create(sandbox_id, labels)

        s.provider.create = refuses_once
        s.start()
        ended = await s.until(RolloutEnded)
        s.host.score(Score("r1", 1, 1, TASK.id, ended.payload), TASK)
        refused = await s.until(SandboxRefused)
        assert (refused.reason, refused.retry_after_s) == ("quota of 10", 3.0)
        assert SandboxLost not in map(type, s.events)
        s.host.grant(GrantSandbox("r1", 1, refused.sandbox))
        assert (await s.until(Scored)).reward == 1.0
        assert refusals == ["verify", "verify"]
        names = [name for name in s.kinds() if name.startswith("Sandbox")]
        assert names == ["SandboxWanted", "SandboxRefused", "SandboxReady", "SandboxReleased"]


async def test_a_refusal_that_crosses_a_release_is_not_told(stage):
    async with stage(use_sandbox) as s:
        asked = asyncio.Event()

        async def refuses_late(sandbox_id, labels):
            asked.set()
            await asyncio.sleep(0.2)
            raise SandboxRefusedError("quota")

        s.provider.create = refuses_late
        s.start()
        wanted = await s.until(SandboxWanted)
        await asked.wait()
        s.host.release(ReleaseSandbox("r1", 1, wanted.sandbox))
        assert (await s.until(RolloutFailed)).owner == "infrastructure"
        names = [name for name in s.kinds() if name.startswith("Sandbox")]
        assert names == ["SandboxWanted", "SandboxReleased"]


async def hangs(chat, sandbox):
    await asyncio.get_running_loop().create_future()


async def waits_for_engine(chat, sandbox):
    await chat.say([Message("user", "hi")])


async def waits_for_command(chat, sandbox):
    await sandbox.exec(["sleep", "99"])


@pytest.mark.parametrize("rollout", [hangs, waits_for_engine, waits_for_command])
async def test_a_cancelled_rollout_ends_wherever_it_waits(stage, engine, rollout):
    # Behaviour check 13: an environment that never returns.
    engine.hold.clear()
    async with stage(rollout) as s:
        s.start()
        await asyncio.sleep(0.15)
        s.host.cancel(Cancel("r1", 1, "deadline"))
        s.host.cancel(Cancel("r1", 1, "deadline"))
        failed = await s.until(RolloutFailed)
        assert (failed.owner, failed.cause, failed.message) == ("scheduler", "cancelled", "deadline")
        assert s.kinds().count("SandboxReady") == s.kinds().count("SandboxReleased")
        assert s.kinds().count("RolloutFailed") == 1
        assert engine.stats().num_running == 0
        s.host.cancel(Cancel("r1", 1, "again"))  # answered all the same
        await s.until(RolloutFailed, 2)


async def test_a_cancelled_rollout_says_how_many_tokens_it_had_sampled(stage, engine):
    """Those of the answer that was cut off included: what oversampling threw away is told by them."""
    engine.answers = ["abcdef<|im_end|>", "a long answer<|im_end|>"]
    engine.pause_at["r1.1.1"] = 3

    async def two_turns(chat, sandbox):
        await chat.say([Message("user", "hi")])
        await chat.say([Message("user", "more")])

    async with stage(two_turns) as s:
        s.start()
        ended = await s.until(TurnEnded)
        while not engine.paused:
            await asyncio.sleep(0)
        s.host.cancel(Cancel("r1", 1, "oversampled"))
        failed = await s.until(RolloutFailed)
        assert failed.num_tokens == sum(span.num_tokens for span in ended.spans) + 3


async def test_a_sandbox_that_is_wanted_but_not_granted_is_forgotten_on_cancel(stage):
    async with stage(use_sandbox) as s:
        s.grants = False
        s.start()
        wanted = await s.until(SandboxWanted)
        s.host.cancel(Cancel("r1", 1, "stop"))
        await s.until(RolloutFailed)
        assert "SandboxReleased" not in s.kinds()
        s.host.grant(GrantSandbox("r1", 1, wanted.sandbox))  # it crossed the cancel
        assert (await s.until(SandboxReleased)).sandbox == wanted.sandbox


async def test_a_coroutine_that_swallows_its_cancellation_is_abandoned(stage, engine):
    release = asyncio.Event()
    later = []

    async def stubborn(chat, sandbox):
        await sandbox.exec(["true"])
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        for call in (lambda: chat.say([Message("user", "hi")]), lambda: sandbox.exec(["true"])):
            try:
                await call()
            except Exception as error:
                later.append(type(error).__name__)
        return Outcome({})

    async with stage(stubborn) as s:
        s.start()
        await s.until(ToolEnded)
        s.host.cancel(Cancel("r1", 1, "deadline"))
        failed = await s.until(RolloutFailed)
        assert (failed.owner, failed.cause) == ("scheduler", "cancelled")
        assert "cancellation" in failed.message
        assert s.host.num_abandoned == 1
        assert s.kinds()[-2:] == ["SandboxReleased", "RolloutFailed"]
        told = len(s.events)
        release.set()
        while len(later) < 2:
            await asyncio.sleep(0.01)
        assert later == ["EnvironmentFault", "SandboxError"]
        assert len(s.events) == told


async def test_an_engine_that_is_gone_does_not_stop_the_host(stage, engine, monkeypatch):
    async def gone(session):
        raise EngineError("the engine's process ended")

    monkeypatch.setattr(engine, "end_session", gone)
    async with stage() as s:
        s.start()
        await s.until(RolloutEnded)
        s.start("r2")
        await s.until(RolloutEnded, 2)


async def test_a_sandbox_that_cannot_be_removed_is_lost(stage, monkeypatch):
    async def stuck(self):
        raise OSError("busy")

    async with stage(use_sandbox) as s:
        s.start()
        await s.until(RolloutEnded)
        wanted = await s.until(SandboxWanted)
        with monkeypatch.context() as patch:
            patch.setattr(BubblewrapSandbox, "terminate", stuck)
            s.host.release(ReleaseSandbox("r1", 1, wanted.sandbox))
            assert "busy" in (await s.until(SandboxLost)).cause
        await s.provider.reap("run")


async def test_a_cancel_that_comes_too_late_leaves_the_ending_as_it_was(stage, engine, monkeypatch):
    async with stage() as s:
        told = s.host._emit

        def tell(event):
            if isinstance(event, RolloutEnded):
                s.host.cancel(Cancel("r1", 1, "late"))
            told(event)

        s.host._emit = tell
        s.start()
        await s.until(RolloutEnded)
        failed = await s.until(RolloutFailed)
        assert failed.message == "nothing of this attempt runs here"
    assert engine.ended_sessions == ["r1.1"]


async def test_closing_ends_everything_and_says_nothing(stage, engine):
    engine.hold.clear()
    async with stage(use_sandbox) as s:
        for number in range(4):
            s.start(f"r{number}")
        await asyncio.sleep(0.05)
    assert "RolloutFailed" not in s.kinds()


async def nan(outcome, sandbox):
    return Reward(math.nan)


async def bare(outcome, sandbox):
    return 1.0


async def slow(outcome, sandbox):
    await asyncio.sleep(30)


async def broken(outcome, sandbox):
    raise ZeroDivisionError("x")


async def own_timeout(outcome, sandbox):
    raise TimeoutError("a judge did not answer")


@pytest.mark.parametrize(
    ("score", "cause", "words"),
    [
        (nan, "not_finite", "finite"),
        (bare, "malformed", "must return a Reward"),
        (slow, "timeout", "reward.timeout_s"),
        (broken, "exception", "ZeroDivisionError"),
        (own_timeout, "exception", "a judge did not answer"),
    ],
)
async def test_a_failed_score_leaves_the_rollout_intact(stage, score, cause, words):
    async with stage(score=score, score_timeout_s=0.2) as s:
        failed = await s.run_and_score()
        assert isinstance(failed, ScoreFailed)
        assert (failed.cause, failed.tries) == (cause, 1)
        assert words in failed.message
        ended = await s.until(RolloutEnded)
        s.host.score(Score("r1", 1, 2, TASK.id, ended.payload), TASK)
        assert (await s.until(ScoreFailed, 2)).tries == 2
    assert read_payload(s.payload_dir, ended.payload).outcome == {"text": "ok"}


async def test_a_verifier_gets_a_fresh_sandbox_whose_wait_is_no_part_of_the_time(stage):
    async def verify(outcome, sandbox):
        listing = await sandbox.exec(["ls", "/work"])
        return Reward(float(listing.stdout == ""))

    async with stage(use_sandbox, verify, score_timeout_s=5) as s:
        s.start()
        ended = await s.until(RolloutEnded)
        s.grants = False
        s.host.score(Score("r1", 1, 1, TASK.id, ended.payload), TASK)
        wanted = await s.until(SandboxWanted, 2)
        await asyncio.sleep(0.6)
        s.host.grant(GrantSandbox("r1", 1, wanted.sandbox))
        scored = await s.until(Scored)
        assert wanted.purpose == "verify"
        assert wanted.sandbox != s.events[1].sandbox
        assert scored.reward == 1.0
        assert scored.duration_s < 0.6 or scored.duration_s - scored.sandbox_start_s < 5
        assert s.kinds().index("Scored") > s.kinds().index("SandboxReleased")
        assert s.kinds().count("ToolEnded") == 2  # the verifier's are part of the score's time


async def test_a_try_that_the_scheduler_gave_up_is_over_when_the_next_one_begins(stage):
    async def verify(outcome, sandbox):
        await sandbox.exec(["true"])
        return Reward(1.0)

    async with stage(score=verify) as s:
        s.start()
        ended = await s.until(RolloutEnded)
        s.grants = False
        s.host.score(Score("r1", 1, 1, TASK.id, ended.payload), TASK)
        await s.until(SandboxWanted)
        s.grants = True
        s.host.score(Score("r1", 1, 2, TASK.id, ended.payload), TASK)
        assert (await s.until(Scored)).tries == 2
        await asyncio.sleep(0)
        assert [task.get_name() for task in asyncio.all_tasks() if "_score" in repr(task)] == []
    assert "ScoreFailed" not in s.kinds()


async def test_a_rollout_that_ends_while_a_tool_call_waits_for_its_sandbox_lets_go_of_it(stage):
    forgotten = []

    async def careless(chat, sandbox):
        forgotten.append(asyncio.create_task(sandbox.exec(["true"])))
        return await hello(chat, sandbox)

    async with stage(careless) as s:
        s.grants = False
        s.start()
        await s.until(RolloutEnded)
        wanted = await s.until(SandboxWanted)
        with pytest.raises(SandboxError, match="released"):
            await asyncio.wait_for(forgotten[0], 5)
        s.host.grant(GrantSandbox("r1", 1, wanted.sandbox))
        await s.until(SandboxReleased)


async def test_cancelling_a_score_is_answered(stage):
    async with stage(score=slow) as s:
        s.start()
        ended = await s.until(RolloutEnded)
        s.host.score(Score("r1", 1, 1, TASK.id, ended.payload), TASK)
        await asyncio.sleep(0)
        s.host.cancel(Cancel("r1", 1, "stopping"))
        failed = await s.until(RolloutFailed)
        assert (failed.owner, failed.message) == ("scheduler", "stopping")


async def test_many_rollouts_share_the_host(stage, engine):
    async with stage() as s:
        for number in range(40):
            s.start(f"r{number}")
        await s.until(RolloutEnded, 40)
    assert len({event.payload for event in s.events if isinstance(event, RolloutEnded)}) == 40
    assert sorted(engine.ended_sessions) == sorted(f"r{number}.1" for number in range(40))


async def test_versions_of_every_chunk_reach_the_turn(stage, engine):
    engine.answers = [[5] * 6]

    async def talk(chat, sandbox):
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(chat.say([Message("user", "hi")], max_tokens=6))
            for number in range(1, 4):
                await asyncio.sleep(0)
                await engine.apply(0, number, "m", "keep")
            await asked
        return Outcome({})

    async with stage(talk) as s:
        s.start()
        ended = await s.until(RolloutEnded)
        turn = await s.until(TurnEnded)
    assert turn.spans == ended.spans
    assert sum(span.num_tokens for span in ended.spans) == 6
    assert [span.number for span in ended.spans] == sorted(span.number for span in ended.spans)
    sample = read_payload(s.payload_dir, ended.payload).samples[0]
    assert tuple(sample.spans) == ended.spans
    assert sample.token_ids[-6:] == array("i", [5] * 6)


async def test_a_sandbox_that_is_ready_was_wanted(stage):
    async with stage(use_sandbox) as s:
        for number in range(6):
            s.start(f"r{number}")
        await s.until(RolloutEnded, 6)
        ready = {event.sandbox for event in s.events if isinstance(event, SandboxReady)}
        assert ready == {event.sandbox for event in s.events if isinstance(event, SandboxWanted)}
        assert len(ready) == 6
