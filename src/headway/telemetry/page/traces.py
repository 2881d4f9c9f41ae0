"""Traces and layouts of plotly as plain values. Colours are names of the page's CSS variables."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headway.telemetry.page.collect import Mark
from headway.telemetry.page.thin import MAX_POINTS, extremes, known, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.telemetry.page.collect import PageData

ACCENT, SECOND, THIRD, FOURTH, QUIET, BAD = "--accent", "--second", "--third", "--fourth", "--quiet", "--bad"
DOTS: dict[str, Any] = {"mode": "lines+markers", "marker": {"size": 8}}  # few points, each of them measured
Trace = dict[str, Any]
MAX_MARKS = 60  # in one plot
_SYMBOLS = {"alarm": "▲", "rollback": "◀", "resume": "●", "setting": "◆"}
_MARK_COLORS = {"alarm": BAD, "rollback": BAD, "resume": QUIET, "setting": THIRD}
_FIRST = ("rollback", "alarm", "setting", "resume")  # what is kept where there are too many


@dataclass(slots=True)
class Axes:
    """What all plots of a page share.

    Attributes:
        time_unit: of axes of time.
        per_unit: seconds of one.
        marks: what is marked in plots over steps and over time.
        num_left_out: marks that are too many to show.
        thinned: whether any curve shows fewer points than there are.
    """

    time_unit: str
    per_unit: float
    marks: list[Mark] = field(default_factory=list[Mark])
    num_left_out: int = 0
    thinned: bool = False

    @classmethod
    def of(cls, data: PageData) -> Axes:
        """Choose them for a run."""
        wall_s = data.metrics.now
        unit, per = ("s", 1.0) if wall_s < 180 else ("min", 60.0) if wall_s < 3 * 3600 else ("h", 3600.0)
        ranked = sorted(data.marks, key=lambda mark: _FIRST.index(mark.kind))
        kept = ranked[:MAX_MARKS]
        return cls(unit, per, kept, len(ranked) - len(kept))

    def times(self, seconds: Sequence[float]) -> list[float]:
        """Return seconds in the axis's unit."""
        return [rounded(value / self.per_unit) for value in seconds]

    def curve(
        self, name: str, xs: Sequence[float], ys: Sequence[float | None], color: str, **more: Any
    ) -> Trace | None:
        """Return a line of at most MAX_POINTS points, None without a point."""
        xs, values = known(xs, ys)
        if not values:
            return None
        places = extremes(values)
        self.thinned = self.thinned or len(values) > MAX_POINTS
        points = {"x": [rounded(xs[at]) for at in places], "y": [rounded(values[at]) for at in places]}
        style = {"color": color, "width": more.pop("width", 1.8), "shape": more.pop("shape", "linear")}
        if dash := more.pop("dash", ""):
            style["dash"] = dash
        mode = more.pop("mode", "lines+markers" if len(places) < 3 else "lines")
        return {"type": "scatter", "mode": mode, "name": name, **points, "line": style, **more}

    def over_steps(self, traces: Sequence[Trace | None], **layout: Any) -> dict[str, Any] | None:
        """Return a figure over steps with the marks, None without a trace."""
        marks = [(mark, mark.step) for mark in self.marks]
        return self._figure(traces, "step", marks, layout)

    def over_time(self, traces: Sequence[Trace | None], **layout: Any) -> dict[str, Any] | None:
        """Return a figure over time with the marks, None without a trace."""
        marks = [(mark, mark.t / self.per_unit) for mark in self.marks]
        return self._figure(traces, f"time, {self.time_unit}", marks, layout)

    def _figure(
        self,
        traces: Sequence[Trace | None],
        title: str,
        marks: list[tuple[Mark, float]],
        layout: dict[str, Any],
    ) -> dict[str, Any] | None:
        found = plain_figure(traces, title, hovermode="x unified", **layout)
        if found is not None and marks:
            found["layout"]["shapes"] = [*found["layout"].get("shapes", []), *map(_line, marks)]
            found["layout"]["annotations"] = [_flag(mark, x) for mark, x in marks]
        return found


def plain_figure(traces: Sequence[Trace | None], title: str, **layout: Any) -> dict[str, Any] | None:
    """Return a figure whose horizontal axis has this title, None without a trace."""
    data = [trace for trace in traces if trace is not None]
    if not data:
        return None
    xaxis = {"title": {"text": title}, **layout.pop("xaxis", {})}
    shown = sum(trace.get("showlegend", True) for trace in data) > 1
    return {"data": data, "layout": {"xaxis": xaxis, "showlegend": shown, **layout}}


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


def _line(item: tuple[Mark, float]) -> dict[str, Any]:
    mark, x = item
    line = {"color": _MARK_COLORS[mark.kind], "width": 1, "dash": "dot"}
    at = rounded(x)
    return {"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _flag(mark: Mark, x: float) -> dict[str, Any]:
    return {
        "x": rounded(x),
        "yref": "paper",
        "y": 1,
        "yanchor": "bottom",
        "text": _SYMBOLS[mark.kind],
        "showarrow": False,
        "hovertext": text_of(mark.text),
        "font": {"size": 11, "color": _MARK_COLORS[mark.kind]},
    }


def symbol_of(kind: str) -> str:
    """Return how a kind of mark is drawn."""
    return _SYMBOLS[kind]
