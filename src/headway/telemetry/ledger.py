"""Conservation: every rollout started ends exactly once, and what the discarded ones cost.

A RolloutRevived takes a settlement back. A rollout that settles although it never started (its group was
dropped before) is counted apart and breaks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from headway.core.notes import Fate, RolloutRevived, RolloutSettled
from headway.core.records import Purpose
from headway.telemetry.tails import ratio

FATES: tuple[Fate, ...] = get_args(Fate)
KEPT: frozenset[Fate] = frozenset({"trained", "evaluated", "carried"})  # every other fate is a discard


@dataclass(slots=True)
class Line:
    """One rollout in the book."""

    purpose: Purpose
    num_ended_tokens: int | None = None  # as RolloutEnded told, None without one
    fate: Fate | None = None
    num_tokens: int = 0  # as the settlement told


class Ledger:
    """The book of all rollouts."""

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._num_never_started = 0
        self._num_settled_twice = 0

    def started(self, rollout: str, purpose: Purpose) -> None:
        """An attempt starts; a rollout enters the book once."""
        line = self._lines.setdefault(rollout, Line(purpose))
        line.num_ended_tokens = None

    def ended(self, rollout: str, num_tokens: int) -> None:
        """A rollout left a payload of so many sampled tokens."""
        if rollout in self._lines:
            self._lines[rollout].num_ended_tokens = num_tokens

    def settled(self, note: RolloutSettled) -> None:
        """A rollout ends."""
        line = self._lines.get(note.rollout)
        if line is None:
            self._num_never_started += 1
            return
        if line.fate is not None:
            self._num_settled_twice += 1
        line.fate, line.num_tokens = note.fate, note.num_tokens

    def revived(self, note: RolloutRevived) -> None:
        """A settled rollout is back in the queue."""
        if line := self._lines.get(note.rollout):
            line.fate, line.num_tokens = None, 0

    def train_lines(self) -> Iterator[Line]:
        """Return the lines of train rollouts."""
        return (line for line in self._lines.values() if line.purpose == "train")

    def conservation(self, finished: bool) -> dict[str, object]:
        """Return the conservation keys; `ok` allows open rollouts only while the run is unfinished."""
        rollouts: dict[Fate, int] = dict.fromkeys(FATES, 0)
        tokens: dict[Fate, int] = dict.fromkeys(FATES, 0)
        num_open = num_mismatches = 0
        for line in self._lines.values():
            if line.fate is None:
                num_open += 1
                continue
            rollouts[line.fate] += 1
            tokens[line.fate] += line.num_tokens
            num_mismatches += line.num_ended_tokens is not None and line.num_tokens != line.num_ended_tokens
        ok = not self._num_settled_twice and not num_mismatches and (num_open == 0 or not finished)
        return {
            "conservation.started": len(self._lines),
            "conservation.by_fate": {fate: count for fate, count in rollouts.items() if count},
            "conservation.tokens_by_fate": {fate: count for fate, count in tokens.items() if count},
            "conservation.open": num_open,
            "conservation.never_started": self._num_never_started,
            "conservation.settled_twice": self._num_settled_twice,
            "conservation.token_mismatches": num_mismatches,
            "conservation.ok": ok,
        }

    def discards(self) -> dict[str, object]:
        """Return rl.discard.{reason}.rollouts and .tokens of train rollouts, and the shares of all."""
        rollouts: dict[Fate, int] = dict.fromkeys(FATES, 0)
        tokens: dict[Fate, int] = dict.fromkeys(FATES, 0)
        for line in self._lines.values():
            if line.fate is not None and line.purpose == "train":
                rollouts[line.fate] += 1
                tokens[line.fate] += line.num_tokens
        keys: dict[str, object] = {}
        reasons: list[Fate] = [fate for fate in FATES if fate not in KEPT]
        for reason in reasons:
            keys[f"rl.discard.{reason}.rollouts"] = rollouts[reason]
            keys[f"rl.discard.{reason}.tokens"] = tokens[reason]
        lost = sum(rollouts[reason] for reason in reasons)
        keys["rl.discard.rollout_fraction"] = ratio(lost, sum(rollouts.values()))
        keys["rl.discard.token_fraction"] = ratio(sum(tokens[r] for r in reasons), sum(tokens.values()))
        return keys
