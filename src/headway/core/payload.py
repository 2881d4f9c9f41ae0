"""The payload store: append-only files that hold each finished rollout's tokens, in segments (segments.py).

A worker appends a record and gets a reference (`file:offset:length`); it tells the driver the reference in
RolloutEnded, after the record is written, so that a reference in the journal always resolves. A torn tail
after a crash belongs to no reference and is harmless. Readers fetch by reference; no batch passes through
the driver.

Record: 8 bytes little-endian length of a JSON head, the head, then the arrays that it lists, back to back.
"""

from __future__ import annotations

import json
import os
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headway.core.codec import from_plain
from headway.core.errors import HeadwayError
from headway.core.records import FLAGS, FLOATS, TOKENS, Stream, TrainingSample, TurnSpan, VersionSpan
from headway.core.storage import append_whole, disk_full, is_full

if TYPE_CHECKING:
    from io import FileIO

_MAX_OPEN = 8  # files that a writer holds open beside those that are not synced


@dataclass(slots=True)
class Payload:
    """Everything that a rollout leaves behind."""

    rollout: str
    task_id: str
    samples: list[TrainingSample]  # one a branch of the turn tree
    outcome: dict[str, Any]  # what the verifier gets
    transcript: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])  # messages, for people


class PayloadWriter:
    """Appends payloads to files of its own. Not shared between processes; `sync` may run in another thread.

    Args:
        directory: of the store.
        name: the file that all payloads go to without `segment`.
        segment: (rollout, whether it is parked) in, the file for its payload out.
    """

    def __init__(self, directory: Path, name: str, segment: Callable[[str, bool], str] | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._name = name
        self._segment = segment
        self._lock = threading.Lock()
        self._files: dict[str, FileIO] = {}  # least recently written first
        self._unsynced: set[str] = set()

    def append(self, payload: Payload, *, parked: bool = False) -> str:
        """Write one payload, whole or not at all, and return its reference.

        Raises DiskFullError when there is no room for it, OSError when it cannot be written otherwise.
        """
        record = _encode(payload)
        name = self._name if self._segment is None else self._segment(payload.rollout, parked)
        with self._lock:
            offset = self._write(name, record)
        return f"{name}:{offset}:{len(record)}"

    def sync(self) -> None:
        """Make everything written so far survive a power cut."""
        with self._lock:
            handles = [os.dup(self._files[name].fileno()) for name in self._unsynced]
            self._unsynced.clear()
        try:
            for handle in handles:
                os.fsync(handle)
        finally:
            for handle in handles:
                os.close(handle)

    def close(self) -> None:
        """Close the files."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()
            self._unsynced.clear()

    def _write(self, name: str, record: bytes) -> int:
        try:
            file = self._open(name)
            offset = file.seek(0, os.SEEK_END)
            append_whole(file, record)
        except OSError as error:
            if is_full(error):
                raise disk_full(self._directory / name, len(record), error) from error
            raise
        self._unsynced.add(name)
        return offset

    def _open(self, name: str) -> FileIO:
        file = self._files.pop(name, None)
        if file is None:
            file = (self._directory / name).open("ab", buffering=0)
            synced = [old for old in self._files if old not in self._unsynced]
            for old in synced[: max(0, len(self._files) + 1 - _MAX_OPEN)]:
                self._files.pop(old).close()
        self._files[name] = file
        return file


def split_reference(reference: str) -> tuple[str, int, int]:
    """Return a reference's file name, offset and length, bytes."""
    name, offset, length = reference.rsplit(":", 2)
    return name, int(offset), int(length)


def read_payload(directory: Path, reference: str) -> Payload:
    """Fetch one payload.

    Raises HeadwayError when the reference does not resolve.
    """
    name, offset, length = split_reference(reference)
    try:
        with (directory / name).open("rb") as file:
            file.seek(offset)
            record = file.read(length)
    except FileNotFoundError as error:
        rule = f"payload {reference} must be there: its file is gone, as retention says or by hand"
        raise HeadwayError(rule, remedy="[retention] says which rollouts are kept for looking at") from error
    except OSError as error:
        raise HeadwayError(f"payload {reference} cannot be read: {error}") from error
    if len(record) != length:
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
