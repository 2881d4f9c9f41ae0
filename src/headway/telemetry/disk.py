"""What a run takes on disk, from the measurements that the driver wrote as stats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.segments import SEGMENT_GROUPS, group_of
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.telemetry.records import Stat

KINDS = ("checkpoints", "payloads", "journal", "weights")
PREFIX = "disk."


class DiskUse:
    """The newest measurement, and how what only grows has grown a step.

    Checkpoints and weights are left out of the growth: as many are kept at the end as after the first few.
    """

    def __init__(self) -> None:
        self.newest: dict[str, float] = {}
        self._first: tuple[int, float] | None = None  # (step, bytes of what grows)
        self._last: tuple[int, float] | None = None

    def feed(self, stat: Stat, step: int) -> None:
        """Take one measurement in."""
        values = {
            name.removeprefix(PREFIX): value for name, value in stat.values.items() if name.startswith(PREFIX)
        }
        if not values:
            return
        self.newest = values
        point = step, values.get("payloads_bytes", 0.0) + values.get("journal_bytes", 0.0)
        if self._first is None or step < self._first[0]:
            self._first = point
        self._last = point

    @property
    def growth_bytes_per_step(self) -> float | None:
        """Bytes that payloads and journal grow a step, mean over the measurements; None when unknown."""
        if self._first is None or self._last is None or self._last[0] <= self._first[0]:
            return None
        return max(0.0, (self._last[1] - self._first[1]) / (self._last[0] - self._first[0]))

    def summary(self) -> dict[str, float | None]:
        """Return the rl.disk keys; None for what was never measured."""
        growth, free = self.growth_bytes_per_step, self.newest.get("free_bytes")
        sizes = {f"rl.disk.{kind}_bytes": self.newest.get(f"{kind}_bytes") for kind in KINDS}
        return {
            **sizes,
            "rl.disk.free_bytes": free,
            "rl.disk.growth_bytes_per_step": growth,
            "rl.disk.steps_until_full": None if free is None or not growth else ratio(free, growth),
        }


class SegmentAges:
    """The newest step that trained or dropped a train group of a segment: what retention goes by."""

    def __init__(self) -> None:
        self.newest: dict[int, int] = {}  # segment's index -> step

    def touch(self, group: str, step: int) -> None:
        """A step trained a group, or the group was dropped before this step."""
        found = group_of(group)
        if found is not None and not found[0]:
            index = found[1] // SEGMENT_GROUPS
            self.newest[index] = max(step, self.newest.get(index, 0))
