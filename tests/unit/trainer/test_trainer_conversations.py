"""JSONL files of conversations: their forms, and what is wrong with a line."""

import json

import pytest

from headway.core.errors import ConfigError, UserError
from headway.core.records import Message
from headway.models.tiny import VOCAB, write_tokenizer
from headway.renderers.chat import Renderer
from headway.renderers.written import written_sample
from headway.trainer.conversations import MAX_PROBLEMS, Reading, read_conversations

ASK, SAY = {"role": "user", "content": "3+5="}, {"role": "assistant", "content": "8"}
ROW = {"messages": [ASK, SAY]}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 3, "b": 5}'}}


@pytest.fixture(scope="module")
def renderer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tokenizer(folder)
    return Renderer(folder)


@pytest.fixture
def read(tmp_path, renderer):
    def read(*rows, train_on="all", max_tokens=64, too_long="error"):
        path = tmp_path / "data.jsonl"
        text = "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return read_conversations(
            path, renderer, Reading(train_on, max_tokens, too_long, VOCAB), key="sft.data"
        )

    return read


def told(read, *rows, **more):
    with pytest.raises(UserError) as caught:
        read(*rows, **more)
    return str(caught.value)


def test_the_three_forms_of_one_conversation_are_one_row(read, renderer):
    expected = written_sample(renderer, [Message("user", "3+5="), Message("assistant", "8")])
    exact = {"token_ids": list(expected.token_ids), "trainable": list(expected.trainable)}
    forms = [ROW, {"prompt": "3+5=", "completion": "8"}, {"prompt": [ASK], "completion": [SAY]}, exact]
    found = read(*forms)
    for row in found.rows:
        assert (row.sample.token_ids, row.sample.trainable) == (expected.token_ids, expected.trainable)
        assert row.sample.spans == expected.spans
    assert [row.place for row in found.rows] == [f"data.jsonl:{number}" for number in range(1, 5)]
    assert [row.weight for row in found.rows] == [1.0] * 4


def test_weights_of_lines_and_of_messages(read):
    masked = {"messages": [ASK, {**SAY, "weight": 0}, ASK, SAY]}
    found = read({**ROW, "weight": 0.5}, {**ROW, "weight": 0}, {**ROW, "weight": None}, masked, "", "  ")
    assert [row.weight for row in found.rows] == [0.5, 1.0, 1.0]
    assert found.num_left_out == 1
    assert found.rows[2].sample.num_trainable == found.rows[0].sample.num_trainable
    assert found.rows[2].place == "data.jsonl:4"


def test_of_prompt_messages_nothing_is_trained(read):
    row = {"prompt": [ASK, SAY, ASK], "completion": "8"}
    assert read(row).rows[0].sample.num_trainable == read(ROW).rows[0].sample.num_trainable


def test_rollouts_without_tokens_are_left_out(read):
    gone = {
        "messages": [],
        "token_ids": [],
        "trainable": [],
        "weight": None,
        "missing": "its tokens are gone",
    }
    found = read(gone, ROW)
    assert (len(found.rows), found.num_left_out) == (1, 1)


def test_long_conversations_are_refused_left_out_or_cut(read):
    long = {"messages": [ASK, {"role": "assistant", "content": "8" * 30}]}
    long_prompt = {"prompt": "x" * 40, "completion": "8"}
    text = told(read, ROW, long, max_tokens=20)
    assert "data.jsonl:2: a conversation must have at most 20 tokens (got 40)" in text
    assert 'sft.too_long = "skip"' in text
    skipped = read(ROW, long, long_prompt, max_tokens=20, too_long="skip")
    assert (len(skipped.rows), skipped.num_skipped, skipped.num_cut) == (1, 2, 0)
    cut = read(ROW, long, long_prompt, max_tokens=20, too_long="cut")
    assert [len(row.sample.token_ids) for row in cut.rows] == [11, 20]
    assert (cut.num_skipped, cut.num_cut) == (1, 1)  # of the long prompt nothing trained is left
    assert "3 were too long" in told(read, *[long] * 3, max_tokens=20, too_long="skip")


