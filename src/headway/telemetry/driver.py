"""What the driver itself costs, from the totals that its processes wrote as stats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.telemetry.records import Stat

_TOTALS = ("driver_cpu_s", "scheduler_s", "journal_s")
OVERHEAD_TARGET = 0.03  # share of wall time


class DriverCost:
    """Adds the totals of all lives up: a total that falls back means a new driver process."""

    def __init__(self) -> None:
        self._earlier = dict.fromkeys(_TOTALS, 0.0)
        self._newest: dict[str, float] = {}

    def feed(self, stat: Stat) -> None:
        """Take one measurement in."""
        for name in _TOTALS:
            value = stat.values.get(name)
            if value is None:
                continue
            before = self._newest.get(name, 0.0)
            if value < before:
                self._earlier[name] += before
            self._newest[name] = value

    def summary(self, wall_s: float) -> dict[str, object]:
        """Return the rl.driver keys; None for what was never measured."""
        totals = {
            name: self._earlier[name] + self._newest[name] if name in self._newest else None
            for name in _TOTALS
        }
        cpu = totals["driver_cpu_s"]
        return {
            "rl.driver.overhead_fraction": None if cpu is None else ratio(cpu, wall_s),
            "rl.driver.cpu_s": cpu,
            "rl.driver.scheduler_s": totals["scheduler_s"],
            "rl.driver.journal_s": totals["journal_s"],
        }
