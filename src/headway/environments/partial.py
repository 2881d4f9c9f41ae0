"""A rollout that is not finished, on disk: what another life, or another worker, goes on from.

It is a payload like any other: one sample a turn, the unfinished answer's last, with its ids, log-probs and
spans; the outcome holds the record (record.py). So a reference to it resolves like one to a finished rollout.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.core.codec import from_plain, to_plain
from headway.core.errors import HeadwayError
from headway.core.kept import Kept
from headway.core.payload import Payload, PayloadWriter, read_payload
from headway.core.records import FLAGS, FLOATS, TOKENS, Message, Stream, TrainingSample, Turn, VersionSpan
from headway.environments.answer import Answer
from headway.environments.faults import PayloadError
from headway.environments.record import Record

_FORMAT = 1


@dataclass(slots=True)
class Partial:
    """What is known of an unfinished rollout."""

    record: Record
    turns: list[Turn]  # a chain
    unfinished: Answer | None
    num_answers: int  # that the engine ended, failed ones included


def write_partial(partial: Partial, rollout: str, task_id: str, payloads: PayloadWriter) -> str:
    """Append it to the payloads and return its reference.

    Raises DiskFullError when there is no room for it, PayloadError when it cannot be written otherwise.
    """
    turns = [
        _sample(turn.prompt_ids, turn.token_ids, turn.logprobs, turn.spans, turn.temperature, turn.streams)
        for turn in partial.turns
    ]
    outcome: dict[str, Any] = {
        "partial": _FORMAT,
        "record": partial.record.to_plain(),
        "finish": [turn.finish for turn in partial.turns],
        "num_answers": partial.num_answers,
        "unfinished": None,
    }
    if (answer := partial.unfinished) is not None:
        outcome["unfinished"] = {
            "messages": to_plain(answer.messages),
            "cap": answer.cap,
            "budget": answer.budget,
            "num_parts": answer.num_parts,
        }
        streams = answer.kept.streams() if answer.kept else None
        turns.append(_sample(answer.prompt, answer.ids, answer.logprobs, answer.spans, 0.0, streams))
    try:
        return payloads.append(Payload(rollout, task_id, turns, outcome), parked=True)
    except OSError as error:
        raise PayloadError(f"a parked rollout could not be written: {error}") from error


def read_partial(directory: Path, reference: str) -> Partial:
    """Fetch what a parked rollout left.

    Raises PayloadError when the reference does not resolve to one.
    """
    try:
        payload = read_payload(directory, reference)
    except HeadwayError as error:
        raise PayloadError(error.rule) from error
    plain = payload.outcome
    if plain.get("partial") != _FORMAT:
        raise PayloadError("a rollout can only go on from a parked one's payload", value=reference)
    samples = list(payload.samples)
    unfinished = (
        None if plain["unfinished"] is None else _answer(samples.pop(), plain["unfinished"], len(samples) - 1)
    )
    turns = [
        _turn(index - 1, sample, finish)
        for index, (sample, finish) in enumerate(zip(samples, plain["finish"], strict=True))
    ]
    return Partial(Record.from_plain(plain["record"]), turns, unfinished, plain["num_answers"])


def _sample(
    prompt: array[int],
    ids: array[int],
    logprobs: array[float],
    spans: list[VersionSpan],
    temperature: float,
    streams: dict[str, Stream] | None = None,
) -> TrainingSample:
    num_prompt = len(prompt)
    return TrainingSample(
        prompt + ids,
        array(FLAGS, [0] * num_prompt + [1] * len(ids)),
        array(FLOATS, [0.0] * num_prompt) + logprobs,
        spans,
        temperature,
        streams or {},
    )


def _split(sample: TrainingSample) -> tuple[array[int], array[int], array[float]]:
    num_prompt = len(sample.token_ids) - sample.num_trainable
    ids = sample.token_ids
    return ids[:num_prompt], ids[num_prompt:], sample.logprobs[num_prompt:]


def _turn(parent: int, sample: TrainingSample, finish: Any) -> Turn:
    prompt, ids, logprobs = _split(sample)
    assert ids.typecode == TOKENS
    return Turn(parent, prompt, ids, logprobs, sample.spans, finish, sample.temperature, sample.streams)


def _answer(sample: TrainingSample, plain: dict[str, Any], parent: int) -> Answer:
    prompt, ids, logprobs = _split(sample)
    return Answer(
        messages=from_plain(list[Message], plain["messages"]),
        cap=plain["cap"],
        prompt=prompt,
        budget=plain["budget"],
        parent=parent,
        ids=ids,
        logprobs=logprobs,
        spans=sample.spans,
        num_parts=plain["num_parts"],
        kept=Kept.of(sample.streams),
    )
