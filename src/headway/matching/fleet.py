"""A provider of sandboxes with limits: how a burst of creates turns into a tail of starts.

A create waits for the provider to take it (so many a second, after a burst), then for a place among those
that it starts at once, then for its own start. A start that is given up is tried again and holds its place:
that is how a few slow starts lock the others out. Creates come first come first served, so each one's end is
known when it is created.
"""

from __future__ import annotations

import heapq
from math import exp
from typing import TYPE_CHECKING

from headway.matching.contracts import SandboxStart

if TYPE_CHECKING:
    import random

    from headway.matching.spec import FleetSettings


class FleetOf:
    """A fleet as `[fleet]` describes it; `sandbox.max_live` and the scheduler's own limits come before it."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings

    def begin(self) -> Provider:
        """Return a provider that has started nothing yet."""
        return Provider(self._settings)


class Provider:
    """A provider in use."""

    def __init__(self, settings: FleetSettings) -> None:
        self._settings = settings
        self._tokens = float(max(1, settings.burst))  # creates that it takes at once now
        self._tokens_s = 0.0  # when that was
        self._starting: list[float] = []  # when those end that hold a place

    def start(self, rng: random.Random, now_s: float) -> SandboxStart:
        """Create a sandbox now; see `contracts.Fleet`."""
        began_s = self._placed_s(self._taken_s(now_s))
        took_s, fails = self._duration_s(rng)
        if self._settings.max_starting:
            heapq.heappush(self._starting, began_s + took_s)
        return SandboxStart(began_s + took_s, fails)

    def _taken_s(self, now_s: float) -> float:
        """Return when the provider takes a create."""
        rate = self._settings.creates_per_s
        if not rate:
            return now_s
        since_s = max(self._tokens_s, now_s)
        if now_s > self._tokens_s:
            most = float(max(1, self._settings.burst))
            self._tokens = min(most, self._tokens + (now_s - self._tokens_s) * rate)
        taken_s = since_s + max(0.0, 1.0 - self._tokens) / rate
        self._tokens = max(0.0, self._tokens - 1.0)
        self._tokens_s = taken_s
        return taken_s

    def _placed_s(self, taken_s: float) -> float:
        """Return when there is a place for it among those that start."""
        starting, most = self._starting, self._settings.max_starting
        if not most:
            return taken_s
        while starting and starting[0] <= taken_s:
            heapq.heappop(starting)
        while len(starting) >= most:
            taken_s = max(taken_s, heapq.heappop(starting))
        return taken_s

    def _duration_s(self, rng: random.Random) -> tuple[float, bool]:
        """Return how long a start holds its place, with further tries, and whether it fails in the end."""
        settings, sigma = self._settings, self._settings.start_sigma
        total_s = 0.0
        for _ in range(settings.retries + 1):
            start_s = settings.start_s
            if sigma and start_s:
                start_s *= exp(sigma * rng.gauss(0.0, 1.0) - 0.5 * sigma * sigma)
            fails = bool(settings.failure_rate) and rng.random() < settings.failure_rate
            timeout_s = settings.start_timeout_s
            if timeout_s and start_s > timeout_s:
                start_s, fails = timeout_s, True
            total_s += start_s
            if not fails:
                return total_s, False
        return total_s, True
