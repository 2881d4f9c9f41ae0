"""Draw one run's learning curve: mean reward of each step, trailing mean, evaluations.

    python benchmarks/run_plot.py RUN PICTURE.svg

docs/reasoning_gym.svg is examples/reasoning_gym.toml, docs/bugfix.svg examples/bugfix/learn.toml.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
from learning_plot import COLOURS, INK, STYLE
from matplotlib import pyplot

from headway.runtime.trained import read_run
from headway.telemetry.page.thin import known, smoothed


def draw(run: Path, path: Path) -> None:
    """Write the curve to an SVG file."""
    steps = read_run(run).metrics.steps
    xs, ys = known([record.step for record in steps.records], [record.reward for record in steps.records])
    evals = [(point.step, point.reward) for point in steps.evals if point.reward is not None]
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(figsize=(7, 3.6))
        axes.plot(xs, ys, color=COLOURS[0], linewidth=0.7, label="train, each step")
        axes.plot(xs, smoothed(ys), color=COLOURS[2], linewidth=2, label="train, trailing mean")
        axes.plot(*zip(*evals, strict=True), "o-", color=COLOURS[5], label="held out")
        axes.set_xlabel("step")
        axes.set_ylabel("mean reward")
        axes.set_facecolor("none")
        axes.set_ylim(0, 1)
        axes.set_xlim(left=0)
        axes.grid(color=INK, alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="upper left")
        figure.tight_layout()
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    draw(options.run, options.picture)
