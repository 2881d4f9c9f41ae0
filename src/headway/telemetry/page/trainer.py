"""Plots: what the loss said, step by step, and what the run cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.telemetry.page.parts import Plot
from headway.telemetry.page.traces import ACCENT, SECOND

if TYPE_CHECKING:
    from headway.telemetry.page.axes import Axes
    from headway.telemetry.page.collect import PageData
    from headway.telemetry.steps import StepRecord


@dataclass(frozen=True, slots=True)
class _Curves:
    title: str
    unit: str
    caption: str
    names: tuple[tuple[str, str], ...]  # (metric of the loss, name of its curve)
    log: bool = False
    always: bool = True  # False: only where some step has one that is not 0


_PLOTS = (
    _Curves("Loss", "", "Its level says little in policy gradients; jumps do.", (("loss", "loss"),)),
    _Curves(
        "Gradient norm",
        "",
        "Before clipping. Spikes come before collapse.",
        (("grad_norm", "gradient norm"),),
    ),
    _Curves(
        "Entropy",
        "nats / token",
        "Of the trained policy. Falling to 0: it stops exploring.",
        (("entropy", "entropy"),),
    ),
    _Curves(
        "Clipped and masked tokens",
        "share",
        "Tokens on which clipping acted, or that were left out. High: the batch is far from the policy.",
        (("clip_fraction", "clipped"), ("mask_fraction", "masked")),
    ),
    _Curves(
        "KL between sampler and trainer",
        "nats / token",
        "Over all trained tokens, k3 estimate: staleness and numerics together.",
        (("mismatch_kl", "KL"),),
    ),
    _Curves(
        "Log-prob mismatch on fresh tokens",
        "nats",
        "Generator against trainer on the newest version. It should be near 0: numerics, or kept KV.",
        (("mismatch_mean", "mean"), ("mismatch_max", "largest")),
        log=True,
    ),
    _Curves(
        "Importance ratios",
        "ratio",
        "Probability under the trained policy by that under the sampling one. 1: on policy.",
        (("ratio_mean", "mean"), ("ratio_max", "largest")),
    ),
    _Curves(
        "KL to the reference",
        "nats / token",
        "Before its coefficient: how far the policy has moved from the base model.",
        (("kl_reference", "KL"),),
        always=False,
    ),
    _Curves(
        "Weight of the correction",
        "weight",
        "Mean weight that the off-policy correction gave. 1: it changed nothing.",
        (("correction_mean", "mean weight"),),
        always=False,
    ),
    _Curves("Learning rate", "", "As the schedule and the guard set it.", (("learning_rate", "rate"),)),
)
_COLORS = (ACCENT, SECOND)


def loss(data: PageData, axes: Axes) -> list[Plot]:
    """Return the plots of the loss's own numbers, those that the run has."""
    records = data.metrics.steps.records
    found = [_loss_plot(curves, records, axes) for curves in _PLOTS]
    return [plot for plot in found if plot is not None]


def _loss_plot(curves: _Curves, records: list[StepRecord], axes: Axes) -> Plot | None:
    xs: list[float] = [record.step for record in records]
    series = {name: [record.metrics.get(name) for record in records] for name, _ in curves.names}
    values = [value for ys in series.values() for value in ys if value is not None]
    constant = curves.names[0][0] == "learning_rate" and len(set(values)) < 2
    if not values or constant or not (curves.always or any(values)):
        return None
    log = curves.log and all(value > 0 for value in values)
    traces = [
        trace
        for (name, label), color in zip(curves.names, _COLORS, strict=False)
        for trace in axes.curve(label, xs, series[name], color)
        if any(series[name]) or curves.names[0][0] == name
    ]
    axis = {"type": "log", "dtick": "D2", "exponentformat": "e"} if log else {"exponentformat": "e"}
    figure = axes.over_steps(traces, yaxis=axis)
    if figure is None:
        return None
    unit = f"{curves.unit}, log scale" if log else curves.unit
    return Plot(f"loss-{curves.names[0][0]}".replace("_", "-"), curves.title, unit, curves.caption, figure)


def cost(data: PageData, axes: Axes) -> list[Plot]:
    """Return money over time, nothing where no price is set."""
    metrics = data.metrics
    price, records = metrics.facts.usd_per_hour, metrics.steps.records
    if price is None or not records:
        return []
    times = [record.t for record in records]
    usd: list[float | None] = [price * t / 3600.0 for t in times]
    per_mtok: list[float | None] = []
    tokens = 0
    for record, spent in zip(records, usd, strict=True):
        tokens += record.num_trained_tokens
        per_mtok.append(1e6 * spent / tokens if tokens and spent is not None else None)
    xs = axes.times(times)
    plots: list[Plot] = []
    spent_curve = axes.over_time(axes.curve("spent", xs, usd, ACCENT), yaxis={"rangemode": "tozero"})
    if spent_curve is not None:
        caption = "The machine's price times run time, at the end of each step."
        plots.append(Plot("cost-usd", "Spent", "USD", caption, spent_curve))
    mtok_curve = axes.over_time(axes.curve("USD / Mtok", xs, per_mtok, ACCENT))
    if mtok_curve is not None:
        caption = "All that was spent so far by all tokens that the loss had counted so far."
        title = "Price of a million trained tokens"
        plots.append(Plot("cost-mtok", title, "USD / Mtok", caption, mtok_curve))
    return plots
