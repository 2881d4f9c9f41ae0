"""Plots: reward, evaluations, pass@1 and pass@n."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headway.telemetry.page.axes import DOTS, Axes
from headway.telemetry.page.parts import Plot
from headway.telemetry.page.thin import known, smoothed
from headway.telemetry.page.traces import ACCENT, FOURTH, QUIET, SECOND

if TYPE_CHECKING:
    from headway.telemetry.page.collect import PageData

_MIN_SMOOTHED = 20  # steps; a shorter curve is shown as it is
_MIN_POINTS = 2  # evaluations; one alone is no curve
_SHARE = {"yaxis": {"tickformat": ".0%", "rangemode": "tozero"}}


def plots(data: PageData, axes: Axes) -> list[Plot]:
    """Return the plots of the section."""
    found = [
        _reward(data, axes, over="steps"),
        _reward(data, axes, over="time"),
        _pass(data, axes),
        _evals(data, axes),
    ]
    return [plot for plot in found if plot is not None]


def _reward(data: PageData, axes: Axes, over: str) -> Plot | None:
    records, evals = data.metrics.steps.records, data.metrics.steps.evals
    if not records and len(evals) < _MIN_POINTS:
        return None
    if over == "steps":
        xs, at, figure_of = [r.step for r in records], [e.step for e in evals], axes.over_steps
    else:
        xs, at = axes.times([r.t for r in records]), axes.times([e.t for e in evals])
        figure_of = axes.over_time
    xs, ys = known(xs, [record.reward for record in records])
    smooth = len(ys) >= _MIN_SMOOTHED
    raw: dict[str, Any] = {"width": 1, "opacity": 0.7, "long": "extremes"} if smooth else {}
    traces = [
        *axes.curve("train, each step", xs, ys, QUIET if smooth else ACCENT, **raw),
        *(
            axes.curve("train, trailing mean", xs, smoothed(ys), ACCENT, width=2.4, long="means")
            if smooth
            else ()
        ),
        *axes.curve("eval", at, [point.reward for point in evals], SECOND, **DOTS),
    ]
    figure = figure_of(traces)
    if figure is None:
        return None
    caption = (
        "Train: mean of the rollouts scored during a step, before any filter. Eval: held-out tasks. "
        "Rising together is learning; train alone rising is memorising."
        if over == "steps"
        else "The same against run time, stops left out: what a minute of this machine bought."
    )
    return Plot(f"reward-{over}", f"Reward over {over}", "", caption, figure)


def _pass(data: PageData, axes: Axes) -> Plot | None:
    records, buckets = data.metrics.steps.records, data.buckets
    one: list[float | None] = [record.solve_rate for record in records]
    xs: list[float] = [record.step for record in records]
    several: list[float | None] = []
    for record in records:
        bucket = buckets.get(record.step)
        several.append(bucket.num_any_solved / bucket.num_groups if bucket and bucket.num_groups else None)
    none: list[float | None] = [record.no_signal_fraction for record in records]
    traces = [
        *axes.curve("pass@1", xs, one, ACCENT, long="means"),
        *axes.curve(f"pass@{_group_size(data)}", xs, several, FOURTH, long="means"),
        *axes.curve("groups without signal", xs, none, QUIET, dash="dot", long="means"),
    ]
    figure = axes.over_steps(traces, **_SHARE)
    if figure is None:
        return None
    caption = (
        "Train rollouts solved, and groups with at least one solved. The gap between the two is what a group "
        "learns from; groups without signal (all equal) move nothing."
    )
    return Plot("pass-train", "Solved in training", "share", caption, figure)


def _evals(data: PageData, axes: Axes) -> Plot | None:
    evals = data.metrics.steps.evals
    if len(evals) < _MIN_POINTS:
        return None  # a tile says it
    xs: list[float] = [point.step for point in evals]
    traces = axes.curve("pass@1", xs, [point.pass_at_1 for point in evals], ACCENT, **DOTS)
    most = max((point.n for point in evals), default=1)
    if most > 1:
        name = f"pass@{most}"
        traces.extend(axes.curve(name, xs, [point.pass_at_n for point in evals], FOURTH, **DOTS))
    figure = axes.over_steps(traces, **_SHARE)
    if figure is None:
        return None
    figure["layout"]["showlegend"] = True
    last = evals[-1]
    size = f"The last evaluation rests on {last.num_rollouts:,} rollouts"
    failed = f"; {last.num_failed:,} failed and are not counted." if last.num_failed else "."
    return Plot("pass-eval", "Solved in evaluation", "share", size + failed, figure)


def _group_size(data: PageData) -> str:
    """Return n of pass@n in training, "n" where groups differ in size."""
    queue = data.header.queue.get("queue")
    sizes = cast("dict[str, Any]", queue) if isinstance(queue, dict) else {}
    differ = sizes.get("group_size_by_level") or any(
        change.key == "queue.group_size" for change in data.changes
    )
    return "n" if differ else str(sizes.get("group_size", "n"))
