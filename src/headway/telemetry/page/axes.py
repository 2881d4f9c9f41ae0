"""The axes that plots share: time's unit, what is marked, and how long curves are thinned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from headway.telemetry.page.collect import Mark
from headway.telemetry.page.thin import MAX_MEANS, MAX_POINTS, extremes, known, level_means, means, rounded
from headway.telemetry.page.traces import BAD, QUIET, THIRD, Trace, plain_figure, text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.telemetry.page.collect import PageData

DOTS: dict[str, Any] = {"mode": "lines+markers", "marker": {"size": 8}, "long": "extremes"}  # few points
MAX_MARKS = 60  # in one plot
SYMBOLS = {"rollback": "◀", "alarm": "▲", "setting": "◆", "resume": "●"}  # the first ones matter most
_COLORS = {"rollback": BAD, "alarm": BAD, "setting": THIRD, "resume": QUIET}
_RANK = list(SYMBOLS)
_MAX_TICKS = 10  # steps that are named each; of halves nobody knows anything
_PALE = 0.3  # opacity of what stands behind the means


@dataclass(slots=True)
class Axes:
    """What all plots of a page share.

    Attributes:
        time_unit: of axes of time.
        per_unit: seconds of one.
        marks: what is marked in plots over steps and over time.
        num_left_out: marks that are too many to show.
        thinned: whether any curve shows fewer points than there are.
        few_steps: whether each step gets a tick.
    """

    time_unit: str
    per_unit: float
    marks: list[Mark] = field(default_factory=list[Mark])
    num_left_out: int = 0
    thinned: bool = False
    few_steps: bool = False

    @classmethod
    def of(cls, data: PageData) -> Axes:
        """Choose them for a run."""
        wall_s = data.metrics.now
        unit, per = ("s", 1.0) if wall_s < 180 else ("min", 60.0) if wall_s < 3 * 3600 else ("h", 3600.0)
        ranked = sorted(data.marks, key=lambda mark: _RANK.index(mark.kind))
        kept = ranked[:MAX_MARKS]
        few_steps = data.metrics.steps.steps_ended <= _MAX_TICKS
        return cls(unit, per, kept, len(ranked) - len(kept), few_steps=few_steps)

    def times(self, seconds: Sequence[float]) -> list[float]:
        """Return seconds in the axis's unit."""
        return [rounded(value / self.per_unit) for value in seconds]

    def curve(
        self,
        name: str,
        xs: Sequence[float],
        ys: Sequence[float | None],
        color: str,
        *,
        long: Literal["both", "means", "extremes"] = "both",
        **style: Any,
    ) -> list[Trace]:
        """Return a line, nothing without a point.

        One of more than MAX_MEANS points is shown by the means of equal stretches, its extremes pale behind
        them; or by one of the two, as `long` says.
        """
        xs, values = known(xs, ys)
        if len(values) <= (MAX_POINTS if long == "extremes" else MAX_MEANS):
            return [_trace(name, xs, values, color, style)] if values else []
        self.thinned = True
        shown: list[Trace] = []
        if long != "means":
            places = extremes(values)
            points = [xs[at] for at in places], [values[at] for at in places]
            shown.append(_trace(name, *points, color, style if long == "extremes" else {}))
        if long == "both":
            shown[0] |= {"opacity": _PALE, "showlegend": False, "hoverinfo": "skip"}
            shown[0]["line"]["width"] = 1
        if long != "extremes":
            shown.append(_trace(name, *means(xs, values), color, {**style, "shape": "linear"}))
        return shown

    def level(self, name: str, times: Sequence[float], values: Sequence[float], color: str) -> list[Trace]:
        """Return a number that changes in steps, each value in force until the next time.

        Of a long one the time-weighted means, its extremes pale behind them.
        """
        if len(values) <= MAX_POINTS:
            return self.curve(name, times, values, color, shape="hv", long="extremes")
        pale = self.curve(name, times, values, color)[:1]
        return [*pale, _trace(name, *level_means(times, values), color, {})]

    def over_steps(self, traces: Sequence[Trace], **layout: Any) -> dict[str, Any] | None:
        """Return a figure over steps with the marks, None without a trace."""
        if self.few_steps:
            layout["xaxis"] = {"dtick": 1}
        return self._figure(traces, "step", [(mark.step, mark) for mark in self.marks], layout)

    def over_time(self, traces: Sequence[Trace], **layout: Any) -> dict[str, Any] | None:
        """Return a figure over time with the marks, None without a trace."""
        marks = [(mark.t / self.per_unit, mark) for mark in self.marks]
        return self._figure(traces, f"time, {self.time_unit}", marks, layout)

    def _figure(
        self, traces: Sequence[Trace], title: str, marks: list[tuple[float, Mark]], layout: dict[str, Any]
    ) -> dict[str, Any] | None:
        found = plain_figure(traces, title, hovermode="x unified", **layout)
        if found is None:
            return None
        together: dict[float, list[Mark]] = {}
        for x, mark in marks:  # the most important first
            together.setdefault(rounded(x), []).append(mark)
        if together:
            found["layout"]["shapes"] = [_line(x, some[0]) for x, some in together.items()]
            found["layout"]["annotations"] = [_flag(x, some) for x, some in together.items()]
        return found


def _trace(name: str, xs: Sequence[float], ys: Sequence[float], color: str, style: dict[str, Any]) -> Trace:
    style = dict(style)
    line = {"color": color, "width": style.pop("width", 1.8), "shape": style.pop("shape", "linear")}
    if dash := style.pop("dash", ""):
        line["dash"] = dash
    mode = style.pop("mode", "lines+markers" if len(xs) < 3 else "lines")
    points = {"x": [rounded(x) for x in xs], "y": [rounded(y) for y in ys]}
    return {"type": "scatter", "mode": mode, "name": name, **points, "line": line, **style}


def _line(x: float, mark: Mark) -> dict[str, Any]:
    line = {"color": _COLORS[mark.kind], "width": 1, "dash": "dot"}
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _flag(x: float, marks: Sequence[Mark]) -> dict[str, Any]:
    return {
        "x": x,
        "yref": "paper",
        "y": 1,
        "yanchor": "bottom",
        "text": SYMBOLS[marks[0].kind],
        "showarrow": False,
        "hovertext": "<br>".join(text_of(mark.text) for mark in marks),
        "font": {"size": 11, "color": _COLORS[marks[0].kind]},
    }
