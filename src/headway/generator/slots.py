"""Which tokens are resident in which slot, who may use them, and what goes when memory is wanted.

What nobody runs on stays as a prefix cache: a request takes over the longest prefix that any slot holds, be
it its own session's last turn, another member of its group, or a system prompt. A long one becomes a shared
prefix, held once (see `prefixes`); a short one is copied. KV is used again only when all of it was computed
with the policy and the weights that the request is for (its salt).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from headway.generator.prefixes import (
    MIN_SHARED_TOKENS,
    MIN_SPARED_TOKENS,
    Part,
    Prefix,
    Region,
    Slot,
    common_prefix,
)

if TYPE_CHECKING:
    from array import array

    from headway.generator.kv import KvCache
    from headway.generator.memory import Memory
    from headway.generator.policies import Salt


class Slots:
    """The contents of one KvCache; at most so many of its slots are requests' and sessions'."""

    def __init__(self, cache: KvCache, memory: Memory, max_slots: int) -> None:
        self.memory = memory
        self._cache = cache
        self._max_slots = max_slots
        self._at: list[Region | None] = [None] * len(memory.held)
        self._free = list(range(len(memory.held)))[::-1]  # the last one freed is taken first
        self._uses = 0
        self._broken = False

    def acquire(self, session: str, tokens: array[int], salt: Salt) -> Slot | None:
        """Return a slot for a request, with the part of its own session's KV that it can go on from.

        None when every slot has a request that runs.
        """
        idle = [each for each in self._slots() if not each.busy]
        slot = next((each for each in idle if each.session == session), None)
        if slot is None:
            if idle and sum(1 for _ in self._slots()) >= self._max_slots:
                self.drop(min(idle, key=lambda each: each.used_at))
            index = self._take_index(None)
            if index is None:
                return None
            slot = Slot(index)
            self._at[index] = slot
        else:
            kept = min(_common(slot, tokens), len(tokens) - 1) if slot.holds(salt) else 0
            if kept < slot.start:
                self._let_go(slot)
                kept = 0
            slot.resident = kept
        slot.tokens, slot.busy, slot.session = tokens, True, session
        slot.salt, slot.is_mixed, slot.hoped = salt, False, 0
        return slot

    def release(self, slot: Slot) -> None:
        """Keep the contents for the session's next turn until the slot is needed."""
        slot.busy = False
        slot.used_at = self._tick()
        if slot.is_mixed or not slot.resident:
            self.drop(slot)

    def drop(self, region: Region) -> None:
        """Forget the contents; the memory is given back when it is wanted."""
        self._let_go(region)
        self._at[region.index] = None
        self._free.append(region.index)

    def erase(self, slot: Slot) -> None:
        """Forget what a model computed that is not finite, and make the memory finite."""
        for part in slot.shared:
            part.prefix.salt = None
        self._let_go(slot)
        self.memory.trim(slot.index, 0)
        self._broken = True

    def end_session(self, session: str) -> None:
        """Free what is kept for a session; a request that still runs keeps its slot until it ends."""
        for slot in list(self._slots()):
            if slot.session == session:
                slot.session = None
                if not slot.busy:
                    self.drop(slot)

    def resalt(self, old: Salt, new: Salt, *, keep: bool) -> None:
        """A policy's weights changed: drop its idle KV; its running requests keep theirs, or start over.

        What they keep is a mixture of versions from then on, and no other request's.
        """
        for slot in list(self._slots()):
            if slot.salt == old:
                slot.salt, slot.hoped = new, 0
                slot.is_mixed = keep and slot.busy and slot.resident > 0
                if not slot.is_mixed:
                    self._let_go(slot)
                if not slot.busy:
                    self.drop(slot)
        for prefix in list(self._prefixes()):
            if prefix.salt == old:
                prefix.salt = None
                self._drop_unused(prefix)
        if self._broken:  # a prefill that the update cut short may have left the same
            for index, region in enumerate(self._at):
                self.memory.trim(index, region.own if region else 0)
            self._broken = False

    # --- memory ---

    def reserve(self, blocks: int, keep: Region | None = None) -> bool:
        """See to it that so many blocks are free, giving up what nobody runs on but `keep`, oldest first."""
        if self.memory.num_free >= blocks:
            return True
        for index, region in enumerate(self._at):
            self.memory.trim(index, region.own if region else 0)
        while self.memory.num_free < blocks:
            idle = self._oldest_idle(keep)
            if idle is None:
                return False
            self.drop(idle)
            self.memory.trim(idle.index, 0)
        return True

    def drop_idle(self) -> None:
        """Forget all that nobody runs on."""
        while (idle := self._oldest_idle(None)) is not None:
            self.drop(idle)

    def lacking(self, wants: Iterable[tuple[Slot, int]]) -> int:
        """Return how many blocks are missing for so many more tokens in each of these slots."""
        return sum(self.memory.lacking(slot.index, slot.own + more) for slot, more in wants)

    def shared_blocks(self) -> int:
        """Return the blocks of the prefixes that running requests begin with."""
        parts = [part for slot in self._slots() if slot.busy for part in slot.shared]
        prefixes = {id(part.prefix): part.prefix for part in parts}
        return sum(self.memory.blocks(prefix.own) for prefix in prefixes.values())

    def blocks_in_use(self) -> int:
        """Return the blocks that hold what running requests attend to."""
        own = sum(self.memory.blocks(slot.own) for slot in self._slots() if slot.busy)
        return own + self.shared_blocks()

    # --- sharing ---

    def extend(self, slot: Slot, limit: int) -> None:
        """Take over a longer prefix of the slot's tokens from another slot, if one holds it; at most `limit`.

        Without memory for it the slot stays as it is.
        """
        tokens, longest, best = slot.tokens, slot.resident, None
        if slot.is_mixed:
            return
        for other in self._at:
            if other is None or other.resident <= longest or other is slot or not other.holds(slot.salt):
                continue
            if longest < limit and other.tokens[longest] == tokens[longest]:
                common = common_prefix(other.tokens, tokens, min(other.resident, limit))
                if common > longest:
                    best, longest = other, common
        if best is not None:
            self._take_over(slot, best, longest)
            best.used_at = self._tick()

    def _take_over(self, slot: Slot, source: Region, common: int) -> None:
        """Make the first tokens of `source` the slot's: shared parts by reference, the rest by copy."""
        own = common - source.start
        if own >= MIN_SHARED_TOKENS and isinstance(source, Slot) and self._pays(slot, source, common):
            prefix = self._promote(source, common)
            if prefix is None:
                return
            source, own = prefix, common - prefix.start
        parts = _clipped(source.shared, common)
        if own >= MIN_SHARED_TOKENS and isinstance(source, Prefix):
            parts = (*parts, Part(source, own))
        shared = sum(part.num_tokens for part in parts)
        is_same = parts == slot.shared
        has = slot.resident - shared if is_same else 0
        if self.reserve(self.memory.lacking(slot.index, common - shared), source):
            if not is_same:
                self._share(parts)
                self._let_go(slot)
                slot.shared = parts
            self.memory.take(slot.index, common - shared)
            self._copy_from(source, slot, shared + has, common, shared)
            slot.resident = common

    def _pays(self, slot: Slot, source: Slot, common: int) -> bool:
        """Say whether to share what a slot holds, by how many running requests begin with it."""
        num = sum(
            other is source
            or (other.holds(slot.salt) and common_prefix(other.tokens, slot.tokens, common) == common)
            for other in self._slots()
            if other.busy and other is not slot
        )
        return max(num, 1) * (common - source.start) >= MIN_SPARED_TOKENS

    def _copy_from(self, source: Region, slot: Slot, start: int, end: int, shared: int) -> None:
        """Copy the KV of the positions start..end, from the parts of `source` and what is its own."""
        at = 0
        for index, n in (*((part.prefix.index, part.num_tokens) for part in source.shared),
                         (source.index, source.own)):  # fmt: skip
            first, last = max(at, start), min(at + n, end)
            self._cache.copy(index, slot.index, last - first, first - at, first - shared)
            at += n

    def _promote(self, slot: Slot, common: int) -> Prefix | None:
        """Make the first tokens of a slot a shared prefix, in place; what follows moves to a new slot.

        None without a slot or memory for that.
        """
        left, own = slot.resident - common, common - slot.start
        if not self.reserve(self.memory.blocks(left), slot):
            return None
        index = self._take_index(slot)
        if index is None:
            return None
        self.memory.take(index, left)
        self._cache.copy(slot.index, index, left, own)
        self.memory.trim(slot.index, own)
        prefix = Prefix(index=slot.index, tokens=slot.tokens[:common], resident=common, shared=slot.shared)
        prefix.salt, prefix.num_holders = slot.salt, 1
        slot.index, slot.shared = index, (*slot.shared, Part(prefix, own))
        self._share(prefix.shared)
        self._at[prefix.index], self._at[index] = prefix, slot
        return prefix

    def _share(self, parts: Sequence[Part]) -> None:
        for part in parts:
            part.prefix.num_holders += 1

    def _let_go(self, region: Region) -> None:
        """Empty a region; its shared parts lose a holder."""
        parts, region.shared, region.resident = region.shared, (), 0
        for part in reversed(parts):
            part.prefix.num_holders -= 1
            part.prefix.used_at = self._tick()
            self._drop_unused(part.prefix)

    def _drop_unused(self, prefix: Prefix) -> None:
        """Drop a prefix that has no holder and can find none."""
        if prefix.salt is None and not prefix.num_holders:
            self.drop(prefix)
            self.memory.trim(prefix.index, 0)

    # --- places ---

    def make_dense(self, active: Sequence[Slot]) -> None:
        """Move these slots, each with memory for one token more, to the indices 0..m-1."""
        outside = [slot for slot in active if slot.index >= len(active)]
        if not outside:
            return
        inside = {slot.index for slot in active}
        holes = [index for index in range(len(active)) if index not in inside]
        for hole, slot in zip(holes, outside, strict=True):
            self._move(slot, hole)

    def _move(self, slot: Slot, index: int) -> None:
        """Exchange a slot's place with another."""
        before, other, memory = slot.index, self._at[index], self.memory
        memory.take(index, slot.own + 1)
        if other is None:
            self._cache.copy(before, index, slot.own)
            self._free[self._free.index(index)] = before
        else:
            memory.take(before, other.own)
            self._cache.swap(before, slot.own, index, other.own)
            other.index = before
        slot.index = index
        self._at[before], self._at[index] = other, slot
        if memory.num_free < 0:
            memory.trim(before, other.own if other else 0)
            memory.trim(index, slot.own + 1)

    def routes_of(self, slot: Slot) -> torch.Tensor | None:
        """Return the experts of a slot's resident tokens, [tokens, expert layers, experts per token]."""
        found = [self._cache.routes_of(index, n) for index, n in (*slot.parts, (slot.index, slot.own))]
        return torch.cat(known) if len(known := [each for each in found if each is not None]) else None

    def _take_index(self, keep: Region | None) -> int | None:
        """Return a free index, giving up the oldest of what nobody runs on; None when there is nothing."""
        while not self._free:
            idle = self._oldest_idle(keep)
            if idle is None:
                return None
            self.drop(idle)
        return self._free.pop()

    def _oldest_idle(self, keep: Region | None) -> Region | None:
        """Return what nobody runs on and was used longest ago."""
        idle: list[Region] = [slot for slot in self._slots() if not slot.busy]
        idle += [prefix for prefix in self._prefixes() if not prefix.num_holders]
        return min((each for each in idle if each is not keep), key=_last_use, default=None)

    def _slots(self) -> Iterable[Slot]:
        return (each for each in self._at if isinstance(each, Slot))

    def _prefixes(self) -> Iterable[Prefix]:
        return (each for each in self._at if isinstance(each, Prefix))

    def _tick(self) -> int:
        self._uses += 1
        return self._uses


def _last_use(region: Region) -> int:
    return region.used_at


def _common(region: Region, tokens: array[int]) -> int:
    return common_prefix(region.tokens, tokens, region.resident)


def _clipped(parts: Sequence[Part], num_tokens: int) -> tuple[Part, ...]:
    """Return the parts that lie before a position, the last one cut; a short last one is left out."""
    found: list[Part] = []
    for part in parts:
        n = min(part.num_tokens, num_tokens)
        num_tokens -= n
        if n >= MIN_SHARED_TOKENS:
            found.append(Part(part.prefix, n))
    return tuple(found)
