"""A history goes on from the answer that it repeats; what it rewrites is a branch, trained once."""

import asyncio
from array import array
from dataclasses import replace

import pytest

from headway.core.events import RolloutEnded, RolloutFailed, VerdictGiven
from headway.core.protocols import Outcome
from headway.core.records import Message, ToolCall, ToolSpec
from headway.environments.generation import GenerationLimits
from tests.standins.families import FAMILIES, LLAMA, family_renderer
from tests.unit.gateway_parts import saying
from tests.unit.host_stage import opened
from tests.unit.rollout_parts import ScriptedEngine

LIMITS = GenerationLimits(256, 8192)
USER, MORE, LAST = (Message("user", text) for text in ("one", "two", "three"))
TOOL = ToolSpec("look", "Looks.", {"type": "object", "properties": {"at": {"type": "integer"}}})


async def played(tmp_path, renderer, engine, rollout, **options):
    """Run a rollout; return its payload and how it ended."""
    opening = opened(tmp_path, {"replica-0": engine}, renderer, rollout, limits=LIMITS, **options)
    async with opening as stage:
        stage.start()
        event = await stage.until((RolloutEnded, RolloutFailed))
        assert isinstance(event, RolloutEnded), event
        return stage.payload(event.payload), event, stage


def trained(renderer, sample):
    """Return the texts of the runs of trainable tokens."""
    texts, run = [], []
    for token, counts in [*zip(sample.token_ids, sample.trainable, strict=True), (0, 0)]:
        if counts:
            run.append(token)
        elif run:
            texts.append(renderer.decode(run))
            run = []
    return texts


async def test_a_history_that_goes_on_is_one_sequence_of_tokens(tmp_path, renderer):
    async def rollout(chat, sandbox):
        first = await chat.complete([USER])
        second = await chat.complete([USER, first.message, MORE])
        assert list(second.prompt_ids[: len(first.prompt_ids)]) == list(first.prompt_ids)
        assert (first.parent, second.parent) == (-1, 0)
        return Outcome({})

    payload, event, _ = await played(tmp_path, renderer, saying(renderer, "a", "b"), rollout)
    (sample,) = payload.samples
    assert trained(renderer, sample) == ["a", "b"]
    assert (event.num_turns, event.num_tokens) == (2, 4)


async def test_sampled_ids_stand_where_encoding_their_text_gives_others(tmp_path, renderer):
    a, b = renderer.encode("a")[0], renderer.encode("b")[0]
    sampled = [a, b, renderer.closing_id]
    assert list(renderer.encode("ab")) != [a, b]

    async def rollout(chat, sandbox):
        first = await chat.complete([USER])
        assert first.message.content == "ab"
        await chat.complete([USER, Message("assistant", "ab"), MORE])
        return Outcome({})

    payload, _, _ = await played(tmp_path, renderer, ScriptedEngine(lambda _: sampled), rollout)
    (sample,) = payload.samples
    assert [token for token, on in zip(sample.token_ids, sample.trainable, strict=True) if on] == 2 * sampled


REWRITTEN = {
    "compacted": ([Message("user", "the summary")], -1),
    "another system prompt": ([Message("system", "you are a helper"), USER], -1),
    "an edited first message": ([replace(USER, content="One"), Message("assistant", "a"), MORE], -1),
    "an edited answer": ([USER, Message("assistant", "A"), MORE], -1),
    "an edited second answer": ([USER, Message("assistant", "a"), MORE, Message("assistant", "B"), LAST], 0),
    "another second question": ([USER, Message("assistant", "a"), LAST], 0),
    "the same again": ([USER, Message("assistant", "a"), MORE], 0),
    "all of it": ([USER, Message("assistant", "a"), MORE, Message("assistant", "b"), LAST], 1),
    "white space": ([USER, Message("assistant", " a\n"), MORE, Message("assistant", "b"), LAST], 1),
}


