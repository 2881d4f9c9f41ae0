"""A comparison of runs in words."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, cast

from rich.console import Console
from rich.text import Text

from headway.telemetry.report_table import plain_table
from headway.telemetry.text import UNKNOWN, figures, percent, seconds
from headway.telemetry.visible import visible_line

if TYPE_CHECKING:
    from headway.matching.compare import Comparison
    from headway.matching.compare_rows import Row, Value

MAX_SETTINGS = 16
_WIDTH = 110


def comparison_text(comparison: Comparison) -> str:
    """Return the comparison as a person reads it."""
    console = Console(file=StringIO(), width=_WIDTH, color_system=None, force_terminal=False, highlight=False)
    names = [visible_line(name) for name in comparison.names]
    console.print(Text(_verdict(comparison)))
    for note in comparison.notes:
        console.print(Text(f"mind: {visible_line(note)}"))
    table = plain_table("", *names)
    for row in comparison.rows:
        cells = [
            _cell(value, row.unit) + (" *" if differs else "")
            for value, differs in zip(row.values, row.beyond, strict=True)
        ]
        table.add_row(row.label, *cells)
    console.print("", table, "", sep="\n")
    console.print(
        Text(f"* differs from {names[0]} beyond the 95 % intervals of the two, of these runs alone")
    )
    if comparison.settings:
        console.print("", Text("What differs in the settings"), sep="\n")
        shown = plain_table("", *names)
        for key, values in list(comparison.settings.items())[:MAX_SETTINGS]:
            shown.add_row(key, *(visible_line(str(value)) for value in values))
        console.print(shown)
        if (rest := len(comparison.settings) - MAX_SETTINGS) > 0:
            console.print(Text(f"and {rest} more; --json has all"))
    out = cast("StringIO", console.file).getvalue()
    return "\n".join(line.rstrip() for line in out.rstrip().splitlines()) + "\n"


def _verdict(comparison: Comparison) -> str:
    """Return what stands out, one sentence each other run."""
    first = visible_line(comparison.names[0])
    sentences: list[str] = []
    for place, name in enumerate(comparison.names[1:], 1):
        told = [
            _difference(row, place)
            for row in comparison.rows
            if row.beyond[place] and not row.metric.startswith("reward.slope")  # a fit, not a measurement
        ]
        what = "; ".join(told[:4]) if told else "no difference beyond the intervals"
        more = f"; and {len(told) - 4} more" if len(told) > 4 else ""
        sentences.append(f"{visible_line(name)} against {first}: {what}{more}.")
    return "\n".join(sentences)


def _difference(row: Row, place: int) -> str:
    before, after = row.values[0].value or 0.0, row.values[place].value or 0.0
    return f"{row.label} {_number(before, row.unit)} -> {_number(after, row.unit)}"


def _cell(value: Value, unit: str) -> str:
    if value.value is None:
        return UNKNOWN
    half = value.half
    return _number(value.value, unit) + ("" if half is None else f" ±{_number(half, unit)}")


def _number(value: float, unit: str) -> str:
    match unit:
        case "share":
            return percent(value, 1)
        case "seconds":
            return seconds(value)
        case "usd":
            return f"${value:,.2f}"
        case "count":
            return f"{value:,.0f}"
        case _:
            return figures(value)
