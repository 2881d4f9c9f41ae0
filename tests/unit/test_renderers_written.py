"""Written conversations have the tokens that a rollout with the same answers has."""

from array import array
from itertools import groupby

import pytest

from headway.core.errors import ModelError
from headway.core.records import Message, ToolCall, ToolSpec, Turn, VersionSpan
from headway.models.tiny import write_tokenizer as write_tiny_tokenizer
from headway.renderers.answers import TAGGED
from headway.renderers.chat import Renderer
from headway.renderers.recorder import TurnRecorder
from headway.renderers.written import cut, written_sample
from tests.standins.families import FAMILIES, QWEN, family_renderer
from tests.unit.rollout_parts import CHATML

USER, ANSWER, MORE = Message("user", "ab?"), Message("assistant", "abab"), Message("user", "and?")
SYSTEM, TOOL, LAST = Message("system", "Be good."), Message("tool", "42"), Message("assistant", "\n\nx")
CONVERSATIONS = [
    [USER, ANSWER],
    [SYSTEM, USER, ANSWER, MORE, LAST],
    [USER, ANSWER, TOOL, MORE, LAST],
    [USER, ANSWER, LAST],
    [USER, Message("assistant", "")],
]


@pytest.fixture(scope="module", params=["chatml", "tiny"])
def renderer(request, model_dir, tmp_path_factory):
    if request.param == "chatml":
        return Renderer(model_dir)
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_tokenizer(folder)
    return Renderer(folder)


def trained_texts(renderer, sample):
    """The texts of the runs of trained tokens."""
    runs = groupby(zip(sample.token_ids, sample.trainable, strict=True), key=lambda pair: pair[1])
    return [renderer.decode([t for t, _ in run], skip_special=False) for flag, run in runs if flag]


def rolled_out(renderer, messages):
    """The sample of a rollout whose policy said these answers and closed each."""
    recorder, so_far, new, at, ids = TurnRecorder(), [], [], -1, array("i")
    for message in messages:
        if message.role != "assistant":
            new.append(message)
            continue
        prompt = renderer.extension(so_far, ids, new) if at >= 0 else renderer.first_prompt(new)
        ids = renderer.answer_ids(message.content)
        logprobs, spans = array("f", [-1.0] * len(ids)), [VersionSpan(0, 7, len(ids))]
        at = recorder.add(Turn(at, prompt, ids, logprobs, spans, "stop", 1.0))
        so_far, new = [*so_far, *new, message], []
    (sample,) = recorder.samples()
    return sample


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_the_tokens_and_the_mask_are_those_of_a_rollout(renderer, messages):
    found, expected = written_sample(renderer, messages), rolled_out(renderer, messages)
    assert found.token_ids == expected.token_ids
    assert found.trainable == expected.trainable
    assert found.turns == expected.turns
    assert sum(span.num_tokens for span in found.spans) == found.num_trainable
    assert len(found.logprobs) == len(found.token_ids)


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_the_text_is_that_of_the_whole_conversations_template(renderer, messages):
    sample = written_sample(renderer, messages)
    text = renderer.decode(sample.token_ids, skip_special=False)
    whole = renderer._template.render(messages, add_generation_prompt=False)
    tail = whole[len(text) :]
    assert whole.startswith(text) or len(messages) == 3  # two answers in a row have a prompt between them
    assert tail.strip() == "" or len(messages) == 3


def test_answers_with_the_token_that_ends_them_are_trained_and_nothing_else(renderer):
    end = renderer.decode([renderer.closing_id], skip_special=False)
    sample = written_sample(renderer, [SYSTEM, USER, ANSWER, MORE, LAST])
    assert trained_texts(renderer, sample) == [f"abab{end}", f"\n\nx{end}"]
    last = written_sample(renderer, [SYSTEM, USER, ANSWER, MORE, LAST], "last")
    assert last.token_ids == sample.token_ids
    assert trained_texts(renderer, last) == [f"\n\nx{end}"]
    first = written_sample(renderer, [SYSTEM, USER, ANSWER, MORE, LAST], not_trained={4})
    assert first.num_trainable == sample.num_trainable - last.num_trainable
    assert sum(span.num_tokens for span in first.spans) == first.num_trainable


def test_messages_after_the_last_answer_are_left_out(renderer):
    assert written_sample(renderer, [USER, ANSWER, MORE]) == written_sample(renderer, [USER, ANSWER])


def test_a_cut_sample_keeps_its_beginning(renderer):
    whole = written_sample(renderer, [USER, ANSWER])
    short = cut(whole, len(whole.token_ids) - 1)
    assert short.token_ids == whole.token_ids[:-1]
    assert short.num_trainable == whole.num_trainable - 1 == sum(span.num_tokens for span in short.spans)
    assert cut(whole, 2).num_trainable == 0


def test_an_answer_may_not_hold_the_token_that_ends_one(renderer):
    with pytest.raises(ModelError, match=r"may not contain <\|im_end\|>"):
        written_sample(renderer, [USER, Message("assistant", "a<|im_end|>b")])


@pytest.mark.parametrize(
    "template",
    [
        CHATML.replace("message['content']", "message['content'] | lower"),
        "{% for m in messages %}{% if not loop.last %}{{ m['content'] }}{% endif %}{% endfor %}",
    ],
)
def test_a_template_that_changes_answers_cannot_mask_them(template, tmp_path):
    write_tiny_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError, match="must show each answer exactly once, unchanged"):
        written_sample(Renderer(tmp_path), [USER, ANSWER, MORE, LAST])


CALLS = (ToolCall("call_0_0", "find", '{"what": "a key"}'), ToolCall("call_0_1", "find", '{"what": "x"}'))
FIND = ToolSpec("find", "Find it.", {"type": "object", "properties": {"what": {"type": "string"}}})
ROOM = Message("tool", "in the hall", tool_call_id="call_0_0", name="find")
WITH_CALLS = [USER, Message("assistant", "", tool_calls=CALLS[:1]), ROOM, Message("assistant", "The hall.")]


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_written_as_the_policy_makes_them_and_trained_with_their_answer(family, tmp_path):
    renderer = family_renderer(tmp_path, family)
    sample = written_sample(renderer, WITH_CALLS, tools=[FIND])
    first, second = trained_texts(renderer, sample)
    end = renderer.decode([renderer.closing_id], skip_special=False)
    parsed = (renderer._format or TAGGED).read(renderer.spoken(WITH_CALLS[1]))
    assert (parsed.calls, parsed.content) == ((("find", '{"what": "a key"}'),), "")
    assert first == renderer.spoken(WITH_CALLS[1]) + end
    assert '"find"' in first
    assert second == "The hall." + end
    text = renderer.decode(sample.token_ids, skip_special=False)
    assert "Find it." in text[: text.index(first)]
    assert "in the hall" in text[text.index(first) + len(first) :]


@pytest.mark.parametrize("family", QWEN[:1])
def test_several_calls_beside_content_are_what_the_template_writes(family, tmp_path):
    renderer = family_renderer(tmp_path, family)
    messages = [USER, Message("assistant", "Let me see.", tool_calls=CALLS)]
    text = renderer.decode(written_sample(renderer, messages, tools=[FIND]).token_ids, skip_special=False)
    whole = renderer._template.render(messages, add_generation_prompt=False, tools=[FIND])
    assert whole.strip() == text
