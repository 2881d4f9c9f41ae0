"""The payload store: append-only files that hold each finished rollout's tokens.

A worker appends a record and gets a reference (`file:offset:length`); it tells the driver the reference in
RolloutEnded, after the record is written, so that a reference in the journal always resolves. A torn tail
after a crash belongs to no reference and is harmless. Readers fetch by reference; no batch passes through
the driver.

Record: 8 bytes little-endian length of a JSON head, the head, then the arrays that it lists, back to back.
"""

from __future__ import annotations

import json
import os
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from headway.core.codec import from_plain
from headway.core.errors import HeadwayError
from headway.core.records import FLAGS, FLOATS, TOKENS, Stream, TrainingSample, TurnSpan, VersionSpan


@dataclass(slots=True)
class Payload:
    """Everything that a rollout leaves behind."""

    rollout: str
    task_id: str
    samples: list[TrainingSample]  # one a branch of the turn tree
    outcome: dict[str, Any]  # what the verifier gets
    transcript: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # messages, for people


class PayloadWriter:
    """Appends payloads to one file of its own. Not shared between processes."""

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._name = name
        self._file = (directory / name).open("ab")
        self._unsynced = False

    def append(self, payload: Payload) -> str:
        """Write one payload and return its reference."""
        record = _encode(payload)
        offset = self._file.tell()
        self._file.write(record)
        self._file.flush()
        self._unsynced = True
        return f"{self._name}:{offset}:{len(record)}"

    def sync(self) -> None:
        """Make everything written so far survive a power cut."""
        if self._unsynced:
            self._unsynced = False
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_payload(directory: Path, reference: str) -> Payload:
    """Fetch one payload.

    Raises HeadwayError when the reference does not resolve.
    """
    name, offset, length = reference.rsplit(":", 2)
    try:
        with (directory / name).open("rb") as file:
            file.seek(int(offset))
            record = file.read(int(length))
    except OSError as error:
        raise HeadwayError(f"payload {reference} cannot be read: {error}") from error
    if len(record) != int(length):
        raise HeadwayError(f"payload {reference} is cut short: {len(record)} of {length} bytes")
    return _decode(record)


def _encode(payload: Payload) -> bytes:
    blobs: list[bytes] = []
    samples: list[dict[str, Any]] = []
    for sample in payload.samples:
        blobs += [sample.token_ids.tobytes(), sample.trainable.tobytes(), sample.logprobs.tobytes()]
        streams: dict[str, Any] = {}
        for name, stream in sample.streams.items():
            blobs.append(stream.data)
            streams[name] = [stream.axis, stream.dtype, list(stream.shape), len(stream.data)]
        samples.append(
            {
                "n": len(sample.token_ids),
                "spans": [list(span) for span in sample.spans],
                "turns": [list(turn) for turn in sample.turns],
                "temperature": sample.temperature,
                "streams": streams,
            }
        )
    head = json.dumps(
        {
            "rollout": payload.rollout,
            "task_id": payload.task_id,
            "samples": samples,
            "outcome": payload.outcome,
            "transcript": payload.transcript,
        }
    ).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *blobs])


def _decode(record: bytes) -> Payload:
    head_length = int.from_bytes(record[:8], "little")
    head = json.loads(record[8 : 8 + head_length])
    view = memoryview(record)
    at = 8 + head_length

    def take(typecode: str, count: int) -> array[Any]:
        nonlocal at
        values: array[Any] = array(typecode)
        size = values.itemsize * count
        values.frombytes(view[at : at + size])
        at += size
        return values

    samples: list[TrainingSample] = []
    for entry in cast("list[dict[str, Any]]", head["samples"]):
        count = entry["n"]
        token_ids, trainable, logprobs = take(TOKENS, count), take(FLAGS, count), take(FLOATS, count)
        streams: dict[str, Stream] = {}
        for name, (axis, dtype, shape, size) in entry["streams"].items():
            streams[name] = Stream(axis, dtype, tuple(shape), bytes(view[at : at + size]))
            at += size
        spans = from_plain(list[VersionSpan], entry["spans"])
        turns = from_plain(list[TurnSpan], entry["turns"])
        temperature = entry["temperature"]
        samples.append(TrainingSample(token_ids, trainable, logprobs, spans, temperature, streams, turns))
    return Payload(head["rollout"], head["task_id"], samples, head["outcome"], head["transcript"])
