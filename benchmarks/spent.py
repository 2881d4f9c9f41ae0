"""Wall and CPU seconds of this process."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.clock import process_cpu_s, stopwatch


class Spent(NamedTuple):
    """Two clocks, or what passed on both."""

    wall_s: float
    cpu_s: float  # of all threads


def now() -> Spent:
    """Read both clocks."""
    return Spent(stopwatch(), process_cpu_s())


def spent_since(began: Spent) -> Spent:
    """Return what passed since."""
    return Spent(stopwatch() - began.wall_s, process_cpu_s() - began.cpu_s)
