"""Which tokens are resident in which slot, and who may use them.

Every idle slot doubles as a prefix cache: a request copies the longest prefix that any slot holds, be it its
own session's last turn, another member of its group, or a shared system prompt. A slot is used again only
when all of its KV was computed with the policy and the weights that the request is for (its salt).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy

from headway.core.records import TOKENS
from headway.generator.policies import Salt

if TYPE_CHECKING:
    from headway.generator.kv import KvCache


def _no_tokens() -> array[int]:
    return array(TOKENS)


@dataclass(slots=True, eq=False)
class Slot:
    """One slot; the object stays with its contents when they move to another index."""

    index: int
    tokens: array[int] = field(default_factory=_no_tokens)  # the first `resident` of them have KV here
    resident: int = 0
    salt: Salt | None = None  # what the newest KV here was computed with
    is_mixed: bool = False  # some of the KV is of earlier weights
    busy: bool = False
    session: str | None = None
    used_at: int = 0  # order of last use

    def holds(self, salt: Salt | None) -> bool:
        """Say whether all KV here was computed with this."""
        return self.salt == salt and not self.is_mixed

    def common(self, tokens: array[int]) -> int:
        """Return how many leading tokens of `tokens` are resident here."""
        return common_prefix(self.tokens, tokens, self.resident)


def _reluctance(slot: Slot, session: str) -> tuple[bool, bool, int]:
    """Order idle slots: the session's own; empty ones, last touched first; the longest kept."""
    kept = slot.resident > 0
    return slot.session != session, kept, slot.used_at if kept else -slot.used_at


def common_prefix(a: array[int], b: array[int], limit: int) -> int:
    """Return the length of the longest common prefix, at most `limit` tokens."""
    limit = min(limit, len(a), len(b))
    if limit == 0 or a[0] != b[0]:
        return 0
    same = numpy.frombuffer(a, numpy.int32, limit) == numpy.frombuffer(b, numpy.int32, limit)
    first = int(same.argmin())
    return limit if same[first] else first


class Slots:
    """The slots of one KvCache."""

    def __init__(self, cache: KvCache, num_slots: int) -> None:
        self._cache = cache
        self._by_index = [Slot(index) for index in range(num_slots)]
        self._uses = 0

    def acquire(self, session: str, tokens: array[int], salt: Salt) -> Slot:
        """Return a slot for a request, with the part of its own session's KV that it can go on from.

        There are more slots than requests that may run, so that one is always idle.
        """
        idle = [slot for slot in self._by_index if not slot.busy]
        slot = min(idle, key=lambda each: _reluctance(each, session))
        fits = slot.session == session and slot.holds(salt)
        slot.resident = min(slot.common(tokens), len(tokens) - 1) if fits else 0
        slot.tokens, slot.busy, slot.session = tokens, True, session
        slot.salt, slot.is_mixed = salt, False
        return slot

    def extend_by_copy(self, slot: Slot, limit: int) -> None:
        """Copy a longer prefix of the slot's tokens from another slot, if one holds it; at most `limit`."""
        best, longest = None, slot.resident
        if slot.is_mixed:
            return
        for other in self._by_index:
            if other.holds(slot.salt) and other is not slot and other.resident > longest:
                common = min(other.common(slot.tokens), limit)
                if common > longest:
                    best, longest = other, common
        if best is not None:
            self._cache.copy(best.index, slot.index, longest)
            best.used_at = self._tick()
            slot.resident = longest

    def release(self, slot: Slot) -> None:
        """Keep the contents for the session's next turn until the slot is needed."""
        slot.busy = False
        slot.used_at = self._tick()

    def erase(self, slot: Slot) -> None:
        """Forget the contents and make the memory finite."""
        self._cache.zero(slot.index)
        slot.resident, slot.salt = 0, None

    def end_session(self, session: str) -> None:
        """Free what is kept for a session; a request that still runs keeps its slot until it ends."""
        for slot in self._by_index:
            if slot.session == session:
                slot.session = None
                if not slot.busy:
                    slot.resident = 0

    def resalt(self, old: Salt, new: Salt, *, keep: bool) -> None:
        """A policy's weights changed: drop its idle KV; its running requests keep theirs, or start over.

        What they keep is a mixture of versions from then on, and no other request's.
        """
        for slot in self._by_index:
            if slot.salt != old:
                continue
            slot.salt = new
            slot.is_mixed = keep and slot.busy and slot.resident > 0
            if not slot.is_mixed:
                slot.resident = 0

    def forget(self, salt: Salt) -> None:
        """Drop what idle slots hold of a policy that is gone."""
        for slot in self._by_index:
            if slot.salt == salt and not slot.busy:
                slot.resident, slot.salt = 0, None

    def make_dense(self, active: Sequence[Slot]) -> None:
        """Move these slots to the indices 0..m-1."""
        wanted = set(map(id, active))
        holes = [slot for slot in self._by_index[: len(active)] if id(slot) not in wanted]
        outside = [slot for slot in active if slot.index >= len(active)]
        for hole, slot in zip(holes, outside, strict=True):
            self._cache.swap(slot.index, slot.resident, hole.index, hole.resident)
            hole.index, slot.index = slot.index, hole.index
            self._by_index[hole.index], self._by_index[slot.index] = hole, slot

    def _tick(self) -> int:
        self._uses += 1
        return self._uses
