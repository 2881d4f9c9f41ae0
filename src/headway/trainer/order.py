"""Which rows of a data set each optimizer step trains. No torch.

Invariant: a step's rows follow from the settings, the seed and the rows' lengths alone, so a run that was
broken off goes on with the same rows, and its position in the data is its number of steps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Batch(NamedTuple):
    """The rows of one step."""

    rows: list[int]  # indices into the data
    epochs: float  # how often the data was gone through, this batch included


@dataclass(frozen=True, slots=True)
class Order:
    """How a data set is gone through.

    Attributes:
        lengths: tokens of each row.
        seed: of the shuffling.
        shuffle: another order in each epoch, or the file's.
        batch_size: rows in a step.
        batch_tokens: most tokens in a step, in place of batch_size; 0 goes by that.
    """

    lengths: Sequence[int]
    seed: int
    shuffle: bool
    batch_size: int
    batch_tokens: int = 0

    def epoch(self, epoch: int) -> list[list[int]]:
        """Return the batches of an epoch, from 0 on; the last one may be smaller."""
        order = list(range(len(self.lengths)))
        if self.shuffle:
            random.Random(f"epoch {epoch} of seed {self.seed}").shuffle(order)
        if not self.batch_tokens:
            return [order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size)]
        batches: list[list[int]] = []
        room = 0
        for row in order:
            if not batches or self.lengths[row] > room:
                batches.append([])
                room = self.batch_tokens
            batches[-1].append(row)
            room -= self.lengths[row]
        return batches

    def num_steps(self, epochs: int) -> int:
        """Return the steps of so many epochs."""
        if not (self.batch_tokens and self.shuffle):
            return epochs * len(self.epoch(0))
        return sum(len(self.epoch(epoch)) for epoch in range(epochs))

    def batches(self, after: int = 0) -> Iterator[Batch]:
        """Yield batches without end, those of the first `after` steps left out."""
        epoch, step = 0, 0
        while True:
            batches, done = self.epoch(epoch), 0
            for rows in batches:
                done += len(rows)
                step += 1
                if step > after:
                    yield Batch(rows, epoch + done / len(self.lengths))
            epoch += 1
