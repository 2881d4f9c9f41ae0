"""Which tokens truncated sampling keeps.

In this order, each on what the one before it kept and on probabilities after the temperature:

- top-k: the k likeliest, and all that are as likely as the k-th.
- top-p: the fewest likeliest that have at least top_p together, and all that are as likely as the last of
  them. The likeliest always stays.
- min-p: those at least min_p times as likely as the likeliest.

So what is kept is always what reaches one bound a row, the same whatever else is in the batch. Where no two
tokens at the bound are equally likely it is what transformers' TopKLogitsWarper, TopPLogitsWarper and
MinPLogitsWarper keep one after the other.

Sorting a vocabulary is dear, so top-p looks at the likeliest few hundred first and at more only in the rows
that need it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch

_FIRST_LOOK = 256
_WIDER = 16  # each further look is at so many times as many tokens


class Cut(Protocol):
    """How one row is truncated."""

    @property
    def top_p(self) -> float:
        """1 is off."""
        ...

    @property
    def top_k(self) -> int:
        """0 is off."""
        ...

    @property
    def min_p(self) -> float:
        """0 is off."""
        ...

    @property
    def max_kept(self) -> int:
        """Most tokens that may stay, the likeliest of them, equal ones by their id; 0 is any number."""
        ...


def kept_tokens(shifted: torch.Tensor, cuts: Sequence[Cut]) -> torch.Tensor:
    """Return which tokens stay.

    Args:
        shifted: logits less the row's largest, f32 [rows, vocab]. In a row with NaN nothing is kept.
        cuts: one a row.

    Returns:
        bool [rows, vocab]
    """
    device, vocab = shifted.device, shifted.shape[1]
    # What is impossible is never kept.
    least = torch.full((len(cuts),), torch.finfo(shifted.dtype).min, dtype=shifted.dtype, device=device)
    least = least.where(shifted[:, 0] == shifted[:, 0], torch.nan)
    ks = [min(cut.top_k, vocab) or vocab for cut in cuts]
    narrow = [k for k in ks if k < vocab]
    by_p = [row for row, cut in enumerate(cuts) if cut.top_p < 1.0]
    if narrow or by_p:
        width = min(vocab, max([_FIRST_LOOK if by_p else 1, *narrow]))
        values = shifted.topk(width).values
        if narrow:
            last = torch.tensor([min(k, width) - 1 for k in ks], device=device)
            kth = values.gather(1, last[:, None]).squeeze(1)
            least = torch.where(torch.tensor([k < vocab for k in ks], device=device), kth.fmax(least), least)
        if by_p:
            rows = torch.tensor(by_p, device=device)
            shares = torch.tensor([cuts[row].top_p for row in by_p], dtype=torch.float64, device=device)
            least[rows] = _nucleus(shifted, rows, shares, least, values)
    floors = [math.log(cut.min_p) if cut.min_p else -math.inf for cut in cuts]
    least = torch.maximum(least, torch.tensor(floors, dtype=shifted.dtype, device=device))
    keep = shifted >= least[:, None]
    if any(cut.max_kept for cut in cuts):
        most = torch.tensor([cut.max_kept or vocab for cut in cuts], device=device)
        for row in (keep.sum(-1) > most).nonzero().flatten().tolist():
            order = shifted[row].masked_fill(~keep[row], -math.inf).sort(descending=True, stable=True).indices
            keep[row] = False
            keep[row, order[: cuts[row].max_kept]] = True
    return keep


def _nucleus(
    shifted: torch.Tensor,
    rows: torch.Tensor,
    shares: torch.Tensor,
    least: torch.Tensor,
    values: torch.Tensor,
) -> torch.Tensor:
    """Return what the likelihoods of these rows must reach, [len(rows)]; `values` are their largest."""
    begun = least[rows]
    found = begun.clone()
    whole = len(rows) == len(shifted)
    part = shifted if whole else shifted[rows]
    total = part.exp().masked_fill_(part < begun[:, None], 0).sum(-1, dtype=torch.float64)
    wanted = shares * total
    left = torch.arange(len(rows), device=shifted.device)
    top = values if whole else values[rows]
    while True:
        mass = top.exp()
        before = mass.cumsum(-1, dtype=torch.float64) - mass
        count = (before < wanted[left, None]).sum(-1).clamp_(min=1)
        bound = top.gather(1, count[:, None] - 1).squeeze(1)
        found[left] = torch.maximum(begun[left], bound)  # too high where more must be looked at
        width = top.shape[1]
        left = left[count == width] if width < part.shape[1] else left[:0]
        if not len(left):
            return found
        width = min(part.shape[1], width * _WIDER)
        # Beyond a few thousand a full sort is the faster of the two.
        more = part[left]
        top = more.topk(width).values if width < part.shape[1] else more.sort(descending=True).values
