"""Who runs and who waits: admission by what memory is free, and preemption.

Requests are ordered by priority, and among equals by arrival. A request is admitted when there is a place and
memory for its tokens and a little more. Where there is none, a request of higher priority takes the place of
the last of those that run. When what runs outgrows the memory, idle KV goes first; then the last in order
loses its KV, keeps its tokens, waits before its equals, and is computed anew.

Invariant: the first in order is never preempted for another, and one request alone always fits. So something
always runs to its end.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.generator.prefixes import MIN_SHARED_TOKENS, MIN_SPARED_TOKENS, Slot, common_prefix

if TYPE_CHECKING:
    from headway.generator.live import Live
    from headway.generator.slots import Slots

_AHEAD_TOKENS = 16  # that a request must have room to grow by to be admitted


class Places:
    """The requests of one engine."""

    def __init__(self, slots: Slots, max_running: int) -> None:
        self.running: list[Live] = []  # by admission
        self.num_preemptions = 0
        self._slots = slots
        self._max_running = max_running
        self._waiting: list[tuple[tuple[int, int], Live]] = []  # a heap
        self._arrivals = count()

    @property
    def num_waiting(self) -> int:
        """Requests that have no place."""
        return len(self._waiting)

    def all(self) -> list[Live]:
        """Return every request."""
        return [*self.running, *(live for _, live in self._waiting)]

    def add(self, live: Live) -> None:
        """Take in a request; it waits."""
        live.order = (live.request.priority, next(self._arrivals))
        heapq.heappush(self._waiting, (live.order, live))

    def remove(self, live: Live) -> None:
        """Let go of a request that ended."""
        if live.slot is None:
            self._waiting = [entry for entry in self._waiting if entry[1] is not live]
            heapq.heapify(self._waiting)
        else:
            self.running.remove(live)
            self._slots.release(live.slot)

    def clear(self) -> None:
        """Forget every request."""
        self.running.clear()
        self._waiting.clear()

    def admit(self) -> None:
        """Give places to those that wait, first in order first."""
        while self._waiting and self._make_place(live := self._waiting[0][1]):
            slot = self._slots.acquire(live.request.session, live.tokens, live.served.salt, live.usable)
            if slot is None:
                return
            heapq.heappop(self._waiting)
            slot.hoped = self._hope(live)
            live.slot = slot
            live.enter("prefill", stopwatch())
            self.running.append(live)

    def make_room(self, wants: Sequence[tuple[Live, int]]) -> list[tuple[Live, int]]:
        """Take memory for so many more tokens of each of these; return those that still run."""
        left = list(wants)
        while left:
            slots = [(live.slot, more) for live, more in left if live.slot is not None]
            lacking = self._slots.lacking(slots)
            if not lacking:
                break
            if self._slots.reserve(lacking):
                for slot, more in slots:
                    self._slots.memory.take(slot.index, slot.own + more)
                break
            self._preempt(self._last())
            if not self.running:
                self._slots.drop_idle()  # it shared a part of a prefix that is longer than its own context
            left = [(live, more) for live, more in left if live.slot is not None]
        return left

    def _make_place(self, live: Live) -> bool:
        """Say whether a request may run now, after preempting whom it may preempt."""
        while self.running:
            if len(self.running) < self._max_running and self._fits(live):
                return True
            last = self._last()
            if last.order[0] <= live.order[0]:
                return False
            self._preempt(last)
        return True

    def _fits(self, live: Live) -> bool:
        """Say whether memory holds what runs and this request, each with some room to grow."""
        memory = self._slots.memory
        alone = [len(each.tokens) + _AHEAD_TOKENS for each in (*self.running, live)]
        if sum(map(memory.blocks, alone)) <= memory.num_blocks:
            return True
        wanted = memory.blocks(len(live.tokens) + _AHEAD_TOKENS - self._hope(live))
        for each in self.running:
            assert each.slot is not None
            spared = max(each.slot.start, each.slot.hoped)
            wanted += memory.blocks(len(each.tokens) + _AHEAD_TOKENS - spared)
        return wanted + self._slots.shared_blocks() <= memory.num_blocks

    def _hope(self, live: Live) -> int:
        """Return how many tokens a request will share with one that runs."""
        limit = len(live.tokens) - 1
        found = [
            common_prefix(other.tokens, live.tokens, limit)
            for other in self.running
            if other.served.salt == live.served.salt
        ]
        longest = max(found, default=0)
        spared = longest * sum(n == longest for n in found)
        return longest if longest >= MIN_SHARED_TOKENS and spared >= MIN_SPARED_TOKENS else 0

    def _last(self) -> Live:
        return max(self.running, key=_order)

    def _preempt(self, live: Live) -> None:
        """Send a running request back; its KV stays as idle until the memory is wanted."""
        slot: Slot | None = live.slot
        assert slot is not None
        self.running.remove(live)
        live.slot = None
        live.enter("waiting", stopwatch())
        self._slots.release(slot)
        self.num_preemptions += 1
        heapq.heappush(self._waiting, (live.order, live))


def _order(live: Live) -> tuple[int, int]:
    return live.order
