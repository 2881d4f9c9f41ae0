"""How many requests go to one endpoint at once, and how many a minute.

A place is waited for in the order of asking. Waits end by themselves: a place when a request ends, the rate
and a pause when their time is over; whoever waits may be cancelled. None of it counts as time of a scoring
(waiting.py). Of one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.rewards.waiting import outside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Limiter:
    """Places and a rate.

    Args:
        max_concurrent: requests at once.
        requests_per_min: evenly spread; 0 for no limit.
    """

    def __init__(self, max_concurrent: int, requests_per_min: float = 0.0) -> None:
        self._places = asyncio.Semaphore(max_concurrent)
        self._interval_s = 60.0 / requests_per_min if requests_per_min else 0.0
        self._next_at = 0.0
        self._paused_until = 0.0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """Wait for a place, and hold it."""
        with outside():
            await self._places.acquire()
        try:
            with outside():
                await self.turn()
            yield
        finally:
            self._places.release()

    async def turn(self) -> None:
        """Wait until the next request may be made."""
        at = max(stopwatch(), self._next_at, self._paused_until)
        self._next_at = at + self._interval_s
        while (left_s := max(at, self._paused_until) - stopwatch()) > 0:  # noqa: ASYNC110 - a pause may grow
            await asyncio.sleep(left_s)

    def pause(self, seconds: float) -> None:
        """Let no request begin for so long: the endpoint said so."""
        self._paused_until = max(self._paused_until, stopwatch() + seconds)
