"""A wall limit whose time can stand still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.core.clock import stopwatch


class Wall:
    """Calls `passed` once `limit_s` seconds have passed while it ran; it runs from the start."""

    def __init__(self, limit_s: float, passed: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._passed = passed
        self._before_s = 0.0
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.go()

    def go(self) -> None:
        """Run on; idempotent."""
        if self._since is None:
            self._since = stopwatch()
            left_s = max(0.0, self._limit_s - self._before_s)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._passed)

    def stop(self) -> None:
        """Stand still; idempotent."""
        if self._since is not None and self._timer is not None:
            self._timer.cancel()
            self._before_s += stopwatch() - self._since
            self._since = None

    @property
    def elapsed_s(self) -> float:
        """Seconds that it ran."""
        return self._before_s + (0.0 if self._since is None else stopwatch() - self._since)
