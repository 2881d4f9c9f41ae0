"""The report's section of findings: what costs the run time, and what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from headway.telemetry.text import percent
from headway.telemetry.visible import visible_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headway.telemetry.told import Findings

_INDENT = (0, 0, 0, 3)


def section(findings: Findings | None) -> list[RenderableType]:
    """Return the findings' lines, nothing where there are none."""
    if findings is None or not findings.told:
        return []
    parts: list[RenderableType] = [Text(findings.verdict)]
    for place, told in enumerate(findings.told, 1):
        lines = (told.evidence[0], f"do: {told.change} ({told.gain})")
        parts.append(Text(f"{place}. {told.title} ({percent(told.stake)} of the run's time)"))
        parts += [Padding(Text(visible_line(line)), _INDENT) for line in lines]
    return parts
