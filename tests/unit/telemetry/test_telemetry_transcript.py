"""Transcripts: what a branch is cut into, what is said of what is missing, what a terminal gets."""

from array import array

import pytest
from tests.unit.telemetry.rollout_parts import payload, record, sample

from headway.core import events
from headway.core.payload import Payload, PayloadWriter
from headway.telemetry.records import Entry
from headway.telemetry.transcript import (
    fetch_payload,
    token_advantages,
    token_texts,
    transcript,
    turn_details,
)
from headway.telemetry.transcript_text import MAX_PIECE, TranscriptWriter
from headway.telemetry.visible import cut_middle, short_line, visible, visible_line

F32 = array("f", [-0.1, -4.25, -1 / 3, -1e-7])


def decode(ids):
    return "".join(f"<{token}>" for token in ids)


def shown(item, *, marks=True, full=False, width=100):
    return [line.plain for line in TranscriptWriter(marks=marks, full=full, width=width).lines(item)]


def test_a_branch_is_cut_by_kind_turn_and_version():
    first, second = transcript(record(), payload(), decode)["branches"]
    assert (first["num_tokens"], first["num_sampled_tokens"], first["num_trained_tokens"]) == (7, 4, 3)
    assert first["temperature"] == 0.7
    of = ("kind", "text", "num_tokens", "turn", "version", "advantage")
    assert [tuple(piece.get(key) for key in of) for piece in first["pieces"]] == [
        ("masked", "<10><11>", 2, None, None, None),
        ("left_out", "<20>", 1, 0, [0, 3], 1.0),
        ("trained", "<21>", 1, 0, [1, 4], 1.0),
        ("masked", "<12>", 1, None, None, None),
        ("trained", "<22><23>", 2, 1, [1, 4], 2.0),
    ]
    assert [tuple(piece.get(key) for key in of) for piece in second["pieces"]] == [
        ("masked", "<10><11><20><21><13>", 5, None, None, None),  # the first branch trains turn 0
        ("trained", "<24>", 1, 2, [1, 4], -3.0),
    ]


def test_logprobs_of_pieces_and_tokens():
    pieces = transcript(record(), payload(), decode, logprobs=True)["branches"][0]["pieces"]
    assert [piece["mean_logprob"] for piece in pieces[1:3]] == [F32[0], F32[1]]
    assert pieces[4]["mean_logprob"] == pytest.approx((F32[2] + F32[3]) / 2)
    assert pieces[4]["min_logprob"] == F32[2]
    assert pieces[4]["tokens"] == [("<22>", F32[2]), ("<23>", F32[3])]
    assert "tokens" not in pieces[0]
    assert "tokens" not in transcript(record(), payload(), decode)["branches"][0]["pieces"][4]


def test_what_an_evaluation_sampled_is_not_called_trained():
    item = transcript(record(purpose="eval", step=None, masked=(), advantage=None), payload(), decode)
    assert {piece["kind"] for branch in item["branches"] for piece in branch["pieces"]} == {
        "masked",
        "sampled",
    }
    assert item["branches"][0]["num_trained_tokens"] == 0
    assert shown(item)[-1] == "--- 1 of 6 tokens were sampled ---"


def test_the_group_advantage_holds_where_turns_have_none():
    piece = transcript(record(turn_advantages=()), payload(), decode)["branches"][0]["pieces"][4]
    assert piece["advantage"] == 1.5
    first = payload().samples[0]
    assert list(token_advantages(record(turn_advantages=()), first)) == [0, 0, 1.5, 1.5, 0, 1.5, 1.5]
    assert list(token_advantages(record(), first)) == [0, 0, 1, 1, 0, 2, 2]
    assert list(token_advantages(record(advantage=None, turn_advantages=()), first)) == []


def test_a_character_of_several_tokens_is_with_the_last():
    ids = "aé漢b".encode()
    assert token_texts(ids, lambda part: bytes(part).decode(errors="replace")) == [
        "a",
        "",
        "é",
        "",
        "",
        "漢",
        "b",
    ]
    assert token_texts(b"\xc3", lambda part: bytes(part).decode(errors="replace")) == ["\ufffd"]


