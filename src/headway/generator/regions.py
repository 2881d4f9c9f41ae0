"""Where each region is, what of it may be given up, and the memory that this yields.

What nobody runs on is kept until memory or a place is wanted, and then goes the oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headway.generator.prefixes import Part, Prefix, Region, Slot

if TYPE_CHECKING:
    from headway.generator.kv import KvCache
    from headway.generator.memory import Memory


class Regions:
    """The contents of one KvCache; at most so many of its slots are requests' and sessions'."""

    def __init__(self, cache: KvCache, memory: Memory, max_slots: int) -> None:
        self.memory = memory
        self._cache = cache
        self._max_slots = max_slots
        self._at: list[Region | None] = [None] * len(memory.held)
        self._free = list(range(len(memory.held)))[::-1]  # the last one freed is taken first
        self._uses = 0

    def drop(self, region: Region) -> None:
        """Forget the contents; the memory is given back when it is wanted."""
        self._let_go(region)
        self._at[region.index] = None
        self._free.append(region.index)

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
        lacking = self.memory.lacking
        return sum([lacking(slot.index, slot.own + more) for slot, more in wants])

    def shared_blocks(self) -> int:
        """Return the blocks of the prefixes that running requests begin with."""
        return self._blocks_of_prefixes([slot for slot in self._slots() if slot.busy])

    def blocks_in_use(self) -> int:
        """Return the blocks that hold what running requests attend to."""
        busy = [slot for slot in self._slots() if slot.busy]
        return sum([self.memory.blocks(slot.own) for slot in busy]) + self._blocks_of_prefixes(busy)

    def _blocks_of_prefixes(self, busy: Sequence[Slot]) -> int:
        prefixes = {id(part.prefix): part.prefix for slot in busy if slot.shared for part in slot.shared}
        return sum([self.memory.blocks(prefix.own) for prefix in prefixes.values()])

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

    def _slots(self) -> list[Slot]:
        return [each for each in self._at if isinstance(each, Slot)]

    def _prefixes(self) -> list[Prefix]:
        return [each for each in self._at if isinstance(each, Prefix)]

    def _tick(self) -> int:
        self._uses += 1
        return self._uses


def _last_use(region: Region) -> int:
    return region.used_at
