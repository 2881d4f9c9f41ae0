"""Draw benchmarks/learning.py's curves: reward against samples and against wall time, one picture of both.

Readable on white and on dark pages: no background, and colours of middle brightness for lines and text alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

INK = "#808590"
COLOURS = ("#8c8c8c", "#3fa7d6", "#2f7dd1", "#7a6fe0", "#e8a33d", "#e5733b", "#d8434e", "#2fa57a", "#b35fc0")
DASHED = "uncorrected"

# Text stays text, and equal results give equal files.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "headway",
    "font.size": 10,
    "text.color": INK,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def draw(result: dict[str, Any], path: Path) -> None:
    """Write the curves of a result as `learning.py` keeps it to an SVG file."""
    with pyplot.rc_context(STYLE):
        figure, (samples, seconds) = pyplot.subplots(1, 2, figsize=(11, 4.6), sharey=True)
        for colour, (name, mode) in zip(COLOURS, result["modes"].items(), strict=False):
            _line(samples, mode["reward_by_samples"], result["bin_samples"], colour, name)
            _line(seconds, mode["reward_by_time"], result["bin_s"], colour, name)
        samples.set_xlabel("rollouts trained")
        seconds.set_xlabel("seconds of training")
        samples.set_ylabel("mean reward of the train rollouts")
        for axes in (samples, seconds):
            axes.set_facecolor("none")
            axes.set_ylim(0, 1)
            axes.set_xlim(left=0)
            axes.grid(color=INK, alpha=0.25, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
        handles, labels = samples.get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=5, frameon=False)
        figure.tight_layout(rect=(0, 0.12, 1, 1))
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _line(axes: Axes, curve: list[list[float] | None], width: float, colour: str, name: str) -> None:
    """Draw means at the middles of their bins; a band where there is an interval."""
    points = [((place + 0.5) * width, *point) for place, point in enumerate(curve) if point is not None]
    if not points:
        return
    places, means = [point[0] for point in points], [point[1] for point in points]
    style = "--" if DASHED in name else "-"
    axes.plot(places, means, style, color=colour, linewidth=1.5, label=name)
    banded = [point for point in points if point[2] is not None]
    if banded:
        lows = [max(0.0, mean - half) for _, mean, half in banded]
        highs = [min(1.0, mean + half) for _, mean, half in banded]
        axes.fill_between([point[0] for point in banded], lows, highs, color=colour, alpha=0.12, linewidth=0)
