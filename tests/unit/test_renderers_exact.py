"""Turns with tools and reasoning extend the same tokens, whatever a family's template makes of history."""

from array import array

import pytest

from headway.core.records import Message, ToolCall, ToolSpec, Turn, VersionSpan
from headway.renderers.recorder import TurnRecorder
from tests.standins.families import CHATML, FAMILIES, LLAMA, QWEN, family_renderer

ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
ASK, AGAIN = Message("user", "2+3?"), Message("user", "  and ab?\n")
RESULT = Message("tool", "5", tool_call_id="call_0_0", name="add")

AFTER_CALL = {  # what comes between an answer that called a tool, closed, and the next answer
    "llama": '<|start_header_id|>ipython<|end_header_id|>\n\n"5"<|eot_id|>'
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "qwen": "\n<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def renderer(family, tmp_path_factory):
    return family_renderer(tmp_path_factory.mktemp(family), family)


def one_by_one(renderer, text):
    """Ids of a text as no encoder would choose them: a byte at a time, markers whole."""
    ids = array("i")
    for token in renderer.encode(text):
        name = renderer.tokenizer.id_to_token(token)
        pieces = (
            [token] if name.startswith("<") or len(name) == 1 else map(renderer.tokenizer.token_to_id, name)
        )
        ids.extend(pieces)
    return ids


def called(family, *, times=1, spaced=True):
    """An answer that thinks and calls, its JSON spaced as no template writes it."""
    space = "  " if spaced else " "
    arguments = f'{{"a":{space}{{"ab": 1}}}}'
    if family in LLAMA:
        return "; ".join([f'{{"name": "add", "parameters": {arguments}}}'] * times)
    think = "hm ab\n</think>\n\n" if family == "qwen3_thinking" else "<think>\nhm ab\n</think>\n\n"
    return think + "\n".join([f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>'] * times)


def said(renderer, *answers):
    """Play a conversation: ask, each answer with what follows it. Return ids, messages, and extensions."""
    messages = [ASK]
    ids = renderer.first_prompt(messages, [ADD])
    extensions = []
    for turn, (sampled, after) in enumerate(answers):
        message, malformed = renderer.message(sampled, [ADD], turn=turn)
        assert malformed == ""
        messages.append(message)
        extensions.append(renderer.extension(messages, sampled, after, [ADD]))
        messages += after
        ids = ids + sampled + extensions[-1]
    return ids, messages, extensions


def closed(renderer, ids):
    return ids + array("i", [renderer.closing_id])


def test_decode_and_encode_are_no_inverse_here(renderer):
    ids = one_by_one(renderer, "ab}}")
    assert renderer.encode(renderer.decode(ids)) != ids


def test_an_answer_that_called_a_tool_is_followed_by_the_result_as_the_template_writes_it(family, renderer):
    sampled = closed(renderer, one_by_one(renderer, called(family)))
    ids, messages, (extension,) = said(renderer, (sampled, [RESULT]))
    assert messages[1].tool_calls[0].arguments == '{"a": {"ab": 1}}'
    expected = AFTER_CALL["llama" if family in LLAMA else "qwen"]
    expected += "<think>\n" if family == "qwen3_thinking" else ""
    assert renderer.decode(extension, skip_special=False) == expected
    first = renderer.first_prompt([ASK], [ADD])
    assert ids == first + sampled + renderer.encode(expected)


def test_what_was_said_before_stays_token_by_token_over_turns(family, renderer):
    call = closed(renderer, one_by_one(renderer, called(family)))
    thought = "" if family == "qwen3_thinking" else "<think>"
    words = closed(renderer, one_by_one(renderer, f"{thought}ab</think> It is ab. "))
    last = closed(renderer, one_by_one(renderer, f"{thought}\n</think>ab"))
    ids, _, extensions = said(renderer, (call, [RESULT]), (words, [AGAIN]), (last, [AGAIN]))
    parts = [
        renderer.first_prompt([ASK], [ADD]),
        call,
        extensions[0],
        words,
        extensions[1],
        last,
        extensions[2],
    ]
    assert ids == sum(parts, array("i"))
    assert extensions[1] == extensions[2]  # nothing of it depends on how the answers were said
    text = renderer.decode(ids, skip_special=False)
    assert text.count("hm ab") == text.count(" It is ab. ") + (family in QWEN + CHATML) - 1


def test_where_answers_are_written_as_the_template_writes_them_the_joined_text_is_the_templates(
    family, renderer
):
    if family in LLAMA:
        text = '{"name": "add", "parameters": {"a": 1}}'
    else:
        text = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    prefix = "" if family != "qwen3_thinking" else "\n</think>\n\n"
    sampled = closed(renderer, one_by_one(renderer, prefix + text))
    ids, messages, _ = said(renderer, (sampled, [RESULT]))
    whole = renderer.first_prompt(messages, [ADD])
    if family == "qwen3_thinking":
        return  # its template leaves the empty <think> out
    assert renderer.decode(ids, skip_special=False) == renderer.decode(whole, skip_special=False)


def test_an_earlier_answer_that_the_template_would_refuse_is_no_obstacle(family, renderer):
    twice = closed(renderer, one_by_one(renderer, called(family, times=2)))
    words = closed(renderer, renderer.encode("</think>Done." if family == "qwen3_thinking" else "Done."))
    second = Message("tool", "6", tool_call_id="call_0_1", name="add")
    ids, messages, extensions = said(renderer, (twice, [RESULT, second]), (words, [AGAIN]))
    assert len(messages[1].tool_calls) == 2
    assert ids[: len(ids) - len(extensions[1])] == (
        renderer.first_prompt([ASK], [ADD]) + twice + extensions[0] + words
    )


def test_an_answer_cut_off_within_a_call_is_closed_and_goes_on(family, renderer):
    sampled = one_by_one(renderer, called(family)[:-5])
    message, malformed = renderer.message(sampled, [ADD])
    assert malformed
    extension = renderer.extension([ASK, message], sampled, [AGAIN], [ADD])
    assert extension[0] == renderer.closing_id


def test_llamas_end_of_message_closes_a_call_and_nothing_is_put_after_it(tmp_path):
    renderer = family_renderer(tmp_path, "llama31")
    sampled = renderer.encode('<|python_tag|>{"name": "add", "parameters": {"a": 1}}<|eom_id|>')
    message, _ = renderer.message(sampled, [ADD])
    extension = renderer.extension([ASK, message], sampled, [RESULT], [ADD])
    assert renderer.decode(extension, skip_special=False) == AFTER_CALL["llama"]


def test_qwen3_drops_reasoning_from_history_and_the_tokens_keep_it(tmp_path):
    renderer = family_renderer(tmp_path, "qwen3")
    sampled = closed(renderer, renderer.encode("<think>\nHM\n</think>\n\nFive."))
    ids, messages, _ = said(renderer, (sampled, [AGAIN]))
    assert "HM" not in renderer.text(messages, add_generation_prompt=True)
    assert "<think>\nHM\n</think>\n\nFive.<|im_end|>" in renderer.decode(ids, skip_special=False)


def test_the_recorded_sample_trains_the_sampled_tokens_and_no_others(family, renderer):
    call = closed(renderer, one_by_one(renderer, called(family)))
    words = closed(renderer, one_by_one(renderer, "ab"))
    ids, _, extensions = said(renderer, (call, [RESULT]), (words, [AGAIN]))
    recorder = TurnRecorder()
    for parent, (prompt, sampled) in enumerate(
        [(renderer.first_prompt([ASK], [ADD]), call), (extensions[0], words)], -1
    ):
        logprobs = array("f", [-1.0] * len(sampled))
        recorder.add(Turn(parent, prompt, sampled, logprobs, [VersionSpan(0, 0, len(sampled))], "stop", 1.0))
    (sample,) = recorder.samples()
    assert sample.token_ids + extensions[1] == ids
    trained = [token for token, counts in zip(sample.token_ids, sample.trainable, strict=True) if counts]
    assert trained == [*call, *words]


def test_a_template_that_refuses_system_prompts_gets_the_tools_in_the_first_question(tmp_path):
    renderer_dir = tmp_path / "gemma"
    family_renderer(renderer_dir, "chatml")
    source = (renderer_dir / "chat_template.jinja").read_text()
    refuse = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    (renderer_dir / "chat_template.jinja").write_text(refuse + source)
    renderer = type(family_renderer(tmp_path / "other", "chatml"))(renderer_dir)
    text = renderer.decode(renderer.first_prompt([ASK], [ADD]), skip_special=False)
    assert text.startswith("<|im_start|>user\n# Tools\n")
    assert text.endswith("</tool_call>\n\n2+3?<|im_end|>\n<|im_start|>assistant\n")


def test_a_history_with_calls_is_written_whole_as_the_policy_writes_them(family, renderer):
    calls = tuple(ToolCall(f"c{at}", "add", f'{{"a": {at}}}') for at in range(2))
    history = [ASK, Message("assistant", "", tool_calls=calls), RESULT, AGAIN]
    for tools in ([ADD], []):
        text = renderer.decode(renderer.first_prompt(history, tools), skip_special=False)
        if family in LLAMA:
            assert (
                '{"name": "add", "parameters": {"a": 0}}; {"name": "add", "parameters": {"a": 1}}<|eot'
                in text
            )
        else:
            written = [
                f'<tool_call>\n{{"name": "add", "arguments": {{"a": {at}}}}}\n</tool_call>' for at in range(2)
            ]
            assert "\n".join(written) in text
            assert "<tool_response>\n5\n</tool_response>" in text
