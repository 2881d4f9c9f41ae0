"""Reads a simulated journal back into the facts that the invariants speak of."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from headway.core.commands import StartRollout
from headway.core.notes import BatchReleased, RolloutRevived, RolloutSettled
from headway.matching.simulate import SimEntry

T = TypeVar("T")


def all_notes(entries: list[SimEntry], kind: type[T]) -> list[T]:
    return [note for entry in entries for note in entry.notes if isinstance(note, kind)]


def all_commands(entries: list[SimEntry], kind: type[T]) -> list[T]:
    return [command for entry in entries for command in entry.commands if isinstance(command, kind)]


def fates(entries: list[SimEntry]) -> dict[str, str]:
    """Return rollout -> fate in the surviving lineage; a second settlement without a revival is an error."""
    settled: dict[str, str] = {}
    for entry in entries:
        for note in entry.notes:
            if isinstance(note, RolloutSettled):
                assert note.rollout not in settled, (
                    f"{note.rollout} settled twice: {settled[note.rollout]}, {note.fate}"
                )
                settled[note.rollout] = note.fate
            elif isinstance(note, RolloutRevived):
                assert settled.pop(note.rollout, None) is not None, f"{note.rollout} revived but not settled"
    return settled


def assert_conserved(entries: list[SimEntry]) -> Counter[str]:
    started = {command.rollout for command in all_commands(entries, StartRollout)}
    ends = fates(entries)
    assert set(ends) == started
    return Counter(ends.values())


def assert_within_bound(entries: list[SimEntry], bound: int) -> None:
    for batch in all_notes(entries, BatchReleased):
        assert all(age <= bound for age, _ in batch.token_staleness)
