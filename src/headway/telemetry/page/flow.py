"""Plots: the two rates, the trainer's time, the queue's depth, staleness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.telemetry.page.parts import Plot
from headway.telemetry.page.thin import MAX_POINTS, rounded, stretches
from headway.telemetry.page.traces import (
    ACCENT,
    BAD,
    FOURTH,
    QUIET,
    SECOND,
    THIRD,
    Trace,
    plain_figure,
)
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.telemetry.page.axes import Axes
    from headway.telemetry.page.collect import PageData
    from headway.telemetry.steps import StepRecord


def rates(data: PageData, axes: Axes) -> list[Plot]:
    """Return how production and consumption match."""
    records = data.metrics.steps.records
    return [plot for plot in (_rates(records, axes), _time_shares(records, axes)) if plot]


def staleness(data: PageData, axes: Axes, summary: dict[str, Any]) -> list[Plot]:
    """Return how old the trained tokens were."""
    found = [_staleness_over_steps(data, axes)]
    for level, what, caption in (
        ("token", "trained tokens", "Each token's own version against the one that its batch trained."),
        ("trajectory", "rollouts", "The version at a rollout's first token against the one that it trained."),
        (
            "environment",
            "turns on a sandbox",
            "The version of a turn against the oldest one whose tool calls shaped its sandbox.",
        ),
    ):
        found.append(_staleness_bars(level, what, caption, summary[f"rl.staleness.{level}"]["counts"]))
    return [plot for plot in found if plot is not None]


def _rates(records: Sequence[StepRecord], axes: Axes) -> Plot | None:
    xs: list[float] = [record.step for record in records]
    traces = [
        *axes.curve("made (generator)", xs, [record.production_per_s for record in records], ACCENT),
        *axes.curve("used while computing (trainer)", xs, [r.consumption_per_s for r in records], SECOND),
    ]
    figure = axes.over_steps(traces, yaxis={"rangemode": "tozero"})
    if figure is None:
        return None
    made = ratio(sum(r.num_rollouts for r in records), sum(r.duration_s for r in records))
    used = ratio(sum(r.num_trained_rollouts for r in records), sum(r.compute_s for r in records))
    caption = "Made below used: the trainer waits for rollouts. Made above used: rollouts wait and grow old."
    if made and used:
        faster = "generator" if made > used else "trainer"
        caption += f" Over the run made / used is {made / used:.2f}: the {faster} is faster."
    return Plot("rates", "Production and consumption", "rollouts / s", caption, figure)


def _time_shares(records: Sequence[StepRecord], axes: Axes) -> Plot | None:
    xs: list[float] = []
    parts: dict[str, list[float]] = {"computes": [], "publishes": [], "waits": []}
    for start, end in stretches(len(records), MAX_POINTS):
        some = records[start:end]
        whole = sum(record.duration_s for record in some)
        compute, publish = sum(r.compute_s for r in some), sum(r.publish_s for r in some)
        whole = max(whole, compute + publish)
        if whole <= 0.0:
            continue
        xs.append(some[-1].step)
        for name, part in (
            ("computes", compute),
            ("publishes", publish),
            ("waits", whole - compute - publish),
        ):
            parts[name].append(rounded(part / whole))
    axes.thinned = axes.thinned or len(records) > MAX_POINTS
    if not xs:
        return None
    colors = {"computes": ACCENT, "publishes": FOURTH, "waits": QUIET}
    traces = [_area(name, xs, ys, colors[name]) for name, ys in parts.items()]
    figure = axes.over_steps(traces, yaxis={"tickformat": ".0%", "range": [0, 1]})
    caption = (
        "Shares of each step's time. Waiting is time that more or faster generators would give back; "
        "saving checkpoints counts as waiting."
    )
    return None if figure is None else Plot("trainer-time", "The trainer's time", "share", caption, figure)


def depth(data: PageData, axes: Axes) -> Plot | None:
    """Return how many groups were on their way."""
    times = axes.times(data.depth_t)
    traces = [
        *axes.level("on their way", times, data.depth_all, ACCENT),
        *axes.level("waiting with signal", times, data.depth_signal, SECOND),
    ]
    if not traces:
        return None
    end = times[-1]
    for name, color, field in (("most allowed", BAD, "most"), ("one batch", THIRD, "batch")):
        xs = [max(times[0], rounded(limits.t / axes.per_unit)) for limits in data.limits]
        ys: list[float] = [getattr(limits, field) for limits in data.limits]
        if ys:
            traces.append(_limit(name, [*xs, end], [*ys, ys[-1]], color))
    figure = axes.over_time(traces, yaxis={"rangemode": "tozero"})
    if figure is None:
        return None
    caption = (
        "Train groups between admission and trainer. Waiting with signal above one batch: the trainer is "
        "behind; near 0: it waits for rollouts. The dashed limit follows from the staleness bound."
    )
    return Plot("depth", "Queue depth", "groups", caption, figure)


def _staleness_over_steps(data: PageData, axes: Axes) -> Plot | None:
    records = data.metrics.steps.records
    xs: list[float] = [record.step for record in records]
    trajectory = [
        ratio(
            sum(age * num for age, num in record.trajectory_staleness.items()),
            sum(record.trajectory_staleness.values()),
        )
        for record in records
    ]
    traces = [
        *axes.curve("tokens, mean", xs, [record.staleness_mean for record in records], ACCENT),
        *axes.curve(
            "tokens, oldest", xs, [r.staleness_max for r in records], SECOND, shape="hv", long="extremes"
        ),
        *axes.curve("rollouts from their start, mean", xs, trajectory, FOURTH, dash="dot", long="means"),
    ]
    bound = data.metrics.facts.bound
    if bound is not None and xs:
        traces.append(_limit("bound", [xs[0], xs[-1]], [bound, bound], BAD))
    figure = axes.over_steps(traces, yaxis={"rangemode": "tozero"}) if len(traces) > 1 else None
    caption = "Age of what each step trained. Nothing above the bound reaches the gradient."
    return None if figure is None else Plot("staleness", "Staleness over steps", "steps", caption, figure)


def _staleness_bars(level: str, what: str, caption: str, counts: dict[str, int]) -> Plot | None:
    total = sum(counts.values())
    if not total:
        return None
    trace: Trace = {
        "type": "bar",
        "x": list(counts),
        "y": [rounded(count / total) for count in counts.values()],
        "customdata": list(counts.values()),
        "marker": {"color": ACCENT},
        "hovertemplate": "%{x} steps old: %{y:.1%} (%{customdata:,} " + what + ")<extra></extra>",
    }
    figure = plain_figure(
        [trace],
        "steps old",
        xaxis={"type": "category"},
        yaxis={"tickformat": ".0%", "rangemode": "tozero"},
        bargap=0.55,
        hovermode="closest",
    )
    if figure is None:
        return None
    return Plot(f"staleness-{level}", f"Staleness: {level}", f"share of {what}", caption, figure)


def _area(name: str, xs: Sequence[float], ys: Sequence[float], color: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "stackgroup": "time",
        "name": name,
        "x": list(xs),
        "y": list(ys),
        "line": {"width": 0.5, "color": color},
        "fillcolor": color,
    }


def _limit(name: str, xs: Sequence[float], ys: Sequence[float], color: str) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(xs),
        "y": list(ys),
        "line": {"color": color, "width": 1.2, "dash": "dash", "shape": "hv"},
    }
