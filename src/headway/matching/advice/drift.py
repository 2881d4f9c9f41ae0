r"""Drift that turns the bottleneck: the time to make a batch against the time to train it, over the steps.

For each step s, with L the mean time of a rollout scored then, B the rollouts of a batch, N those that the
run usually keeps in flight and a the share of them that is accepted:

    made(s) = L B / (a N),  used(s) = computing + publishing,  d(s) = ln made(s) - ln used(s)

A straight line through d has the bottleneck turn where it crosses 0. Told when its slope differs from 0
(|t| > T, of the residuals' own spread), and the crossing lies within the run or before its end; the
interval of the crossing is Fieller's, 95 %. Exponential drift of lengths is a straight line in d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.matching.advice.finding import Change, Figure, Finding
from headway.matching.estimators import fit_line, t_quantile
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.matching.advice.reading import Reading

MIN_STEPS = 12
T = 4.0
AHEAD = 3.0  # times the run's length that a crossing is looked for, where the run has no last step
EDGE = 0.15  # of the run at its ends: a crossing there is no turn yet, or the beginning
MIN_TURN = 0.10  # of ln(made / used) at the run's ends: nearer to 0 the two are matched


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a straight line crosses 0; low and high are None where the interval has no end."""

    at: float
    low: float | None
    high: float | None
    t: float  # of the slope
    slope: float
    first: float  # the line at the first point
    last: float  # and at the last


def crossing(xs: Sequence[float], ys: Sequence[float]) -> Crossing | None:
    """Fit a straight line by least squares; return where it crosses 0, with Fieller's 95 % interval.

    None with fewer than three points or without a slope.
    """
    line = fit_line(xs, ys)
    if line is None or not line.slope:
        return None
    slope, intercept, error, error0 = line.slope, line.intercept, line.slope_error, line.intercept_error
    between = -line.mean_x * error * error  # covariance of intercept and slope
    quantile = t_quantile(0.975, line.num - 2)
    at = -intercept / slope
    # (intercept + x slope)^2 <= q^2 (error0^2 + 2 x between + x^2 error^2): a quadratic in x
    a = slope * slope - quantile**2 * error * error
    b = 2.0 * (intercept * slope - quantile**2 * between)
    c = intercept * intercept - quantile**2 * error0 * error0
    low = high = None
    root = b * b - 4.0 * a * c
    if a > 0.0 and root >= 0.0:
        low, high = (-b - math.sqrt(root)) / (2.0 * a), (-b + math.sqrt(root)) / (2.0 * a)
    t = slope / error if error else math.copysign(math.inf, slope)
    return Crossing(at, low, high, t, slope, line.at(xs[0]), line.at(xs[-1]))


def findings(reading: Reading) -> Iterator[Finding]:
    """Yield the finding, if the bottleneck turns."""
    steps, made, used = sides(reading)
    if len(steps) < MIN_STEPS:
        return
    found = crossing(steps, [math.log(m / u) for m, u in zip(made, used, strict=True)])
    if found is None or abs(found.t) < T:
        return
    first, last = steps[0], steps[-1]
    end = reading.metrics.facts.stop_steps or last + AHEAD * (last - first)
    margin = EDGE * (last - first)
    turned = first + margin < found.at < last - margin
    turns = last < found.at <= max(float(end), last + 1.0)
    if turned and min(abs(found.first), abs(found.last)) < MIN_TURN:
        return
    if turns and abs(found.first) < MIN_TURN:
        return
    if not (turned or turns):
        return
    to_generator = found.slope > 0.0
    side = "generator" if to_generator else "trainer"
    interval = "" if found.low is None or found.high is None else f"{_step(found.low)} to {_step(found.high)}"
    word = "turned" if turned else "will turn"
    yield Finding(
        code="drift",
        title=f"Behaviour drifts: the bottleneck {word} to the {side} at about step {found.at:.0f}",
        stake=0.10,
        evidence=(
            Figure("crossing", found.at, "steps", note=f"95 %: {interval}" if interval else "no interval"),
            Figure("time to make a batch against training it, first step", math.exp(found.first), "ratio"),
            Figure("the same, newest step", math.exp(found.last), "ratio"),
            *_grown(reading),
        ),
        when=f"steps {first:.0f}-{last:.0f}",
        change=_change(reading, to_generator),
    )


def sides(reading: Reading) -> tuple[list[float], list[float], list[float]]:
    """Return steps, seconds to make a batch, and seconds to train it, by step where both are known."""
    usual = reading.phases.level(0.95)
    acceptance = reading.summary["rl.production.acceptance_fraction"] or 0.0
    steps: list[float] = []
    made: list[float] = []
    used: list[float] = []
    for record in reading.records:
        bucket = reading.buckets.get(record.step)
        batch = record.num_trained_rollouts
        if bucket is None or not bucket.num_rollouts or not batch or not usual or not acceptance:
            continue
        mean = bucket.end_to_end_s / bucket.num_rollouts
        busy = record.compute_s + record.publish_s
        if mean > 0.0 and busy > 0.0:
            steps.append(float(record.step))
            made.append(mean * batch / (acceptance * usual))
            used.append(busy)
    return steps, made, used


def _grown(reading: Reading) -> tuple[Figure, ...]:
    """Return how lengths, tool calls and a step's computing changed, from the first third to the last."""
    records = reading.records
    third = max(1, len(records) // 3)
    ends = records[:third], records[-third:]

    def mean(part: int, what: str) -> float:
        found = [reading.buckets[r.step] for r in ends[part] if r.step in reading.buckets]
        return ratio(sum(getattr(b, what) for b in found), sum(b.num_rollouts for b in found)) or 0.0

    computing = [sum(r.compute_s for r in some) / third for some in ends]
    pairs = (
        ("tokens of a rollout", mean(0, "tokens"), mean(1, "tokens")),
        ("tool calls of a rollout", mean(0, "tool_calls"), mean(1, "tool_calls")),
        ("a step's computing", computing[0], computing[1]),
    )
    return tuple(
        Figure(
            f"{label}, last third against the first",
            after / before,
            "ratio",
            note=f"{before:.3g} to {after:.3g}",
        )
        for label, before, after in pairs
        if before > 0.0
    )


def _change(reading: Reading, to_generator: bool) -> Change:
    if to_generator:
        return Change(
            "give generation room before: more replicas, a shorter limit (pruning.max_tokens), or queue.depth"
        )
    return Change("give the trainer room before: more ranks, or fewer rollouts a step (queue.batch_size)")


def _step(value: float) -> str:
    return f"{max(0.0, value):.0f}"
