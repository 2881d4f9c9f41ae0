"""What a rollout said, as plain values: for the terminal, for the HTML report, for programs.

Nothing is decoded here: the caller gives a tokenizer's decode, or None where there is none any more.
Invariants: the pieces of a branch, joined, are its tokens; a piece is of one kind, one turn and one version.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.codec import to_plain
from headway.core.errors import HeadwayError
from headway.core.events import ToolEnded, TurnEnded
from headway.core.payload import Payload, read_payload
from headway.telemetry.records import Entry

if TYPE_CHECKING:
    from headway.core.records import TrainingSample
    from headway.telemetry.records import Stat
    from headway.telemetry.rollout_record import RolloutRecord

Decode = Callable[[Sequence[int]], str]
PAYLOADS = "payloads"
_SAMPLED = {"train": "trained", "eval": "sampled"}
_MAX_PARTS = 8  # tokens that one character may be spread over, as far as anybody waits for it


def fetch_payload(run: Path, record: RolloutRecord) -> Payload | str:
    """Return a rollout's payload, or in one sentence why there is none."""
    if not record.payload:
        return "it left no tokens" if record.ended_s is not None else "its tokens are written when it ends"
    name = record.payload.rsplit(":", 2)[0]
    try:
        payload = read_payload(run / PAYLOADS, record.payload)
    except (HeadwayError, ValueError, LookupError, TypeError) as error:
        if not (run / PAYLOADS / name).exists():
            return f"its tokens are gone: {PAYLOADS}/{name} was removed, by retention or by hand"
        return f"its tokens cannot be read: {error}"
    if payload.rollout != record.rollout:
        return f"its tokens are gone: {PAYLOADS}/{name} holds other rollouts now"
    return payload


def turn_details(
    journal: Iterable[Entry | Stat], records: Iterable[RolloutRecord]
) -> dict[str, list[dict[str, Any]]]:
    """Return for each rollout, in one pass over the journal, a plain TurnEnded for each answer.

    Each has `tools`, plain ToolEnded of the calls that followed it. Of the newest attempts alone.
    """
    attempts = {record.rollout: record.attempt for record in records}
    found: dict[str, dict[int, dict[str, Any]]] = {rollout: {} for rollout in attempts}
    for entry in journal:
        event = entry.event if isinstance(entry, Entry) else None
        if not isinstance(event, (TurnEnded, ToolEnded)) or attempts.get(event.rollout) != event.attempt:
            continue
        turns = found[event.rollout]
        if isinstance(event, TurnEnded):
            turns.setdefault(event.turn, {**to_plain(event), "tools": []})
        elif event.turn in turns:
            tools = turns[event.turn]["tools"]
            if event.call not in [tool["call"] for tool in tools]:
                tools.append(to_plain(event))
    return {rollout: [turns[turn] for turn in sorted(turns)] for rollout, turns in found.items()}


def transcript(
    record: RolloutRecord,
    payload: Payload | str,
    decode: Decode | None,
    turns: Sequence[dict[str, Any]] = (),
    *,
    logprobs: bool = False,
) -> dict[str, Any]:
    """Return everything about one rollout as plain values.

    Args:
        record: its record; each of its fields is a key, and `state`.
        payload: what it left, or why that is not there: then `missing` says so, else it is "".
        decode: from token ids to text, special tokens shown; None leaves every text empty.
        turns: of `turn_details`; the key `turns`.
        logprobs: give each piece of the policy's `tokens`: (text, log-prob) of each.

    Returns:
        Besides these, `messages` (role, content, ...), `outcome`, and `branches`: for each training sample
        `num_tokens`, `num_sampled_tokens`, `num_trained_tokens`, `temperature` and `pieces`. A piece has
        `kind`: `trained` (what the loss counts, or would), `sampled` (the same of an evaluation), `masked`
        (the environment and the template wrote it, or an earlier branch trains it), `left_out` (sampled, and
        too old for its step); `text`, `num_tokens`, `token_ids` where there is no text; and where the policy
        sampled it `turn`, `version` (lineage, number), `advantage`, `mean_logprob`, `min_logprob` in nats.
    """
    plain: dict[str, Any] = {**to_plain(record), "state": record.state, "turns": list(turns)}
    if isinstance(payload, str):
        return {**plain, "missing": payload, "messages": [], "outcome": {}, "branches": []}
    branches = [_branch(record, sample, decode, logprobs) for sample in payload.samples]
    return {
        **plain,
        "missing": "",
        "messages": payload.transcript,
        "outcome": payload.outcome,
        "branches": branches,
    }