def test_a_call_is_trained_with_its_answer(read, renderer):
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds."}}]
    row = {
        "messages": [ASK, asked, {"role": "tool", "content": "8", "tool_call_id": "c"}, SAY],
        "tools": tools,
    }
    (found,) = read(row, max_tokens=2000).rows
    sample = found.sample
    trained = [token for token, flag in zip(sample.token_ids, sample.trainable, strict=True) if flag]
    text = renderer.decode(trained, skip_special=False)
    assert '{"name": "add", "arguments": {"a": 3, "b": 5}}' in text
    assert "Adds." in renderer.decode(sample.token_ids)
    assert "Adds." not in text


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"messages": [', "not valid JSON: Expecting value"),
        ("[", "jq -c"),
        ("[1]", "a line must be a JSON object (got 'list'). JSONL has one object a line"),
        ({}, "a line must have messages, or prompt and completion (got [])"),
        ({"message": []}, "(got ['message']). Did you mean messages?"),
        ({"prompt": "a"}, "a line must have completion too"),
        ({"prompt": "a", "completion": 3}, "completion must be a text or a list of messages (got 3)"),
        ({"messages": []}, "messages must be a list with a message"),
        ({"messages": [ASK]}, "must have a message of the assistant: that is what is trained (got ['user'])"),
        ({"messages": ["hi", SAY]}, "message 0 must be an object with role and content"),
        ({"messages": [{"role": "user"}, SAY]}, "message 0 must have content (got ['role'])"),
        ({"messages": [{**ASK, "role": "human"}, SAY]}, "(got 'human'). Did you mean user?"),
        ({"messages": [{**ASK, "role": 3}, SAY]}, "must be one of system, user, assistant, tool (got 3)"),
        ({"messages": [{**ASK, "content": None}, SAY]}, "the content of message 0 must be a text"),
        ({"messages": [{**ASK, "content": "\ud800"}, SAY]}, "half of a"),
        ({"messages": [ASK, {**SAY, "tool_calls": [{}]}]}, "message 1 must be a list of calls with a name"),
        ({"messages": [ASK, {**SAY, "tool_calls": 3}]}, '(got \'3\'). Write {"type": "function"'),
        ({"messages": [{**ASK, "tool_calls": [CALL]}, SAY]}, "message 0 has tool_calls, which only an"),
        ({"messages": [ASK, {**SAY, "function_call": CALL}]}, "Write it as tool_calls"),
        ({**ROW, "tools": [{"name": ""}]}, "tools must be a list of functions"),
        ({"messages": [ASK, {**SAY, "weight": 0}]}, "must have a trained token"),
        ({"messages": [ASK, {**SAY, "weight": 0.5}]}, "the weight of message 1 must be 0 or 1"),
        ({"messages": [ASK, {**SAY, "content": "<|im_end|>"}]}, "may not contain <|im_end|>"),
        ({**ROW, "weight": "1"}, "weight must be a number (got '1')"),
        ({**ROW, "weight": -1}, "weight must be finite and at least 0 (got -1)"),
        ('{"messages": [], "weight": NaN}', "weight must be finite and at least 0 (got nan)"),
        ({"token_ids": [1, 2]}, "token_ids and trainable must be lists, both there"),
        ({"token_ids": [1, 2], "trainable": [0]}, "must have the same length, at least 1 (got (2, 1))"),
        (
            {"token_ids": [1, 259], "trainable": [0, 1]},
            "must be from 0 to 258, the model's vocabulary (got 259)",
        ),
        ({"token_ids": [1, 2], "trainable": [1, 1]}, "0 for the first: nothing precedes it"),
        ({"token_ids": [1, 2], "trainable": [0, 0]}, "must have a trained token"),
    ],
)
def test_a_wrong_line_is_named_with_its_remedy(read, row, message):
    text = told(read, ROW, row)
    assert message in text
    assert "data.jsonl:2: " in text


def test_many_wrong_lines_are_told_together(read, tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(*["{"] * 30)
    assert len(caught.value.problems) == MAX_PROBLEMS + 1
    assert f"{30 - MAX_PROBLEMS} more lines are wrong" in str(caught.value)


def test_files_that_hold_nothing(read, renderer, tmp_path):
    assert "must hold a conversation that can be trained" in told(read, "")
    reading = Reading("all", 64, "error", VOCAB)
    for name, message in (("no.jsonl", "must exist"), (".", "must be readable: Is a directory")):
        with pytest.raises(UserError, match=message):
            read_conversations(tmp_path / name, renderer, reading, key="sft.data")
    (tmp_path / "latin.jsonl").write_bytes(b'{"a": 1}\n"\xe9"')
    with pytest.raises(UserError, match=r"latin.jsonl:2: sft.data: the data file must be UTF-8"):
        read_conversations(tmp_path / "latin.jsonl", renderer, reading, key="sft.data")