@pytest.mark.parametrize(("history", "parent"), REWRITTEN.values(), ids=REWRITTEN)
async def test_what_is_rewritten_is_a_branch_from_what_still_holds(tmp_path, renderer, history, parent):
    async def rollout(chat, sandbox):
        await chat.complete([USER])
        await chat.complete([USER, Message("assistant", "a"), MORE])
        third = await chat.complete(history)
        assert third.parent == parent
        return Outcome({})

    payload, event, _ = await played(tmp_path, renderer, saying(renderer, "a", "b", "c"), rollout)
    texts = [trained(renderer, sample) for sample in payload.samples]
    assert texts == ([["a", "b", "c"]] if parent == 1 else [["a", "b"], ["c"]])
    assert event.num_tokens == sum(sample.num_trainable for sample in payload.samples) == 6
    assert sum(span.num_tokens for span in event.spans) == 6
    whole = renderer.decode(payload.samples[-1].token_ids, skip_special=False)
    assert all(f"{message.content.strip()}<|im_end|>" in whole for message in history)


async def test_agents_beside_one_another_have_branches_of_their_own(tmp_path, renderer):
    async def agent(chat, name):
        messages = [Message("system", name), USER]
        for _ in range(3):
            done = await chat.complete(messages)
            messages += [done.message, MORE]

    async def rollout(chat, sandbox):
        async with asyncio.TaskGroup() as group:
            for name in ("a", "b", "c"):
                group.create_task(agent(chat, name))
        return Outcome({})

    engine = ScriptedEngine(vocab=60)
    payload, event, _ = await played(tmp_path, renderer, engine, rollout)
    assert (len(payload.samples), event.num_turns) == (3, 9)
    assert [len(sample.turns) for sample in payload.samples] == [3, 3, 3]
    assert len({request.request_id for request in engine.requests}) == 9
    assert len({request.sampling.seed for request in engine.requests}) == 9


async def test_of_two_answers_that_say_the_same_the_later_goes_on(tmp_path, renderer):
    async def rollout(chat, sandbox):
        first, second = await chat.complete([USER]), await chat.complete([USER])
        assert (await chat.complete([USER, first.message, MORE])).parent == second.turn
        return Outcome({})

    payload, _, _ = await played(tmp_path, renderer, saying(renderer, "a", "a", "b"), rollout)
    assert [trained(renderer, sample) for sample in payload.samples] == [["a"], ["a", "b"]]


@pytest.mark.parametrize("strict", [False, True])
async def test_an_answer_may_come_back_without_its_reasoning(tmp_path, strict):
    renderer = family_renderer(tmp_path / "qwen3", "qwen3")

    async def rollout(chat, sandbox):
        first = await chat.complete([USER])
        assert (first.message.reasoning, first.message.content) == ("hm", "a")
        dropped = await chat.complete([USER, Message("assistant", "a"), MORE])
        kept = await chat.complete([USER, first.message, LAST])
        other = await chat.complete([USER, Message("assistant", "a", reasoning="ha"), LAST])
        assert (dropped.parent, kept.parent, other.parent) == (-1 if strict else 0, 0, -1)
        return Outcome({})

    engine = saying(renderer, "<think>\nhm\n</think>\n\na")
    await played(tmp_path, renderer, engine, rollout, strict_reasoning=strict)


@pytest.mark.parametrize("family", FAMILIES)
async def test_every_template_keeps_what_was_sampled_over_turns_with_tools(tmp_path, family):
    renderer = family_renderer(tmp_path / family, family)
    if family in LLAMA:
        call, close = '{"name": "look", "parameters": {"at": 1}}', "<|eot_id|>"
    else:
        call, close = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>', "<|im_end|>"
    thought = "hm\n</think>\n\n" if family == "qwen3_thinking" else ""
    said = [thought + text for text in (call, call, "done ab")]

    async def rollout(chat, sandbox):
        messages = [Message("system", "S"), USER]
        for _ in range(2):
            done = await chat.complete(messages, tools=[TOOL])
            (called,) = done.message.tool_calls
            # As a client sends it: without reasoning, the arguments written anew.
            sent = Message("assistant", "", tool_calls=(replace(called, arguments='{"at":1}'),))
            messages += [sent, Message("tool", "seen", tool_call_id=called.id, name="look")]
        done = await chat.complete(messages, tools=[TOOL])
        await chat.complete([*messages, done.message, MORE], tools=[TOOL])
        return Outcome({})

    engine = saying(renderer, *said, close=close)
    payload, _, _ = await played(tmp_path, renderer, engine, rollout)
    (sample,) = payload.samples
    on = array("i", [token for token, on in zip(sample.token_ids, sample.trainable, strict=True) if on])
    wanted = array("i")
    for text in (*said, said[-1]):
        wanted += renderer.encode(text + close)
    assert on == wanted
    assert renderer.decode(sample.token_ids).count("seen") == 2


