"""The matching of the two rates: who is ahead, where tokens and time went, how old what was trained is.

Every figure is of the metrics alone; findings come in as words from whoever looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.telemetry.page.flow import depth
from headway.telemetry.page.parts import Plot
from headway.telemetry.page.rollouts import PART_COLORS, label_of
from headway.telemetry.page.thin import MAX_BARS, rounded, stretches
from headway.telemetry.page.tokens_flow import tokens
from headway.telemetry.page.traces import ACCENT, QUIET, SECOND, Trace, plain_figure
from headway.telemetry.tails import ratio
from headway.telemetry.text import percent, seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.telemetry.page.axes import Axes
    from headway.telemetry.page.collect import PageData
    from headway.telemetry.steps import StepRecord

Summary = Mapping[str, Any]
_MAX_RATES = 60  # stretches of the curves of rates
_FEW_STEPS = 24  # of which each is a stretch
_PER_LETTER = 0.0085  # of the bars' length
_PALE = ("--part-queue", "--part-parked", "--part-prefill", "--wait")  # parts that bear dark text
_AGES = ("--age-0", "--age-1", "--age-2", "--age-3", "--age-4", "--age-5")


def plots(data: PageData, axes: Axes, summary: Summary) -> list[Plot]:
    """Return the plots of the section."""
    found = (rates(data, axes), tokens(summary), time(data, summary), depth(data, axes), ages(data))
    return [plot for plot in found if plot is not None]


def rates(data: PageData, axes: Axes) -> Plot | None:
    """Return both rates over time, the trainer's waiting shaded between them."""
    records = data.metrics.steps.records
    times: list[float] = []
    made: list[float] = []
    kept: list[float] = []
    used: list[float] = []
    num = len(records)
    for start, end in stretches(
        num, num if num <= _FEW_STEPS else min(_MAX_RATES, max(_FEW_STEPS, num // 2))
    ):
        some = records[start:end]
        spent, busy = sum(r.duration_s for r in some), sum(r.compute_s for r in some)
        if spent <= 0.0 or busy <= 0.0:
            continue
        trained = sum(r.num_trained_rollouts for r in some)
        times.append(rounded(some[-1].t / axes.per_unit))
        made.append(rounded(sum(r.num_rollouts for r in some) / spent))
        kept.append(rounded(trained / spent))
        used.append(rounded(trained / busy))
    if not times:
        return None
    begin = records[0].t - records[0].duration_s
    times, made, kept, used = _from(rounded(begin / axes.per_unit), times, made, kept, used)
    traces = [
        _step("trained", times, kept, ACCENT, width=2.6, fill="tozeroy", fillcolor="--fill-made"),
        _step(
            "the trainer's pace while it computes", times, used, SECOND, width=2.6, fill="tonexty",
            fillcolor="--fill-wait",
        ),
        _step("made", times, made, QUIET, width=1.4, dash="dot"),
    ]  # fmt: skip
    figure = axes.over_time(traces, yaxis={"rangemode": "tozero"})
    if figure is None:
        return None
    figure["height"] = 340
    wait = data.metrics.window.shares()["wait"]
    caption = (
        "Shaded between the lines: what the trainer could have taken and did not get"
        + (f"; it waits {percent(wait)} of the time. " if wait is not None else ". ")
        + "Made above trained: rollouts that were thrown away, or that wait in the queue."
    )
    return Plot("matched", "The two rates over time", "rollouts / s", caption, figure, wide=True)


def time(data: PageData, summary: Summary) -> Plot | None:
    """Return where the time of rollouts and of the trainer went, each as one bar."""
    parts = [0.0] * len(PART_COLORS)
    for bucket in data.buckets.values():
        for place, value in enumerate(bucket.latency_s):
            parts[place] += value
    whole, shares = sum(parts), data.metrics.window.shares()
    if not whole or shares["wait"] is None:
        return None
    rows, other = "a rollout", "the trainer"
    traces = [
        _part(rows, label_of(part), value / whole, PART_COLORS[part])
        for part, value in zip(PART_COLORS, parts, strict=True)
        if value / whole >= 0.0005
    ]
    colors = {"compute": "computes", "publish": "publishes", "wait": "waits"}
    hues = {"compute": ACCENT, "publish": "--fourth", "wait": "--wait"}
    traces += [
        _part(other, word, shares[name] or 0.0, hues[name])
        for name, word in colors.items()
        if (shares[name] or 0.0) >= 0.0005
    ]
    figure = plain_figure(
        traces,
        "share of the time",
        barmode="stack",
        hovermode="closest",
        bargap=0.35,
        xaxis={"tickformat": ".0%", "range": [0, 1], "dtick": 0.2},
        yaxis={"autorange": "reversed", "tickfont": {"size": 13}},
        margin={"r": 24},
        uniformtext={"minsize": 11, "mode": "hide"},
    )
    if figure is None:
        return None
    figure["layout"]["showlegend"] = False
    figure["height"] = 190
    mean = ratio(whole, sum(len(bucket.tokens) for bucket in data.buckets.values()))
    unnamed = [
        f"{trace['name']} {percent(trace['x'][0])}"
        for trace in traces
        if not trace["text"][0] and trace["x"][0] >= 0.005
    ]
    caption = f"A rollout takes {seconds(mean)} on average, from its start to its score."
    if unnamed:
        caption += f" Without a name in the bars, in order: {', '.join(unnamed)}."
    return Plot("time-flow", "Where the time went", "", caption, figure, wide=True)


def ages(data: PageData) -> Plot | None:
    """Return the ages of what each step trained, as shares of its tokens."""
    records = [record for record in data.metrics.steps.records if record.token_staleness]
    if not records:
        return None
    xs: list[str] = []
    counts: list[dict[int, int]] = []
    for start, end in stretches(len(records), MAX_BARS):
        some = records[start:end]
        xs.append(str(some[0].step) if len(some) == 1 else f"{some[0].step}-{some[-1].step}")
        counts.append(_summed(some))
    oldest = max(age for one in counts for age in one)
    top = len(_AGES) - 1
    shown = range(min(oldest, top) + 1)
    traces: list[Trace] = []
    for place in shown:
        last = place == top and oldest > place
        inside = [
            sum(n for age, n in one.items() if age == place or (last and age > place)) for one in counts
        ]
        traces.append(
            {
                "type": "bar",
                "name": f"{place}{' or more' if last else ''}" + (" steps old" if place == 0 else ""),
                "x": xs,
                "y": [rounded(n / sum(one.values())) for n, one in zip(inside, counts, strict=True)],
                "marker": {
                    "color": _AGES[round(place * (len(_AGES) - 1) / max(1, min(oldest, len(_AGES) - 1)))]
                },
                "hovertemplate": "%{y:.0%}",
            }
        )
    figure = plain_figure(
        traces,
        "step",
        barmode="stack",
        bargap=0.06,
        hovermode="x unified",
        xaxis={"type": "category", "nticks": 12},
        yaxis={"tickformat": ".0%", "range": [0, 1]},
    )
    if figure is None:
        return None
    figure["layout"]["showlegend"] = True
    bound = data.metrics.facts.bound
    limit = "" if bound is None else f" The bound is {bound}."
    caption = f"Age of each trained token's version, in steps.{limit}"
    return Plot("ages", "How old what is trained is", "share of tokens", caption, figure)


def _summed(records: Sequence[StepRecord]) -> dict[int, int]:
    summed: dict[int, int] = {}
    for record in records:
        for age, count in record.token_staleness.items():
            summed[age] = summed.get(age, 0) + count
    return summed


def _from(begin: float, times: list[float], *curves: list[float]) -> list[list[float]]:
    """Let each value hold from the end of the stretch before: the first from the run's begin."""
    return [[begin, *times], *([curve[0], *curve] for curve in curves)]


def _step(name: str, xs: Sequence[float], ys: Sequence[float], color: str, **style: Any) -> Trace:
    line = {"color": color, "width": style.pop("width"), "shape": "vh"}
    if dash := style.pop("dash", ""):
        line["dash"] = dash
    points = {"x": list(xs), "y": list(ys)}
    return {"type": "scatter", "mode": "lines", "name": name, **points, "line": line, **style}


def _part(row: str, name: str, share: float, color: str) -> Trace:
    label = f"{name} {percent(share)}"
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": [rounded(share)],
        "y": [row],
        "marker": {"color": color},
        "text": [label if share >= _PER_LETTER * len(label) else ""],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "insidetextfont": {"color": "--ink" if color in _PALE else "--on-strong", "size": 13},
        "hovertemplate": f"{name}: %{{x:.1%}} of {row}'s time<extra></extra>",
    }
