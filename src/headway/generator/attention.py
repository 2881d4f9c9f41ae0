"""Attention of many contexts, of which some begin with the same tokens.

The KV of a shared prefix is read once for all queries that see it: they attend to it together, each then to
what follows, and two results merge exactly by the log-sum-exp of their scores,

    out = a + (b - a) * sigmoid(lse_b - lse_a),    lse = log(exp(lse_a) + exp(lse_b))

(the online softmax of Milakov and Gimelshein 2018, taken over parts of the context).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import functional

Shared = tuple[tuple[int, int], ...]
"""Slot and number of tokens of each part that a context begins with."""


class Level(NamedTuple):
    """Contexts that have this many parts or more, and which slot each has there."""

    rows: torch.Tensor  # int64, those of one slot side by side
    parts: list[tuple[int, int, int]]  # slot, tokens, rows


def levels_of(contexts: Sequence[Shared], device: torch.device) -> list[Level]:
    """Return which rows attend to which shared parts."""
    found: list[Level] = []
    for depth in range(max(map(len, contexts), default=0)):
        by_part: dict[tuple[int, int], list[int]] = {}
        for row, parts in enumerate(contexts):
            if depth < len(parts):
                by_part.setdefault(parts[depth], []).append(row)
        rows = [row for part in by_part.values() for row in part]
        parts = [(slot, n, len(part)) for (slot, n), part in by_part.items()]
        found.append(Level(torch.tensor(rows, device=device), parts))
    return found


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, *, is_causal: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(q k^T / sqrt(d) + mask) v, [b, h, n, d], and its log-sum-exp, [b, h, n].

    Args:
        q: [b, h, n, d].
        k: [b, h, s, d].
        v: like k.
        mask: added to the scores and broadcast over them, or None.
        is_causal: query i sees the keys up to i.
    """
    if q.device.type == "cpu":
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(q, k, v, 0.0, is_causal, attn_mask=mask)
    scores = torch.matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-1, -2))
    if is_causal:
        n, s = scores.shape[-2:]
        hidden = torch.ones(n, s, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    return torch.matmul(scores.softmax(-1), v), scores.logsumexp(-1)


def attend_rows(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    longest: int,
    mask: torch.Tensor | None,
    levels: list[Level],
) -> torch.Tensor:
    """Return what one query a row finds in its own slot and in the parts that it shares.

    Args:
        q: [rows, kv_heads, heads of a key/value head, d].
        keys: [slots, kv_heads, columns, d]; row i's own is slot i.
        values: like keys.
        longest: columns of the own slots to look at.
        mask: added to the scores, [rows, 1, 1, longest], or None where all rows have as many.
        levels: of the rows, from `levels_of`.
    """
    rows, heads, group, d = q.shape
    k, v = keys[:rows, :, :longest], values[:rows, :, :longest]
    if not levels:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    out, lse = attend(q, k, v, mask)
    for level in levels:
        # The queries of all rows that share a slot are those of one context: [kv_heads, rows, group, d].
        sent = q.index_select(0, level.rows).transpose(0, 1)
        results, sums, at = [], [], 0
        for slot, n, count in level.parts:
            queries = sent[:, at : at + count].reshape(1, heads, count * group, d)
            result, sum_ = attend(queries, keys[slot : slot + 1, :, :n], values[slot : slot + 1, :, :n], None)
            results.append(result.view(heads, count, group, d))
            sums.append(sum_.reshape(heads, count, group))
            at += count
        found, seen = torch.cat(results, 1).transpose(0, 1), torch.cat(sums, 1).transpose(0, 1)
        before, known = out.index_select(0, level.rows), lse.index_select(0, level.rows)
        merged = torch.lerp(before, found, torch.sigmoid(seen - known).unsqueeze(-1))
        out.index_copy_(0, level.rows, merged)
        if level is not levels[-1]:
            lse.index_copy_(0, level.rows, torch.logaddexp(known, seen))
    return out


def attend_piece(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, shared: Shared
) -> torch.Tensor:
    """Return what consecutive tokens of one context find, [kv_heads, heads of a key/value head, n, d].

    Args:
        q: [kv_heads, heads of a key/value head, n, d].
        keys: [slots, kv_heads, columns, d].
        values: like keys.
        mask: what they see of their own slot's first columns, [n, columns looked at]; None for plain causal
            attention to the first n.
        shared: the parts that the context begins with, and behind them the slot with its columns to look at.
    """
    heads, group, n, d = q.shape
    *parts, (own, columns) = shared
    # The key/value head is the batch and the queries that share it are its heads.
    k, v = (each[own, :, None, :columns].expand(-1, group, -1, -1) for each in (keys, values))
    if not parts:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    out, lse = attend(q, k, v, mask, is_causal=mask is None)
    for slot, length in parts:
        queries = q.reshape(1, heads, group * n, d)
        found, seen = attend(
            queries, keys[slot : slot + 1, :, :length], values[slot : slot + 1, :, :length], None
        )
        found, seen = found.view(heads, group, n, d), seen.reshape(heads, group, n)
        out = torch.lerp(out, found, torch.sigmoid(seen - lse).unsqueeze(-1))
        lse = torch.logaddexp(lse, seen)
    return out