def test_turns_and_tools_come_from_the_journal():
    def turn(attempt, index):
        return events.TurnEnded("t0.0", attempt, index, "g0", (), 4, 6, 0.0, 0.1, 0.2, "length")

    def tool(index, call):
        return events.ToolEnded("t0.0", 1, index, call, 0.5, "exit")

    journal = [turn(0, 0), turn(1, 0), tool(0, 0), tool(0, 0), turn(1, 1), tool(1, 1)]
    found = turn_details([Entry(seq, 0.0, event) for seq, event in enumerate(journal)], [record()])
    assert [(item["turn"], [call["call"] for call in item["tools"]]) for item in found["t0.0"]] == [
        (0, [0]),
        (1, [1]),
    ]
    assert found["t0.0"][0]["finish"] == "length"


# --- what may be missing


def stored(tmp_path, what):
    (tmp_path / "payloads").mkdir()
    writer = PayloadWriter(tmp_path / "payloads", "f.bin")
    reference = writer.append(what)
    writer.close()
    return reference


def test_a_payload_that_is_there(tmp_path):
    reference = stored(tmp_path, payload())
    assert fetch_payload(tmp_path, record(payload=reference)) == payload()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            lambda file: file.unlink(),
            "its tokens are gone: payloads/f.bin was removed, by retention or by hand",
        ),
        (lambda file: file.write_bytes(file.read_bytes()[:40]), "its tokens cannot be read: "),
        (lambda file: file.write_bytes(b"\x05" * file.stat().st_size), "its tokens cannot be read: "),
        (
            lambda file: file.write_bytes(file.read_bytes().replace(b'"t0.0"', b'"t9.9"')),
            "its tokens are gone: payloads/f.bin holds other rollouts now",
        ),
    ],
)
def test_a_payload_that_is_gone_says_why(tmp_path, damage, reason):
    reference = stored(tmp_path, payload())
    damage(tmp_path / "payloads" / "f.bin")
    found = fetch_payload(tmp_path, record(payload=reference))
    assert isinstance(found, str)
    assert found.startswith(reason)
    item = transcript(record(payload=reference), found, decode)
    assert item["branches"] == []
    assert f"  {found}"[:60] in "\n".join(shown(item))


def test_a_rollout_without_a_payload_says_so(tmp_path):
    assert fetch_payload(tmp_path, record(payload="")) == "it left no tokens"
    running = record(payload="", fate=None, ended_s=None, reward=None, step=None)
    assert fetch_payload(tmp_path, running) == "its tokens are written when it ends"


def test_without_a_tokenizer_there_are_messages_and_ids():
    item = {**transcript(record(), payload(), None), "undecoded": "the tokenizer is not on this machine"}
    lines = shown(item)
    assert "  the tokenizer is not on this machine; its messages, and its tokens by their ids:" in lines
    assert lines[lines.index("--- user ---") + 1] == "5+3="
    assert "[[22 23]]" in lines
    assert item["branches"][0]["pieces"][4]["token_ids"] == [22, 23]


# --- as text

TEXT = """\
rollout t0.0 of group t0: train task train/7, level 3
  trained in step 6; staleness token 1, trajectory 3; weight 0.8; 1 token left out for their age; \
versions 3 to 4 of lineage 1; attempt 2
  reward 0.5: close (near 0.25)
  rewards of its turns: 0.1, 0.2, 0.3
  advantage +1.5; of its turns +1, +2, -3
  4 prompt tokens, 5 sampled, 3 turns, 1 tool call, truncated
  time 4.00s: queue 1.00s, decode 2.50s, tool 0.50s
  attempt 1 failed (environment, exception, retried): it broke
=== branch 1 of 2 ===
--- masked, 2 tokens ---
<10><11>
--- turn 1, left out for its age, 1 token, version 3, log-prob mean -0.10, lowest -0.10, advantage +1 ---
((<20>))
--- turn 1, trained, 1 token, version 4 of lineage 1, log-prob mean -4.25, lowest -4.25, advantage +1 ---
[[<21>]]
[the answer ended by length]
[tool call 1: exit after 0.50s]
--- masked, 1 token ---
<12>
--- turn 2, trained, 2 tokens, version 4 of lineage 1, log-prob mean -0.17, lowest -0.33, advantage +2 ---
[[<22><23>]]
--- 3 of 7 tokens were trained ---"""


def turns():
    plain = {"finish": "stop", "tools": []}
    tool = {"call": 0, "duration_s": 0.5, "cause": "exit"}
    return [{"turn": 0, "finish": "length", "tools": [tool]}, {"turn": 1, **plain}, {"turn": 2, **plain}]


