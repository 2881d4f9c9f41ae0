"""What the reports say of sandboxes: where their time went, what a start consists of, how they failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from headway.core.storage import size
from headway.telemetry.report_table import plain_table
from headway.telemetry.sandboxes import TIMES
from headway.telemetry.text import number, percent, seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

Summary = Mapping[str, Any]
_MOST_SLOWEST = 5  # that the text report lists
_TAIL = ("mean", "p50", "p90", "p99", "max")
_TIMES = dict(
    zip(
        TIMES,
        (
            "queued for a grant",
            "handed over between processes",
            "starting",
            "running commands",
            "idle between commands",
            "verifying",
            "ending",
        ),
        strict=True,
    )
)
_PHASES = {
    "queue_s": "queued for a grant",
    "handover_s": "handed over between processes",
    "start_s": "start",
    "first_call_overhead_s": "first command: all but its run",
    "call_s": "command",
    "call_overhead_s": "command: all but its run",
    "end_s": "end",
}
SLOWEST = ("sandbox", "rollout", "for", "ready at", "queued", "handed over", "start")


class Share(NamedTuple):
    """A part of the sandboxes' time."""

    label: str
    share: float | None
    seconds: float


def any_sandbox(summary: Summary) -> bool:
    """Say whether the run asked for any."""
    return summary["rl.sandbox.queue_s"]["mean"] is not None or bool(
        summary["rl.sandbox.origins"] or summary["rl.sandbox.failures"]
    )


def times(summary: Summary) -> list[Share]:
    """Return where the sandboxes' time went, all of it, in the order of a sandbox's life."""
    spent = summary["rl.sandbox.time_s"]
    whole = sum(spent.values())
    return [
        Share(label, spent[name] / whole if whole else None, spent[name]) for name, label in _TIMES.items()
    ]


def phases(summary: Summary) -> list[tuple[str, tuple[str, ...]]]:
    """Return (label, mean to max) of each phase that was measured."""
    found = [(label, summary[f"rl.sandbox.{name}"]) for name, label in _PHASES.items()]
    return [
        (label, tuple(seconds(tail[name]) for name in _TAIL))
        for label, tail in found
        if tail["mean"] is not None
    ]


def uses(summary: Summary) -> list[tuple[str, tuple[str, ...]]]:
    """Return (label, mean to max) of what a sandbox used, where its provider tells."""
    rows: list[tuple[str, tuple[str, ...]]] = []
    for name, label, show in (
        ("cpu_s", "CPU", seconds),
        ("memory_bytes", "memory, most at once", _size),
        ("disk_bytes", "work folder at its end", _size),
        ("num_files", "files at its end", _count),
    ):
        tail = summary[f"rl.sandbox.use.{name}"]
        if tail["mean"] is not None:
            rows.append((label, tuple(show(tail[part]) for part in _TAIL)))
    return rows


def lines(summary: Summary) -> list[str]:
    """Return sentences: how many there were, how commands ended, what failed."""
    origins = summary["rl.sandbox.origins"]
    live, starting, queued = (summary[f"rl.sandbox.{name}"] for name in ("live", "starting", "queued"))
    found = [f"{sum(origins.values()):,} starts ({_counts(origins)})"] if origins else []
    if live["mean"] is not None:
        found.append(
            f"live {number(live['mean'], 1)} on average, at most {number(live['max'], 0)}; starting at most "
            f"{number(starting['max'], 0)}; waiting for a grant at most {number(queued['max'], 0)}"
        )
    if refused := summary["rl.sandbox.refused"]:
        found.append(
            f"the provider refused {refused:,} starts for its quota or its rate; they were tried again"
        )
    if calls := summary["rl.sandbox.calls"]:
        found.append(f"commands of rollouts ended by: {_counts(calls)}")
    for kind, failure in summary["rl.sandbox.failures"].items():
        found.append(f"failed, {kind}: {failure['num']:,} times, the last: {failure['last']}")
    if errors := summary["rl.sandbox.error_fraction"]:
        found.append(f"lost unasked: {percent(errors, 1)} of all")
    return found


def slowest(summary: Summary) -> list[tuple[str, ...]]:
    """Return a row of SLOWEST for each of the slowest starts that took any time."""
    return [
        (
            row["sandbox"],
            row["rollout"],
            row["purpose"],
            *(seconds(row[name]) for name in ("t", "queue_s", "handover_s", "start_s")),
        )
        for row in summary["rl.sandbox.slowest_starts"]
        if row["queue_s"] + row["handover_s"] + row["start_s"] >= 0.0005
    ]


def section(summary: Summary) -> list[RenderableType]:
    """Return the section of the text report, empty for a run without sandboxes."""
    if not any_sandbox(summary):
        return []
    parts: list[RenderableType] = []
    if any(part.seconds for part in times(summary)):
        spent = plain_table("where their time went", "share", "in all")
        for part in times(summary):
            spent.add_row(part.label, percent(part.share), seconds(part.seconds))
        parts.append(spent)
    table = plain_table("of one", *_TAIL)
    for label, cells in (*phases(summary), *uses(summary)):
        table.add_row(label, *cells)
    parts += [table] if table.row_count else []
    parts += [Text(line) for line in lines(summary)]
    if rows := slowest(summary)[:_MOST_SLOWEST]:
        starts = plain_table(f"slowest starts: {SLOWEST[0]}", *SLOWEST[1:], left=3)
        for row in rows:
            starts.add_row(*row)
        parts.append(starts)
    return parts


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _size(value: float | None) -> str:
    return "-" if value is None else size(value)


def _count(value: float | None) -> str:
    return number(value, 0)