def token_texts(ids: Sequence[int], decode: Decode) -> list[str]:
    """Return each token's text; of tokens that share a character, the last one has it."""
    texts: list[str] = []
    start = 0
    for end in range(1, len(ids) + 1):
        text = decode(ids[start:end])
        whole = not text.endswith("\ufffd") or end - start == _MAX_PARTS or end == len(ids)
        texts.append(text if whole else "")
        start = end if whole else start
    return texts


def token_advantages(record: RolloutRecord, sample: TrainingSample) -> array[float]:
    """Return the advantage of each token, 0 where it is not trainable; empty where none is known, [n]."""
    if record.advantage is None:
        return array("d")
    turns = iter([span.turn for span in sample.turns for _ in range(span.num_tokens)])
    return array(
        "d", [_advantage(record, next(turns, None)) or 0.0 if flag else 0.0 for flag in sample.trainable]
    )


def _branch(
    record: RolloutRecord, sample: TrainingSample, decode: Decode | None, logprobs: bool
) -> dict[str, Any]:
    pieces = [
        _piece(record, sample, start, end, mark, decode, logprobs) for start, end, mark in _cuts(sample)
    ]
    return {
        "num_tokens": len(sample.token_ids),
        "num_trained_tokens": sum(p["num_tokens"] for p in pieces if p["kind"] == "trained"),
        "num_sampled_tokens": sum(p["num_tokens"] for p in pieces if p["kind"] != "masked"),
        "temperature": sample.temperature,
        "pieces": pieces,
    }


_Mark = tuple[int | None, tuple[int, int]] | None  # (turn, version) of a trainable token, None for others


def _cuts(sample: TrainingSample) -> list[tuple[int, int, _Mark]]:
    """Return where kind, turn or version change: (start, end, mark)."""
    turns = iter([span.turn for span in sample.turns for _ in range(span.num_tokens)])
    versions = iter([(s.lineage, s.number) for s in sample.spans for _ in range(s.num_tokens)])
    marks: list[_Mark] = [
        (next(turns, None), next(versions, (-1, -1))) if flag else None for flag in sample.trainable
    ]
    cuts: list[tuple[int, int, _Mark]] = []
    start = 0
    for at in range(1, len(marks) + 1):
        if at == len(marks) or marks[at] != marks[start]:
            cuts.append((start, at, marks[start]))
            start = at
    return cuts


def _piece(
    record: RolloutRecord,
    sample: TrainingSample,
    start: int,
    end: int,
    mark: _Mark,
    decode: Decode | None,
    logprobs: bool,
) -> dict[str, Any]:
    ids = sample.token_ids[start:end]
    piece: dict[str, Any] = {
        "kind": "masked",
        "text": decode(ids) if decode is not None else "",
        "num_tokens": end - start,
    }
    if decode is None:
        piece["token_ids"] = list(ids)
    if mark is None:
        return piece
    turn, version = mark
    values = sample.logprobs[start:end]
    piece |= {
        "kind": "left_out" if version in record.masked else _SAMPLED[record.purpose],
        "turn": turn,
        "version": list(version),
        "advantage": _advantage(record, turn),
        "mean_logprob": math.fsum(values) / len(values),
        "min_logprob": min(values),
    }
    if logprobs:
        texts = token_texts(ids, decode) if decode is not None else [str(token) for token in ids]
        piece["tokens"] = list(zip(texts, values, strict=True))
    return piece


def _advantage(record: RolloutRecord, turn: int | None) -> float | None:
    if turn is not None and turn < len(record.turn_advantages):
        return record.turn_advantages[turn]
    return record.advantage
