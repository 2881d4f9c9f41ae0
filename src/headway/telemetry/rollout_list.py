"""The table of rollouts as text, one line each, made to fit a width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from headway.core.records import Latency
from headway.telemetry.rollout_record import RolloutRecord
from headway.telemetry.text import UNKNOWN, number, percent, seconds
from headway.telemetry.visible import short_line, visible_line

_GAP = "  "
_LEAST_REASON = 20  # characters of it, where somebody asks for the column
_MAX_NAME = 32  # characters of a task's id


def mostly(record: RolloutRecord) -> str:
    """Return the part of its time that was longest, with its share; the cause where it failed."""
    if record.latency is None or not record.end_to_end_s:
        return short_line(record.failures[-1].cause, _MAX_NAME) if record.failures else UNKNOWN
    parts = {part.name: getattr(record.latency, part.name) for part in fields(Latency)}
    name = max(parts, key=lambda part: parts[part])
    return f"{part_name(name)} {percent(parts[name] / record.end_to_end_s)}"


def reason(record: RolloutRecord) -> str:
    """Return the first reason of the reward; of a rollout without a reward, how its last attempt failed."""
    if record.reasons:
        return " ".join(visible_line(record.reasons[0]).split())
    message = record.failures[-1].message if record.failures and record.reward is None else ""
    return " ".join(visible_line(message).split()) or UNKNOWN


def part_name(field: str) -> str:
    """Return a latency part's name in words."""
    return field.removesuffix("_s").replace("_", " ")


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    of: Callable[[RolloutRecord], str]
    right: bool = False
    leaves: int = 0  # the order in which columns leave a narrow table, 0 never


_COLUMNS = (
    _Column("rollout", lambda r: short_line(r.rollout, _MAX_NAME)),
    _Column("task", lambda r: short_line(r.task_id, _MAX_NAME)),
    _Column("purpose", lambda r: r.purpose, leaves=1),
    _Column("reward", lambda r: number(r.reward, 2), right=True),
    _Column("advantage", lambda r: _signed(r.advantage), right=True, leaves=6),
    _Column("tokens", lambda r: f"{r.num_tokens:,}", right=True),
    _Column("turns", lambda r: str(r.num_turns), right=True, leaves=2),
    _Column("step", lambda r: _whole(r.step), right=True, leaves=7),
    _Column("stale", lambda r: _whole(r.token_staleness), right=True, leaves=5),
    _Column("fate", lambda r: r.state),
    _Column("time", lambda r: seconds(r.duration_s), right=True, leaves=4),
    _Column("mostly", mostly, leaves=3),
    _Column("why", reason, leaves=1),
)


def table_lines(
    records: Sequence[RolloutRecord], width: int | None = None, wanted: Sequence[str] = ()
) -> list[str]:
    """Return a head and one line a rollout.

    Columns that do not fit into `width` are left out, those that are `wanted` last; the reason of a reward is
    cut to the room that there is.
    """
    columns = [(column, [column.title, *(column.of(record) for record in records)]) for column in _COLUMNS]
    reasons = columns[-1][1]
    if all(text == UNKNOWN for text in reasons[1:]):
        del columns[-1]
    elif width is not None:
        columns[-1] = (columns[-1][0], [text[:_LEAST_REASON] for text in reasons])
    while width is not None and _width(columns) > width:
        leaving = [column for column, _ in columns if column.leaves]
        if not leaving:
            break
        first = min(leaving, key=lambda column: (column.title in wanted, column.leaves))
        columns = [pair for pair in columns if pair[0] is not first]
    if width is not None and columns[-1][0].title == "why":
        room = width - _width(columns[:-1]) - len(_GAP)
        columns[-1] = (
            columns[-1][0],
            [text if len(text) <= room else f"{text[: room - 1]}…" for text in reasons],
        )
    aligned = [
        [cell.rjust(size) if column.right else cell.ljust(size) for cell in cells]
        for column, cells in columns
        for size in [max(map(len, cells))]
    ]
    return [_GAP.join(line).rstrip() for line in zip(*aligned, strict=True)]


def _width(columns: Sequence[tuple[_Column, list[str]]]) -> int:
    return sum(max(map(len, cells)) for _, cells in columns) + len(_GAP) * (len(columns) - 1)


def _signed(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:+.2f}"


def _whole(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)
