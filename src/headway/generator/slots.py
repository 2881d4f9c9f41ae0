"""Which tokens are resident in which slot, who may use them, and what goes when memory is wanted.

What nobody runs on stays as a prefix cache: a request takes over the longest prefix that any slot holds, be
it its own session's last turn, another member of its group, or a system prompt. A long one becomes a shared
prefix, held once (see `prefixes`); a short one is copied. KV is used again only when all of it was computed
with the policy and the weights that the request is for (its salt).
"""

from __future__ import annotations

from collections.abc import Sequence
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
from headway.generator.regions import Regions

if TYPE_CHECKING:
    from array import array

    from headway.generator.policies import Salt


class Slots(Regions):
    """What requests and sessions do with the regions."""

    def acquire(self, session: str, tokens: array[int], salt: Salt, limit: int) -> Slot | None:
        """Return a slot for a request, with the part of its own session's KV that it can go on from.

        That is `limit` tokens at most. None when every slot has a request that runs.
        """
        slots = self._slots()
        idle = [each for each in slots if not each.busy]
        slot = next((each for each in idle if each.session == session), None)
        if slot is None:
            if idle and len(slots) >= self._max_slots:
                self.drop(min(idle, key=lambda each: each.used_at))
            index = self._take_index(None)
            if index is None:
                return None
            slot = Slot(index)
            self._at[index] = slot
        else:
            kept = min(_common(slot, tokens), limit) if slot.holds(salt) else 0
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

    def erase(self, slot: Slot) -> None:
        """Forget what a model computed that is not finite, and make the memory finite."""
        for part in slot.shared:
            part.prefix.salt = None
        self._let_go(slot)
        self.memory.trim(slot.index, 0)

    def end_session(self, session: str) -> None:
        """Free what is kept for a session; a request that still runs keeps its slot until it ends."""
        for slot in self._slots():
            if slot.session == session:
                slot.session = None
                if not slot.busy:
                    self.drop(slot)

    def resalt(self, old: Salt, new: Salt, *, keep: bool) -> None:
        """A policy's weights changed: drop its idle KV; its running requests keep theirs, or start over.

        What they keep is a mixture of versions from then on, and no other request's.
        """
        for slot in self._slots():
            if slot.salt == old:
                slot.salt, slot.hoped = new, 0
                slot.is_mixed = keep and slot.busy and slot.resident > 0
                if not slot.is_mixed:
                    self._let_go(slot)
                if not slot.busy:
                    self.drop(slot)
        for prefix in self._prefixes():
            if prefix.salt == old:
                prefix.salt = None
                self._drop_unused(prefix)

    def forget(self, salt: Salt) -> None:
        """Drop what is kept of a policy that is gone."""
        for slot in self._slots():
            if slot.salt == salt and not slot.busy:
                self.drop(slot)
        for prefix in self._prefixes():
            if prefix.salt == salt:
                prefix.salt = None
                self._drop_unused(prefix)

    def routes_of(self, slot: Slot) -> torch.Tensor | None:
        """Return the experts of a slot's resident tokens, [tokens, expert layers, experts per token]."""
        found = [self._cache.routes_of(index, n) for index, n in (*slot.parts, (slot.index, slot.own))]
        return torch.cat(known) if len(known := [each for each in found if each is not None]) else None

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
