"""Calls of tools and reasoning are read out of answers, in the form of each family."""

import json

import pytest

from headway.core.records import Message, ToolCall, ToolSpec
from headway.renderers.answers import BARE, TAGGED, read_bare, read_tagged
from headway.renderers.tool_text import format_of
from tests.standins.families import CHATML, FAMILIES, LLAMA, QWEN, family_renderer

ADD = ToolSpec(
    "add",
    "Add two numbers.",
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
)
TAGGED_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
BARE_CALL = '{"name": "add", "parameters": {"a": 2, "b": 3}}'
CALLED = ToolCall("call_0_0", "add", '{"a": 2, "b": 3}')


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def renderer(family, tmp_path_factory):
    return family_renderer(tmp_path_factory.mktemp(family), family)


def call_in(family):
    return BARE_CALL if family in LLAMA else TAGGED_CALL


def answer(renderer, text, *, turn=0, tools=(ADD,)):
    ids = renderer.encode(text)
    ids.append(renderer.closing_id)
    return renderer.message(ids, tools, turn=turn)


def test_a_template_tells_the_form_of_its_calls(family, renderer):
    found = format_of(renderer._template)
    assert found is (BARE if family in LLAMA else TAGGED if family in QWEN else None)


def test_a_call_is_read_in_the_form_of_the_family(family, renderer):
    said = ("</think>\n\n" if family == "qwen3_thinking" else "") + call_in(family)
    assert answer(renderer, said) == (Message("assistant", "", tool_calls=(CALLED,)), "")


def test_the_prompt_tells_of_the_tools(family, renderer):
    text = renderer.decode(renderer.first_prompt([Message("user", "2+3?")], [ADD]), skip_special=False)
    assert '"add"' in text
    assert "Add two numbers." in text
    assert text.count("2+3?") == 1
    if family in CHATML:
        assert '<tool_call>\n{"name": "a function", "arguments": {' in text


def test_reasoning_is_taken_apart(family, renderer):
    opening = "" if family == "qwen3_thinking" else "<think>\n"
    call = call_in(family)
    message, malformed = answer(renderer, f"{opening}Two and {call} three.\n</think>\n\n{call}")
    assert message == Message("assistant", "", f"Two and {call} three.", (CALLED,))
    assert malformed == ""
    assert answer(renderer, f"{opening}Hm.\n</think>\n\nFive.")[0] == Message("assistant", "Five.", "Hm.")


def test_reasoning_that_does_not_end_is_all_there_is(family, renderer):
    opening = "" if family == "qwen3_thinking" else "<think>"
    message, malformed = answer(renderer, f"{opening}\nSo {call_in(family)}")
    assert message == Message("assistant", "", f"So {call_in(family)}")
    assert malformed == ""


def test_without_tools_nothing_is_a_call(family, renderer):
    said = ("</think>" if family == "qwen3_thinking" else "") + call_in(family)
    assert answer(renderer, said, tools=()) == (Message("assistant", call_in(family)), "")


def test_markers_that_are_special_tokens_are_read_and_others_are_not(tmp_path):
    renderer = family_renderer(tmp_path, "qwen25", special_markers=True)
    assert renderer.answer_text(renderer.encode(TAGGED_CALL)).strip().startswith("{")
    assert answer(renderer, TAGGED_CALL + "<|endoftext|>")[0].tool_calls == (CALLED,)


def test_llama_may_mark_a_call_with_its_python_tag(tmp_path):
    renderer = family_renderer(tmp_path, "llama31")
    ids = renderer.encode(f"<|python_tag|>{BARE_CALL}<|eom_id|>")
    assert renderer.message(ids, [ADD], turn=3) == (
        Message("assistant", "", tool_calls=(ToolCall("call_3_0", "add", '{"a": 2, "b": 3}'),)),
        "",
    )


def test_several_calls_are_read_in_order_with_the_words_around_them():
    second = '<tool_call>{"name": "neg", "arguments": {}}</tool_call>'
    parsed = read_tagged(f"First.\n{TAGGED_CALL}\n{second}\nThen.")
    assert parsed == ("First.\n\n\nThen.", (("add", '{"a": 2, "b": 3}'), ("neg", "{}")), "")
    neg = '{"name": "neg", "parameters": {}}'
    assert read_bare(f"{BARE_CALL}; {neg}\n{neg}").calls == (
        ("add", '{"a": 2, "b": 3}'),
        ("neg", "{}"),
        ("neg", "{}"),
    )


def test_arguments_may_be_an_object_within_a_string():
    call = json.dumps({"name": "add", "arguments": '{"a": 2, "b": "é"}'})
    assert read_tagged(f"<tool_call>{call}</tool_call>").calls == (("add", '{"a": 2, "b": "é"}'),)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"name": "add", "arguments": {"a": 2,}}', "not valid JSON at '}}'"),
        ('{"name": "add", "arguments": {"a": 2}', "not valid JSON at its end"),
        ('{"name": "add", "arguments": {"a": NaN}}', "NaN is no number of JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}", "not valid JSON"),
        ('{"name": "add", "arguments": {}} {}', "after the JSON there is '{}'"),
        ('["add"]', "must be a JSON object"),
        ('{"arguments": {}}', '"name" must be the name of a tool'),
        ('{"name": "add"}', "\"arguments\" of add must be a JSON object, not 'null'"),
        ('{"name": "add", "arguments": [1]}', "must be a JSON object, not '[1]'"),
        ('{"name": "add", "arguments": {"a": "\\ud800"}}', "half a character"),
    ],
)
def test_what_is_no_call_says_why_and_calls_nothing(body, why):
    text = f"{TAGGED_CALL}<tool_call>{body}</tool_call>"
    parsed = read_tagged(text)
    assert parsed.content == text
    assert parsed.calls == ()
    assert why in parsed.malformed


@pytest.mark.parametrize("text", ["<tool_call>{}", "{}</tool_call>", f"{TAGGED_CALL}<tool_call>"])
def test_a_tag_without_its_other_is_malformed(text):
    assert "each <tool_call> needs its </tool_call>" in read_tagged(text).malformed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"name": "add", "parameters": {"a": 2}', "not valid JSON at its end"),
        (f"{BARE_CALL} and so on", "not valid JSON at 'and so on'"),
        ('<|python_tag|>brave_search.call(query="x")', "not valid JSON at 'brave_search"),
        ("<|python_tag|>", "there is none"),
    ],
)
def test_a_bare_call_is_the_whole_answer(text, why):
    assert why in read_bare(text).malformed
    assert read_bare(text).calls == ()


@pytest.mark.parametrize("text", ["Five.", '{"sum": 5}', "{x}", f"So: {BARE_CALL}", "", '{"name": "Bob"}'])
def test_other_json_is_no_call(text):
    assert read_bare(text) == (text, (), "")
