"""Which tasks were asked for: the mix of sources, difficulty levels, what acceptance dropped, what rests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.core.notes import BatchReleased, GroupSettled, TaskRegressed, TaskRetired, TaskReturned

REASONS = ("zero_advantage", "band", "verdict")
ONLY = "environment"  # the name of the one source of a run without [source.NAME]


@dataclass(slots=True)
class _Seen:
    num_groups: int = 0
    num_rollouts: int = 0
    num_solved: int = 0

    def add(self, note: GroupSettled) -> None:
        self.num_groups += 1
        self.num_rollouts += note.num_rollouts
        self.num_solved += note.num_solved

    def row(self) -> dict[str, Any]:
        return {"groups": self.num_groups, "solve_rate": ratio(self.num_solved, self.num_rollouts)}


class Tasks:
    """Settled train groups by source and level, trained ones by source, tasks that rest or have regressed."""

    def __init__(self, band: tuple[float, float] | None) -> None:
        self._band = band
        self._sources: dict[str, _Seen] = {}
        self._levels: dict[str, _Seen] = {}
        self._dropped = dict.fromkeys(REASONS, 0)
        self._num_in_band = 0
        self._num_settled = 0
        self._source_of: dict[str, str] = {}  # groups that entered the queue
        self._trained: dict[int, Counter[str]] = {}  # by surviving step
        self._resting: set[str] = set()
        self._num_retired = 0
        self._num_returned = 0
        self._regressed: list[dict[str, Any]] = []

    def settled(self, note: GroupSettled) -> None:
        """A train group settled."""
        if note.reason:
            self._dropped[note.reason] += 1
        if note.fate == "queued":
            self._source_of[note.group] = note.source or ONLY
        if note.fate == "voided" or not note.num_rollouts:
            return
        self._num_settled += 1
        share = note.num_solved / note.num_rollouts
        if self._band is not None:
            self._num_in_band += self._band[0] <= share <= self._band[1]
        self._sources.setdefault(note.source or ONLY, _Seen()).add(note)
        level = f"{note.source}/{note.level}" if note.source else str(note.level)
        self._levels.setdefault(level, _Seen()).add(note)

    def released(self, note: BatchReleased) -> None:
        """A batch leaves for the trainer."""
        names = (self._source_of[group] for group in note.groups if group in self._source_of)
        self._trained[note.step] = Counter(names)

    def took_back(self, step: int) -> None:
        """Only the steps up to this one survive."""
        self._trained = {number: groups for number, groups in self._trained.items() if number <= step}

    def retired(self, note: TaskRetired) -> None:
        """A task rests."""
        self._num_retired += 1
        self._resting.add(note.task_id)

    def returned(self, note: TaskReturned) -> None:
        """A task is asked for once more."""
        self._num_returned += 1
        self._resting.discard(note.task_id)

    def regressed(self, note: TaskRegressed) -> None:
        """A task that rested is not solved any more."""
        self._resting.discard(note.task_id)
        self._regressed.append(
            {"task": note.task_id, "level": note.level, "step": note.step, "solve_rate": note.solve_rate}
        )

    def summary(self) -> dict[str, object]:
        """Return the rl.acceptance, rl.mix and rl.curriculum keys."""
        trained: Counter[str] = Counter()
        for groups in self._trained.values():
            trained.update(groups)
        return {
            **{f"rl.acceptance.{reason}.groups": num for reason, num in self._dropped.items()},
            "rl.mix.settled": {name: seen.row() for name, seen in sorted(self._sources.items())},
            "rl.mix.trained": dict(sorted(trained.items())),
            "rl.curriculum.levels": {name: seen.row() for name, seen in sorted(self._levels.items())},
            "rl.curriculum.in_band_fraction": None
            if self._band is None
            else ratio(self._num_in_band, self._num_settled),
            "rl.curriculum.resting": len(self._resting),
            "rl.curriculum.retirements": self._num_retired,
            "rl.curriculum.returns": self._num_returned,
            "rl.curriculum.regressed": self._regressed,
        }
