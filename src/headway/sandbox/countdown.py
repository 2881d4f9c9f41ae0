"""A limit of wall time that does not run while it is paused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headway.core.clock import stopwatch


class Countdown:
    """Calls back once when its time is over; cancelling and pausing are idempotent."""

    def __init__(self, when_over: Callable[[], None]) -> None:
        self._when_over = when_over
        self._left_s = 0.0
        self._ran_s = 0.0  # until it last began to run
        self._since: float | None = None  # when it last began to run
        self._handle: asyncio.TimerHandle | None = None
        self._paused = False
        self._paused_at = 0.0
        self.paused_s = 0.0  # seconds that it was paused for
        self.started = False

    def start(self, seconds: float) -> None:
        """Let it run from now on, or from the end of a pause."""
        self.started = True
        self._left_s = seconds
        if not self._paused:
            self._run()

    def pause(self) -> None:
        """Stop the time."""
        if self._paused:
            return
        self._paused, self._paused_at = True, stopwatch()
        if self._since is not None:
            ran_s = stopwatch() - self._since
            self._left_s -= ran_s
            self._ran_s += ran_s
            self._since = None
        if self._handle is not None:
            self._handle.cancel()

    def resume(self) -> None:
        """Let the time go on."""
        if not self._paused:
            return
        self._paused = False
        self.paused_s += stopwatch() - self._paused_at
        if self._handle is not None or self._left_s:
            self._run()

    def cancel(self) -> None:
        """Never call back."""
        if self._handle is not None:
            self._handle.cancel()
        self._left_s = 0.0
        self._handle = None

    @property
    def elapsed_s(self) -> float:
        """Seconds that it ran."""
        return self._ran_s + (0.0 if self._since is None else stopwatch() - self._since)

    def _run(self) -> None:
        self._since = stopwatch()
        self._handle = asyncio.get_running_loop().call_later(max(0.0, self._left_s), self._when_over)
