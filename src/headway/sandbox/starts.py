"""Who may start a sandbox now: so many at once, so many a second, the most urgent first.

A pure state machine: it holds tickets and reads no clock. Whoever drives it calls `begin` after each change,
and again at `due_s`.
"""

from __future__ import annotations

import heapq

VERIFY, ROLLOUT, REFILL = (
    0,
    1,
    2,
)  # priorities: a verifier frees a rollout's place, a refill serves nobody yet


class StartLine:
    """Tickets that wait for their start or are starting.

    Args:
        most: starts at once.
        per_s: starts in any second, 0 for no limit; a second's worth may begin together.
    """

    def __init__(self, most: int, per_s: float = 0.0) -> None:
        self._most = most
        self._per_s = per_s
        self._heap: list[tuple[int, int]] = []  # (priority, ticket): first come, first served
        self._waiting: set[int] = set()
        self._starting: set[int] = set()
        self._due_s = float("-inf")  # when the start after the last one is due at the set rate

    @property
    def num_waiting(self) -> int:
        """Tickets whose start has not begun."""
        return len(self._waiting)

    @property
    def num_starting(self) -> int:
        """Tickets whose start has begun and not ended."""
        return len(self._starting)

    def ask(self, ticket: int, priority: int) -> None:
        """Put a new ticket, larger than all before it, into the line."""
        heapq.heappush(self._heap, (priority, ticket))
        self._waiting.add(ticket)

    def leave(self, ticket: int) -> None:
        """A start ended, well or not, or a ticket is given up; idempotent."""
        self._waiting.discard(ticket)
        self._starting.discard(ticket)

    def begin(self, now: float) -> list[int]:
        """Return the tickets that start now, in their order."""
        begun: list[int] = []
        while self._waiting and len(self._starting) < self._most and self._wait_s(now) <= 0:
            _, ticket = heapq.heappop(self._heap)
            if ticket not in self._waiting:
                continue
            self._waiting.discard(ticket)
            self._starting.add(ticket)
            if self._per_s:
                self._due_s = max(self._due_s, now) + 1.0 / self._per_s
            begun.append(ticket)
        return begun

    def due_s(self, now: float) -> float | None:
        """Return the seconds until the rate lets the next one start, None when nobody waits for that."""
        wait_s = self._wait_s(now)
        if not self._waiting or len(self._starting) >= self._most or wait_s <= 0:
            return None
        return wait_s

    def _wait_s(self, now: float) -> float:
        if not self._per_s:
            return 0.0
        return self._due_s - max(0.0, 1.0 - 1.0 / self._per_s) - now