async def test_other_tools_begin_a_new_root(tmp_path, renderer):
    async def rollout(chat, sandbox):
        first = await chat.complete([USER], tools=[TOOL])
        assert (await chat.complete([USER, first.message, MORE])).parent == -1
        return Outcome({})

    await played(tmp_path, renderer, saying(renderer, "a"), rollout)


async def test_a_call_that_was_changed_is_another_answer(tmp_path, renderer):
    call = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'

    async def rollout(chat, sandbox):
        first = await chat.complete([USER], tools=[TOOL])
        (called,) = first.message.tool_calls
        for other in (
            replace(called, arguments='{"at": 2}'),
            replace(called, id="x"),
            ToolCall(called.id, "peek", "{}"),
        ):
            sent = Message("assistant", "", tool_calls=(other,))
            answer = Message("tool", "seen", tool_call_id=other.id)
            assert (await chat.complete([USER, sent, answer], tools=[TOOL])).parent == -1
        return Outcome({})

    await played(tmp_path, renderer, saying(renderer, call, "a"), rollout)


async def test_says_and_histories_share_one_rollout(tmp_path, renderer):
    async def rollout(chat, sandbox):
        reply = await chat.say([USER])
        side = await chat.complete([Message("user", "how does it go?")])
        assert side.parent == -1
        await chat.say([MORE])
        told = [USER, reply.message, MORE, Message("assistant", "c"), LAST]
        assert (await chat.complete(told)).parent == 2
        return Outcome({})

    payload, event, _ = await played(tmp_path, renderer, saying(renderer, "a", "b", "c", "d"), rollout)
    assert [trained(renderer, sample) for sample in payload.samples] == [["b"], ["a", "c", "d"]]
    assert event.num_turns == 4


async def test_ids_go_on_from_the_longest_branch_that_they_begin_with(tmp_path, renderer):
    async def rollout(chat, sandbox):
        first = await chat.complete([USER])
        context = first.prompt_ids + first.token_ids
        second = await chat.complete_ids(context + renderer.encode("\nx"))
        third = await chat.complete_ids(context + renderer.encode("\ny"))
        fourth = await chat.complete_ids(second.prompt_ids + second.token_ids + renderer.encode("z"))
        new = await chat.complete_ids(renderer.encode("x"))
        assert [each.parent for each in (second, third, fourth, new)] == [0, 0, 1, -1]
        return Outcome({})

    payload, _, _ = await played(tmp_path, renderer, saying(renderer, *"abcde"), rollout)
    assert [trained(renderer, sample) for sample in payload.samples] == [["a", "c"], ["b", "d"], ["e"]]


@pytest.mark.parametrize("resume", ["replay", "snapshot"])
async def test_an_environment_that_is_rerun_cannot_take_histories(tmp_path, renderer, resume):
    async def rollout(chat, sandbox):
        await chat.complete([USER])

    opening = opened(tmp_path, {"replica-0": saying(renderer, "a")}, renderer, rollout, resume=resume)
    async with opening as stage:
        stage.start()
        failed = await stage.until(RolloutFailed)
    assert failed.owner == "environment"
    assert 'resume = "restart"' in failed.message


async def test_lengths_are_watched_over_all_branches(tmp_path, renderer):
    async def rollout(chat, sandbox):
        await asyncio.gather(*(chat.complete([Message("user", name)]) for name in "abc"))
        return Outcome({})

    engine = saying(renderer, "xxxx")
    _, _, stage = await played(tmp_path, renderer, engine, rollout, watch_tokens=8)
    (verdict,) = [event for event in stage.events if isinstance(event, VerdictGiven)]
    assert verdict.value == 8