def test_a_transcript_in_marks():
    lines = shown(transcript(record(), payload(), decode, turns()))
    assert "\n".join(lines[: TEXT.count("\n") + 1]) == TEXT


def test_unlikely_tokens_stand_out():
    item = transcript(record(), payload(), decode, turns(), logprobs=True)
    assert 'log-probs:  "<21>" -4.25!' in shown(item)
    assert 'log-probs:  "<22>" -0.33  "<23>" 0.00' in shown(item)
    coloured = list(TranscriptWriter(marks=False).lines(item))
    (line,) = [line for line in coloured if "-4.25" in line.plain and "log-probs" in line.plain]
    assert [str(span.style) for span in line.spans] == ["bold red not dim"]
    assert "[[" not in "".join(line.plain for line in coloured)


def test_rows_of_logprobs_keep_to_the_width():
    one = sample(range(60), [0] + [1] * 59, [0] + [-0.5] * 59, [(0, 0, 59)], [(0, 59)])
    item = transcript(record(masked=()), Payload("t0.0", "x", [one], {}), decode, logprobs=True)
    (line,) = [line for line in shown(item, width=60) if line.startswith("log-probs")]
    assert max(map(len, line.splitlines())) <= 60
    assert line.count("-0.50") == 59


def test_long_text_is_cut_in_its_middle_unless_all_is_asked_for():
    text = "".join(f"line {number}\n" for number in range(1000))
    one = sample([1, 2], [0, 1], [0, -1.0], [(0, 0, 1)], [(0, 1)])
    item = transcript(record(masked=()), Payload("t0.0", "x", [one], {}), lambda _: text)
    (cut,) = [line for line in shown(item) if line.startswith("[[line 0")]
    assert len(cut) < MAX_PIECE + 200
    assert f"of {len(text):,} characters left out; --full shows them ...]" in cut
    assert cut.endswith("line 999\n]]")
    assert f"[[{text}]]" in shown(item, full=True)


def test_a_prompt_that_was_shown_is_not_shown_again():
    writer = TranscriptWriter(marks=True)
    one = sample([1, 2], [0, 1], [0, -1.0], [(0, 0, 1)], [(0, 1)])
    lines = [
        line.plain
        for name in ("t0.0", "t0.1")
        for line in writer.lines(
            transcript(record(rollout=name, masked=()), Payload(name, "x", [one], {}), decode)
        )
    ]
    assert lines.count("<1>") == 1
    assert lines.count("[as for rollout t0.0 above; --full shows them]") == 1


@pytest.mark.parametrize("full", [True, False])
def test_what_a_terminal_would_obey_is_escaped_everywhere(full):
    """A model, a task or a program that writes control sequences cannot touch the terminal of who looks."""
    evil = "\x1b[2J\x1b]0;title\x07\x9b31m\r\b\u202e\ud800"
    hostile = record(
        task_id=evil,
        reason=evil,
        reasons=(evil,),
        reward_metrics={evil: 1.0},
        source=evil,
        masked=(),
        failures=(record().failures[0].__class__(0, "environment", evil, evil, False),),
        audit=evil,
    )
    what = payload()
    what.transcript[0]["content"] = what.transcript[0]["role"] = evil
    tool = {"turn": 0, "finish": evil, "tools": [{"call": 0, "duration_s": 0.1, "cause": evil}]}
    for missing in ("", evil):
        for decoder in (lambda _: evil, None):
            item = transcript(hostile, missing or what, decoder, [tool], logprobs=True)
            text = "\n".join(shown({**item, "undecoded": "" if decoder else evil}, full=full))
            assert text == visible(text)
            assert "\\x1b[2J" in text


def test_harmless_text_stays_as_it_is():
    text = "Grüße, 漢字, עברית, 👩‍👩‍👧, tab\tand\nline"
    assert visible(text) == text
    assert visible_line("a\nb") == "a\\nb"
    assert visible("\x00\x1b\r\x9f\u2028") == "\\0\\x1b\\r\\x9f\\u2028"


def test_cutting():
    assert cut_middle("short", 10, "more") == ("short", "", "")
    head, note, tail = cut_middle("x" * 100, 30, "more")
    assert (len(head), len(tail)) == (20, 10)
    assert note == "[... 70 of 100 characters left out; more ...]"
    assert short_line("0123456789", 7) == "012…789"
    assert short_line("0123456", 7) == "0123456"
