"""Fewer points for curves that a screen cannot show in full, and the smoothing of noisy ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_POINTS = 1000  # of a curve
MAX_MEANS = 400  # points of a line of means: about one each pixel
MAX_BARS = 60  # of a bar chart over steps
_SMOOTH_SHARE = 20  # a smoothed curve's window is this part of the points


def extremes(values: Sequence[float], most: int = MAX_POINTS) -> list[int]:
    """Return the positions of the points to keep, in order: lowest and highest of each equal stretch.

    Spikes survive, and every point that is shown is a measured one. First and last are kept.
    """
    count = len(values)
    if count <= most:
        return list(range(count))
    kept = {0, count - 1}
    for start, end in stretches(count, most // 2 - 1):
        inside = range(start, end)
        kept.add(min(inside, key=values.__getitem__))
        kept.add(max(inside, key=values.__getitem__))
    return sorted(kept)


def means(xs: Sequence[float], ys: Sequence[float], most: int = MAX_MEANS) -> tuple[list[float], list[float]]:
    """Return middle and mean of each of at most `most` stretches."""
    middles: list[float] = []
    values: list[float] = []
    for start, end in stretches(len(ys), most):
        middles.append((xs[start] + xs[end - 1]) / 2)
        values.append(math.fsum(ys[start:end]) / (end - start))
    return middles, values


def level_means(
    times: Sequence[float], values: Sequence[float], most: int = MAX_MEANS
) -> tuple[list[float], list[float]]:
    """Return middle and time-weighted mean of equal stretches of time.

    Args:
        times: when each value began, ascending; the last one only ends the one before.
        values: in force until the next one.
        most: stretches.
    """
    start, width = times[0], (times[-1] - times[0]) / most
    if width <= 0.0:
        return [times[-1]], [values[-1]]
    areas = [0.0] * most
    for at in range(len(times) - 1):
        left, right = times[at], times[at + 1]
        first, last = int((left - start) / width), min(most - 1, int((right - start) / width))
        for place in range(min(first, most - 1), last + 1):
            inside = min(right, start + (place + 1) * width) - max(left, start + place * width)
            areas[place] += max(0.0, inside) * values[at]
    return [start + (place + 0.5) * width for place in range(most)], [area / width for area in areas]


def stretches(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield at most `most` neighbouring ranges of about equal length that cover `count` positions."""
    parts = min(count, most)
    for part in range(parts):
        yield part * count // parts, (part + 1) * count // parts


def known(xs: Sequence[float], ys: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """Return the points that have a finite value."""
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None and math.isfinite(y)]
    return [x for x, _ in points], [y for _, y in points]


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the trailing mean over a twentieth of the points, at least three."""
    window = max(3, len(values) // _SMOOTH_SHARE)
    means: list[float] = []
    total = 0.0
    for position, value in enumerate(values):
        total += value
        if position >= window:
            total -= values[position - window]
        means.append(total / min(position + 1, window))
    return means


def rounded(value: float, figures: int = 6) -> float:
    """Return a number with so many significant digits: what a plot can show, in few characters."""
    return float(f"{value:.{figures}g}")
