"""The page's tables of sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.telemetry import report_sandboxes as told
from headway.telemetry.page.parts import Cell, Table
from headway.telemetry.text import percent, seconds

Summary = Mapping[str, Any]
_TAIL = ("mean", "p50", "p90", "p99", "max")


def tables(summary: Summary) -> list[Table]:
    """Return where their time went, what one took and used, and the slowest starts."""
    if not told.any_sandbox(summary):
        return []
    found: list[Table] = []
    times = told.times(summary)
    if most := max(part.share or 0.0 for part in times):
        rows: list[tuple[str | Cell, ...]] = [
            (part.label, Cell(percent(part.share), (part.share or 0.0) / most), seconds(part.seconds))
            for part in times
        ]
        caption = "Of all sandboxes that ended, those of verifiers included."
        found.append(Table("Where sandbox time went", ("<part", "share", "in all"), rows, caption))
    each: list[tuple[str | Cell, ...]] = [
        (label, *cells) for label, cells in (*told.phases(summary), *told.uses(summary))
    ]
    if each:
        found.append(Table("One sandbox", ("<of one", *_TAIL), each))
    if slow := told.slowest(summary):
        columns = tuple(f"<{name}" if place < 3 else name for place, name in enumerate(told.SLOWEST))
        found.append(Table("Slowest sandbox starts", columns, [*slow]))
    return found


def lines(summary: Summary) -> list[str]:
    """Return how many there were, how commands ended, and what failed."""
    return told.lines(summary) if told.any_sandbox(summary) else []
