"""Traces and layouts of plotly as plain values. Colours are names of the page's CSS variables."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

from headway.telemetry.page.thin import rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

ACCENT, SECOND, THIRD, FOURTH, QUIET, BAD = "--accent", "--second", "--third", "--fourth", "--quiet", "--bad"
Trace = dict[str, Any]


def plain_figure(traces: Sequence[Trace], title: str, **layout: Any) -> dict[str, Any] | None:
    """Return a figure whose horizontal axis has this title, None without a trace."""
    if not traces:
        return None
    xaxis = {"title": {"text": title}, **layout.pop("xaxis", {})}
    shown = sum(trace.get("showlegend", True) for trace in traces) > 1
    return {"data": list(traces), "layout": {"xaxis": xaxis, "showlegend": shown, **layout}}


def text_of(value: str) -> str:
    """Return text that plotly shows as it is, for it reads some HTML."""
    return html.escape(value, quote=False)


def histogram_bars(name: str, values: Sequence[float], color: str, most: int = 40) -> Trace | None:
    """Return bars of how many values fall into each of at most `most` ranges of equal width.

    Whole numbers get ranges of whole width.
    """
    if not values:
        return None
    low, high = min(values), max(values)
    width = max(1.0, math.ceil((high - low + 1) / most))
    counts: dict[int, int] = {}
    for value in values:
        place = int((value - low) // width)
        counts[place] = counts.get(place, 0) + 1
    places = range(max(counts) + 1)
    starts = [low + place * width for place in places]
    labels = [
        f"{start:,.0f}" if width == 1.0 else f"{start:,.0f} to {start + width - 1:,.0f}" for start in starts
    ]
    total = len(values)
    return {
        "type": "bar",
        "name": name,
        "x": [start + (width - 1) / 2 for start in starts],
        "y": [counts.get(place, 0) for place in places],
        "width": width * 0.92,
        "marker": {"color": color},
        "customdata": [
            [label, rounded(100 * counts.get(at, 0) / total, 3)]
            for label, at in zip(labels, places, strict=True)
        ],
        "hovertemplate": "%{customdata[0]}: %{y:,} (%{customdata[1]}%)<extra></extra>",
    }
