"""Attention over token trees: only what a position may attend to is computed.

A row comes with its blocks (`trie.Block`): triangles along branches and rectangles of branches against what
they grew from. On a CPU each block is one call of torch's flash attention, and a position that several blocks
serve gets their outputs joined by the log-sums of their exponentials; with the joined output and log-sum, the
backward pass of each block is exact on its own. Nothing of s x s is held. On other devices the row is one
call with a mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from headway.trainer.trie import Block

NAME = "headway_trees"
"""Under which transformers knows this attention; `blocks` reach it through the model's own arguments."""


def dense_mask(blocks: Sequence[Block], num: int, device: torch.device) -> Tensor:
    """Return who attends to whom as booleans, [num queries, num keys]."""
    mask = torch.zeros(num, num, dtype=torch.bool, device=device)
    for block in blocks:
        part = mask[block.q_start : block.q_end, block.k_start : block.k_end]
        part.fill_(True)
        if block.causal:
            part.tril_()
    return mask


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    blocks: Sequence[Block] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return the attention's output [1, s, heads, head_dim], as transformers wants it of an implementation.

    Args:
        module: the attention layer.
        query: [1, heads, s, head_dim].
        key: [1, key/value heads, s, head_dim].
        value: as `key`.
        attention_mask: used where there are no blocks.
        scaling: of the scores.
        blocks: of the row; the causal ones first, which together hold every query once.
        kwargs: passed on where there are no blocks.
    """
    if blocks is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    if query.device.type != "cpu":
        mask = dense_mask(blocks, query.shape[2], query.device)[None, None]
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling)
    return _Trees.apply(query, key, value, scaling, blocks), None  # pyright: ignore


def register() -> str:
    """Make the attention known to transformers; return its name."""
    AttentionInterface.register(NAME, tree_attention)
    return NAME


class _Trees(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, blocks: Sequence[Block]
    ) -> Tensor:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        if len(blocks) == 1:
            out, sums = flash(query, key, value, 0.0, True, scale=scale)
        else:
            batch, heads, num, width = query.shape
            out = query.new_empty(batch, num, heads, width).transpose(1, 2)
            sums = query.new_empty(
                batch, num, heads, dtype=torch.promote_types(query.dtype, torch.float32)
            ).transpose(1, 2)
            for block in blocks:
                q, k = slice(block.q_start, block.q_end), slice(block.k_start, block.k_end)
                part, log = flash(
                    query[:, :, q], key[:, :, k], value[:, :, k], 0.0, block.causal, scale=scale
                )
                if block.causal:
                    out[:, :, q], sums[:, :, q] = part, log
                    continue
                so_far = sums[:, :, q]
                out[:, :, q].lerp_(part, torch.sigmoid(log - so_far)[..., None].to(part.dtype))
                torch.logaddexp(so_far, log, out=so_far)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.scale, ctx.blocks = scale, blocks
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, sums = ctx.saved_tensors
        grad = grads[0].transpose(1, 2)
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        if len(ctx.blocks) == 1:
            found = flash(grad, query, key, value, out, sums, 0.0, True, scale=ctx.scale)
            return *found, None, None
        found = [torch.empty_like(tensor) for tensor in (query, key, value)]
        for block in ctx.blocks:
            q, k = slice(block.q_start, block.q_end), slice(block.k_start, block.k_end)
            parts = flash(
                grad[:, :, q],
                query[:, :, q],
                key[:, :, k],
                value[:, :, k],
                out[:, :, q],
                sums[:, :, q],
                0.0,
                block.causal,
                scale=ctx.scale,
            )
            for whole, part, where in zip(found, parts, (q, k, k), strict=True):
                if block.causal:
                    whole[:, :, where] = part
                else:
                    whole[:, :, where] += part
        return *found, None, None
