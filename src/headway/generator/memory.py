"""How many tokens' KV there may be, and which slot holds how many. No torch.

KV is counted in blocks: so many tokens that, for every layer and head, they fill whole pages of memory. On a
CPU a slot has the blocks that were written and not given back; elsewhere a slot is one block, for its memory
is taken whole.

Invariant: what is held stays within the capacity, but for a request's move from one slot to another, which
ends within it.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from typing import NamedTuple

from headway.core.errors import UserError

_F32 = 4
_MIB = 1 << 20


def block_tokens(head_dim: int, max_context_tokens: int, device_type: str) -> int:
    """Return how many tokens a block has; on a CPU they fill whole pages in each layer and head."""
    if device_type != "cpu":
        return max_context_tokens
    return mmap.PAGESIZE // math.gcd(mmap.PAGESIZE, _F32 * head_dim)


class Room(NamedTuple):
    """What a cap comes to."""

    num_slots: int  # ranges of addresses; on a device other than a CPU, of memory
    num_blocks: int  # that may be held


def room_for(
    *,
    kv_bytes_per_token: int,
    head_dim: int,
    max_context_tokens: int,
    max_running: int,
    kv_cache_mb: int,
    device_type: str = "cpu",
) -> Room:
    """Return how much KV there may be.

    Slots: one for each request that may run, as many for idle sessions, and as many for shared prefixes.

    Raises UserError when the cap is too small for one request of the longest context.
    """
    tokens = block_tokens(head_dim, max_context_tokens, device_type)
    longest = -(-max_context_tokens // tokens)  # blocks
    num_blocks = 2 * max_running * longest
    if kv_cache_mb:
        num_blocks = kv_cache_mb * _MIB // (tokens * kv_bytes_per_token)
    if num_blocks < longest:
        needed = longest * tokens * kv_bytes_per_token
        raise UserError(
            f"the cap on KV must hold one request of generator.max_context_tokens = {max_context_tokens}, "
            f"which takes {needed} bytes",
            value=f"{kv_cache_mb} MiB",
            key="generator.kv_cache_mb",
            remedy=f"Set {-(-needed // _MIB)} or more, or 0 for no cap, or lower max_context_tokens.",
        )
    num_slots = 3 * max_running
    return Room(num_slots if device_type == "cpu" else min(num_slots, num_blocks), num_blocks)


class Memory:
    """The blocks that each slot holds. `give_back(slot, column)` frees a slot's memory from a column on."""

    def __init__(
        self, num_slots: int, num_blocks: int, tokens_per_block: int, give_back: Callable[[int, int], None]
    ) -> None:
        self.num_blocks = num_blocks
        self.held = [0] * num_slots  # blocks by slot
        self.num_held = 0
        self._tokens = tokens_per_block
        self._give_back = give_back

    def blocks(self, num_tokens: int) -> int:
        """Return how many blocks hold so many tokens."""
        return -(-num_tokens // self._tokens)

    @property
    def num_free(self) -> int:
        """Blocks that may still be taken; negative for the moment of a move."""
        return self.num_blocks - self.num_held

    def lacking(self, slot: int, num_tokens: int) -> int:
        """Return how many more blocks a slot needs to hold so many tokens."""
        return max(0, self.blocks(num_tokens) - self.held[slot])

    def take(self, slot: int, num_tokens: int) -> None:
        """Count what is about to be written."""
        more = self.lacking(slot, num_tokens)
        self.held[slot] += more
        self.num_held += more

    def trim(self, slot: int, num_tokens: int) -> None:
        """Give back what a slot holds beyond its first so many tokens."""
        kept = self.blocks(num_tokens)
        if self.held[slot] > kept:
            self._give_back(slot, kept * self._tokens)
            self.num_held -= self.held[slot] - kept
            self.held[slot] = kept
