"""The rows of a supervised run: its conversations as payloads, and an index of them.

They are written once, before the first step, so that every life trains the tokens that the run began with,
whatever becomes of the data files. Invariant: the index is there only when every payload that it names is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headway.core.commands import Row
from headway.core.errors import RunDirectoryError
from headway.core.payload import Payload, PayloadWriter
from headway.runtime.job import payload_dir

if TYPE_CHECKING:
    from pathlib import Path

    from headway.trainer.conversations import Conversation

INDEX = "rows.json"
SPLITS = ("train", "eval")


class SftRow(NamedTuple):
    """One conversation that is stored."""

    place: str  # file:line
    payload: str
    num_tokens: int
    num_trained_tokens: int
    weight: float

    @property
    def row(self) -> Row:
        """The same as the trainer takes it; every conversation is a group of its own."""
        return Row(self.place, self.place, self.payload, 1.0, self.weight)


@dataclass(slots=True)
class SftRows:
    """What a run trains and evaluates."""

    train: list[SftRow] = field(default_factory=list[SftRow])
    eval: list[SftRow] = field(default_factory=list[SftRow])


def store_rows(run_dir: Path, train: list[Conversation], evaluate: list[Conversation]) -> SftRows:
    """Write the rows of a new run."""
    folder, rows = payload_dir(run_dir), SftRows()
    for split, conversations in zip(SPLITS, (train, evaluate), strict=True):
        writer, stored = PayloadWriter(folder, f"sft-{split}"), getattr(rows, split)
        for index, (place, sample, weight) in enumerate(conversations):
            name = f"{split}/{index}"
            reference = writer.append(Payload(name, place, [sample], {}))
            num_tokens = len(sample.token_ids)
            stored.append(SftRow(place, reference, num_tokens, sample.num_trainable, weight))
        writer.sync()
        writer.close()
    index = {split: getattr(rows, split) for split in SPLITS}
    temporary = folder / f"{INDEX}.new"
    temporary.write_text(json.dumps(index), encoding="utf-8")
    temporary.replace(folder / INDEX)
    return rows


def load_rows(run_dir: Path) -> SftRows:
    """Return the rows of a run; RunDirectoryError when they are not there."""
    path = payload_dir(run_dir) / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        return SftRows(*([SftRow(*entry) for entry in index[split]] for split in SPLITS))
    except (OSError, ValueError, KeyError, TypeError) as error:
        rule = f"{path} must hold the run's conversations: {error}"
        raise RunDirectoryError(rule, remedy="Restore payloads/ from a copy, or begin a new run") from error
