"""The ids that truncated sampling drew the trained tokens from, as the output layer needs them.

For a chunk of tokens the output layer is cut down to the ids that any of them kept, and each token hides the
columns that it did not keep. When a token of the chunk was not truncated, all columns stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy
import torch
from torch import Tensor

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from headway.core.kept import Kept

# Above this share of the vocabulary, gathering the rows of the output layer costs more than it spares.
_MOST_GATHERED = 0.5


class KeptIds(NamedTuple):
    """Of t tokens."""

    counts: Tensor  # 0 for the whole vocabulary, [t]
    starts: Tensor  # where a token's ids begin, [t]
    ids: Tensor  # [sum of counts]


def kept_ids(parts: Sequence[Kept | None], lengths: Sequence[int]) -> KeptIds | None:
    """Join what sequences kept, each of so many tokens; None when none of them was truncated."""
    if not any(part is not None and len(part.ids) for part in parts):
        return None
    counts = torch.cat(
        [
            torch.zeros(length, dtype=torch.int64) if part is None else _values(part.counts)
            for part, length in zip(parts, lengths, strict=True)
        ]
    )
    ids = torch.cat([_values(part.ids) for part in parts if part is not None and len(part.ids)])
    return KeptIds(counts, counts.cumsum(0) - counts, ids)


def _values(values: array[int]) -> Tensor:
    return torch.tensor(numpy.array(values), dtype=torch.int64)


@dataclass(slots=True)
class Support:
    """Columns of the output layer for some tokens."""

    weight: Tensor  # rows of the output layer, [c, h]
    targets: Tensor  # column of each token's target, [m]
    outside: Tensor | None  # columns that a token did not keep, bool, [m, c]; None when each has all
    columns: Tensor | None  # ids of the columns, rising, [c]; None for the whole vocabulary

    @staticmethod
    def of(weight: Tensor, targets: Tensor, kept: KeptIds | None, part: slice) -> Support:
        """Return what the tokens of `part` need, whose targets these are."""
        counts = kept.counts[part] if kept is not None else targets.new_zeros(1)
        if kept is None or not counts.any():
            return Support(weight, targets, None, None)
        start = int(kept.starts[part][0])
        ids = kept.ids[start : start + int(counts.sum())]
        rows = torch.arange(len(targets)).repeat_interleave(counts)
        chosen, at = ids.unique(return_inverse=True)
        if counts.all() and len(chosen) <= _MOST_GATHERED * len(weight):
            outside = torch.ones(len(targets), len(chosen), dtype=torch.bool)
            outside[rows, at] = False
            return Support(weight[chosen], torch.searchsorted(chosen, targets), outside, chosen)
        outside = torch.ones(len(targets), len(weight), dtype=torch.bool)
        outside[rows, ids] = False
        outside[counts == 0] = False
        return Support(weight, targets, outside, None)

    def add_weight_grad(self, weight_grad: Tensor, logits_grad: Tensor, hidden: Tensor) -> None:
        """Add the output layer's gradient of these tokens, [v, h], in place."""
        if self.columns is None:
            weight_grad.addmm_(logits_grad.T, hidden)
        else:
            weight_grad.index_add_(0, self.columns, logits_grad.T @ hidden)
