"""Plots: lengths and tool calls with their tails, and where a rollout's time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.telemetry.metrics import LATENCY_PARTS
from headway.telemetry.page.parts import Plot
from headway.telemetry.page.thin import MAX_BARS, MAX_MEANS, rounded, stretches
from headway.telemetry.page.traces import (
    ACCENT,
    FOURTH,
    QUIET,
    SECOND,
    Trace,
    histogram_bars,
    plain_figure,
)
from headway.telemetry.tails import Tails

if TYPE_CHECKING:
    from headway.telemetry.page.axes import Axes
    from headway.telemetry.page.collect import PageData

_TAILS = (
    ("mean", ACCENT, "solid"),
    ("p50", QUIET, "solid"),
    ("p90", FOURTH, "solid"),
    ("p99", SECOND, "dot"),
)
_MAX_TICKS = 12  # of a distribution, one at each bar
PART_COLORS = {
    "queue_s": "--part-queue",
    "parked_s": "--part-parked",
    "sandbox_start_s": "--part-sandbox",
    "prefill_s": "--part-prefill",
    "decode_s": "--part-decode",
    "tool_s": "--part-tool",
    "score_s": "--part-score",
}


def label_of(part: str) -> str:
    """Return a part of the latency as people say it."""
    return part.removesuffix("_s").replace("_", " ")


def lengths(data: PageData, axes: Axes) -> list[Plot]:
    """Return the plots of tokens and tool calls."""
    found = [
        _tails(data, axes, "tokens", "Tokens of a rollout", "sampled tokens"),
        _histogram(data, "tokens", "Tokens: distribution", "Sampled tokens of all finished train rollouts."),
    ]
    if data.metrics.tool_calls.summary()["max"]:
        found += [
            _tails(data, axes, "tool_calls", "Tool calls of a rollout", "calls"),
            _histogram(
                data, "tool_calls", "Tool calls: distribution", "Commands that a rollout ran in its sandbox."
            ),
        ]
    found.append(_truncated(data, axes))
    return [plot for plot in found if plot is not None]


def latency(data: PageData) -> list[Plot]:
    """Return where time went, over steps and in all."""
    found = [_latency_over_steps(data), _latency_totals(data)]
    return [plot for plot in found if plot is not None]


def _tails(data: PageData, axes: Axes, what: str, title: str, unit: str) -> Plot | None:
    numbers = sorted(number for number, bucket in data.buckets.items() if bucket.tokens)
    xs: list[float] = []
    series: dict[str, list[float | None]] = {name: [] for name, _, _ in _TAILS}
    for start, end in stretches(len(numbers), MAX_MEANS):
        some = numbers[start:end]
        summary = Tails(value for number in some for value in getattr(data.buckets[number], what)).summary()
        xs.append(some[-1])
        for name, values in series.items():
            values.append(summary[name])
    axes.thinned = axes.thinned or len(numbers) > MAX_MEANS
    traces = [
        trace
        for name, color, dash in _TAILS
        for trace in axes.curve(name, xs, series[name], color, dash=dash, long="extremes")
    ]
    figure = axes.over_steps(traces, yaxis={"rangemode": "tozero"})
    if figure is None:
        return None
    caption = (
        "Of the rollouts scored during a step. A tail (p99) that leaves the mean behind makes stragglers."
        if what == "tokens"
        else "Of the rollouts scored during a step."
    )
    return Plot(f"{what}-steps".replace("_", "-"), title, unit, caption, figure)


def _histogram(data: PageData, what: str, title: str, caption: str) -> Plot | None:
    values = [value for bucket in data.buckets.values() for value in getattr(bucket, what)]
    trace = histogram_bars(title, values, ACCENT)
    axis = what.replace("_", " ")
    ticks = {"dtick": 1} if trace is not None and len(trace["x"]) <= _MAX_TICKS else {}
    figure = plain_figure(
        [trace] if trace is not None else [],
        axis,
        xaxis=ticks,
        bargap=0.05,
        hovermode="closest",
        yaxis={"rangemode": "tozero", "tickformat": ","},
    )
    return (
        None if figure is None else Plot(f"{axis.replace(' ', '-')}-all", title, "rollouts", caption, figure)
    )


def _truncated(data: PageData, axes: Axes) -> Plot | None:
    records = data.metrics.steps.records
    if not any(record.truncated_fraction for record in records):
        return None
    xs: list[float] = [record.step for record in records]
    traces = axes.curve("cut off", xs, [record.truncated_fraction for record in records], ACCENT)
    figure = axes.over_steps(traces, yaxis={"tickformat": ".0%", "rangemode": "tozero"})
    if figure is None:
        return None
    caption = (
        "Rollouts with an answer that hit its token limit or the context. Rising: answers outgrow the limit."
    )
    return Plot("truncated", "Cut off by a length limit", "share of rollouts", caption, figure)


def _latency_over_steps(data: PageData) -> Plot | None:
    numbers = sorted(number for number, bucket in data.buckets.items() if bucket.tokens)
    if not numbers:
        return None
    xs: list[str] = []
    means: list[list[float]] = [[] for _ in LATENCY_PARTS]
    for start, end in stretches(len(numbers), MAX_BARS):
        some = numbers[start:end]
        xs.append(str(some[0]) if len(some) == 1 else f"{some[0]}-{some[-1]}")
        count = sum(len(data.buckets[number].tokens) for number in some)
        for place, values in enumerate(means):
            total = sum(data.buckets[number].latency_s[place] for number in some)
            values.append(rounded(total / count, 5))
    traces: list[Trace] = [
        {
            "type": "bar",
            "name": label_of(part),
            "x": xs,
            "y": values,
            "marker": {"color": PART_COLORS[part]},
            "hovertemplate": "%{y:.3s}s",
        }
        for part, values in zip(LATENCY_PARTS, means, strict=True)
        if any(values)
    ]
    figure = plain_figure(
        traces,
        "step",
        barmode="stack",
        bargap=0.15,
        hovermode="x unified",
        xaxis={"type": "category", "nticks": 12},
        yaxis={"rangemode": "tozero"},
    )
    if figure is None:
        return None
    caption = "Mean seconds of a rollout from its start to its score, by what it was doing."
    if len(xs) < len(numbers):
        caption += " Each bar is a range of steps."
    title = "Where a rollout's time went"
    return Plot("latency-steps", title, "s / rollout", caption, figure, wide=True)


def _latency_totals(data: PageData) -> Plot | None:
    sums = [0.0] * len(LATENCY_PARTS)
    count = 0
    for bucket in data.buckets.values():
        count += len(bucket.tokens)
        for place, value in enumerate(bucket.latency_s):
            sums[place] += value
    whole = sum(sums)
    if not whole:
        return None
    traces: list[Trace] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": label_of(part),
            "x": [rounded(value / whole)],
            "y": [""],
            "marker": {"color": PART_COLORS[part]},
            "customdata": [[rounded(value / count, 4), rounded(value, 4)]],
            "hovertemplate": label_of(part)
            + ": %{x:.1%}, %{customdata[0]:.3s}s a rollout, %{customdata[1]:,.0f} s in all<extra></extra>",
        }
        for part, value in zip(LATENCY_PARTS, sums, strict=True)
        if value
    ]
    figure = plain_figure(
        traces,
        "share of all rollouts' time",
        barmode="stack",
        hovermode="closest",
        xaxis={"tickformat": ".0%", "range": [0, 1]},
        yaxis={"showticklabels": False},
    )
    if figure is None:
        return None
    caption = "Queue: waiting for a place anywhere. What is widest here is what to make faster first."
    plot = Plot("latency-total", "The same in all", "", caption, figure, wide=True)
    figure["height"] = 170
    return plot
