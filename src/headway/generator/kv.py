"""Keys and values of all running requests, kept sessions and shared prefixes, in slots of equal size.

A slot is a range of addresses, not of memory: on a CPU the kernel hands its pages out as tokens are written,
and takes them back when `give_back` says so. So memory follows what is resident, without a table of blocks
and with each slot's tokens side by side. On other devices a slot is memory from the start.

Of a model with experts the experts that each token was sent to are kept beside its KV, and move with it: what
a slot holds is one computation.

The requests that decode together occupy slots 0..m-1, so that a step attends over a view and copies
nothing; a request that is not there yet changes places with a slot that need not be.

Invariant: values beyond a slot's resident tokens are finite, for attention multiplies them by zero.
"""

from __future__ import annotations

import math
import mmap
from typing import TYPE_CHECKING

import numpy
import torch

from headway.core.errors import UserError
from headway.generator.memory import block_tokens

if TYPE_CHECKING:
    from headway.models.shape import ModelShape

_F32 = 4
_CAN_GIVE_BACK = hasattr(mmap, "MADV_DONTNEED") and hasattr(mmap, "MAP_ANONYMOUS")


class KvCache:
    """One tensor of shape [layers, 2, slots, kv_heads, columns, head_dim], f32.

    With experts another of shape [expert layers, slots, columns, experts per token], int16.
    """

    def __init__(
        self, shape: ModelShape, num_slots: int, max_context_tokens: int, device: torch.device
    ) -> None:
        self.block_tokens = block_tokens(shape.head_dim, max_context_tokens, device.type)
        columns = -(-max_context_tokens // self.block_tokens) * self.block_tokens
        size = (shape.num_layers, 2, num_slots, shape.num_kv_heads, columns, shape.head_dim)
        self._pages: mmap.mmap | None = None
        try:
            if device.type != "cpu":
                self._values = torch.zeros(size, dtype=torch.float32, device=device)
            elif _CAN_GIVE_BACK:
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
                self._pages = mmap.mmap(-1, _F32 * math.prod(size), flags=flags)
                self._values = torch.frombuffer(self._pages, dtype=torch.float32).view(size)
            else:
                self._values = torch.from_numpy(numpy.zeros(size, dtype=numpy.float32))
        except (MemoryError, OSError, OverflowError, torch.OutOfMemoryError) as error:
            raise UserError(
                f"the KV cache of {num_slots} slots of {max_context_tokens} tokens does not fit the memory",
                remedy="Lower generator.kv_cache_mb, generator.max_running or generator.max_context_tokens.",
            ) from error

        experts = shape.experts
        self._expert_layers = {layer: at for at, layer in enumerate(experts.layers)} if experts else {}
        self._routes: torch.Tensor | None = None
        if experts:
            size = (len(experts.layers), num_slots, columns, experts.per_token)
            self._routes = torch.zeros(size, dtype=torch.int16, device=device)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a layer, each [slots, kv_heads, columns, head_dim]."""
        return self._values[index, 0], self._values[index, 1]

    def routes(self, layer: int) -> torch.Tensor | None:
        """Return a layer's experts by slot and column, [slots, columns, experts per token]."""
        at = self._expert_layers.get(layer)
        return None if at is None or self._routes is None else self._routes[at]

    def routes_of(self, slot: int, num_tokens: int) -> torch.Tensor | None:
        """Return the experts of a slot's first tokens, [tokens, expert layers, experts per token]."""
        return None if self._routes is None else self._routes[:, slot, :num_tokens].transpose(0, 1)

    @torch.inference_mode()
    def copy(self, source: int, target: int, num_tokens: int, at: int = 0, to: int = 0) -> None:
        """Copy so many tokens from column `at` of one slot to column `to` of another."""
        if num_tokens > 0:
            read, written = slice(at, at + num_tokens), slice(to, to + num_tokens)
            self._values[:, :, target, :, written] = self._values[:, :, source, :, read]
            if self._routes is not None:
                self._routes[:, target, written] = self._routes[:, source, read]

    @torch.inference_mode()
    def swap(self, a: int, num_a: int, b: int, num_b: int) -> None:
        """Exchange the contents of two slots, with so many tokens resident in each."""
        kept = self._values[:, :, b, :, :num_b].clone()
        routes = None if self._routes is None else self._routes[:, b, :num_b].clone()
        self.copy(a, b, num_a)
        self._values[:, :, a, :, :num_b] = kept
        if self._routes is not None and routes is not None:
            self._routes[:, a, :num_b] = routes

    @torch.inference_mode()
    def give_back(self, slot: int, column: int) -> None:
        """Return the memory from this column on, the first of a block, to the kernel; it reads as zeros."""
        values = self._values
        layers, _, _, heads, columns, width = values.shape
        if self._pages is None:
            values[:, :, slot, :, column:] = 0
            return
        # All heads of a slot are side by side; those of a slot that keeps something have kept parts between.
        parts, length = (1, heads * columns) if column == 0 else (heads, columns - column)
        if length == 0:
            return
        strides = [_F32 * stride for stride in values.stride()]
        for layer in range(layers):
            for which in (0, 1):
                first = layer * strides[0] + which * strides[1] + slot * strides[2] + column * strides[4]
                for part in range(parts):
                    start = first + part * strides[3]
                    self._pages.madvise(mmap.MADV_DONTNEED, start, length * width * _F32)
