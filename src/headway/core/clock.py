"""Time comes from a Clock and from nowhere else, so that a simulated run can own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of seconds."""

    def now(self) -> float:
        """Return seconds since the run began; never decreases."""
        ...


class RunClock:
    """Monotonic seconds since the run began.

    A resumed run passes the time of its last journal record as `offset_s`, so that its journal's times
    go on from there and never step back.
    """

    def __init__(self, offset_s: float = 0.0) -> None:
        self._zero = time.monotonic() - offset_s

    def now(self) -> float:
        """Return seconds since the run began."""
        return time.monotonic() - self._zero


class VirtualClock:
    """A clock that the simulated driver moves by hand."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def advance_to(self, at_s: float) -> None:
        """Move to `at_s`; moving backwards is a programming error."""
        if at_s < self._now:
            raise ValueError(f"virtual time cannot go back from {self._now} to {at_s}")
        self._now = at_s


def wall_time() -> float:
    """Return seconds since the epoch, for headers and file names only; never for durations."""
    return time.time()


def stopwatch() -> float:
    """Return monotonic seconds with an arbitrary zero, for measuring one duration inside one process."""
    return time.perf_counter()


def process_cpu_s() -> float:
    """Return the CPU seconds that this process has used in all its threads."""
    return time.process_time()
