r"""The numbers of a comparison, each with a 95 % interval, and which of them differ beyond these.

Rates and shares are ratios of sums over steps, r = sum N / sum D. Neighbouring steps are alike, so that the
interval is made of NUM_BATCHES stretches of neighbouring steps (batch means), each its own N_b and D_b:

    var r = k / (k - 1) sum_b (N_b - r D_b)^2 / (sum D)^2,  r -+ t(0.975, k - 1) sqrt(var r)

Shares of groups have Wilson's interval. Reward at an axis x (trained rollouts, time, cost) is the mean of the
steps from NEAR x to x, each a point, with Student's interval: nothing is continued past what was measured.
What reward gains while x doubles is a straight line in ln x by least squares, one point a step; none
where it bends down beyond chance (a parabola's term, t < -BENT), as reward does at its end. Two runs
differ beyond their intervals where |a - b| > sqrt(h_a^2 + h_b^2) of the two half-widths. One run each says
nothing of another seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import TYPE_CHECKING, Any

from headway.matching.estimators import Line, fit_line, t_quantile
from headway.telemetry.estimates import wilson
from headway.telemetry.page.thin import stretches

if TYPE_CHECKING:
    from headway.matching.advice.reading import Reading
    from headway.telemetry.steps import StepRecord

NUM_BATCHES = 10
NEAR = 0.8
BENT = 4.0  # standard errors: chance has it so once in some thousand runs
MIN_STEPS = 4  # below, no interval: a spread of three is none


@dataclass(frozen=True, slots=True)
class Value:
    """A number and its interval; low and high are None where it has none."""

    value: float | None
    low: float | None = None
    high: float | None = None

    def to_plain(self) -> dict[str, float | None]:
        """Return it as a JSON object."""
        return {"value": self.value, "low": self.low, "high": self.high}

    @property
    def half(self) -> float | None:
        """Half of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2.0


NOTHING = Value(None)


@dataclass(frozen=True, slots=True)
class Row:
    """One metric of all runs."""

    metric: str
    label: str
    unit: str
    values: tuple[Value, ...]
    beyond: tuple[bool, ...]  # for each run: its difference from the first is beyond the intervals

    def to_plain(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {
            "metric": self.metric,
            "unit": self.unit,
            "values": [value.to_plain() for value in self.values],
            "differs_from_first": list(self.beyond),
        }


def ratio_of_sums(numerators: Sequence[float], denominators: Sequence[float]) -> Value:
    """Return sum N / sum D with the interval of batch means; the values are in order of time."""
    whole = math.fsum(denominators)
    if not whole:
        return NOTHING
    mean, count = math.fsum(numerators) / whole, len(denominators)
    if count < MIN_STEPS:
        return Value(mean)
    batches = [
        (math.fsum(numerators[start:end]), math.fsum(denominators[start:end]))
        for start, end in stretches(count, NUM_BATCHES)
    ]
    num = len(batches)
    squares = math.fsum((top - mean * bottom) ** 2 for top, bottom in batches)
    half = t_quantile(0.975, num - 1) * math.sqrt(num / (num - 1) * squares) / whole
    return Value(mean, mean - half, mean + half)


def beyond(one: Value, other: Value) -> bool:
    """Say whether two numbers differ by more than their intervals explain; without any they never do."""
    if one.value is None or other.value is None or one.half is None or other.half is None:
        return False
    return abs(one.value - other.value) > math.hypot(one.half, other.half)


Axis = Callable[["Reading", "StepRecord", float], "float | None"]


def _points(reading: Reading, axis: Axis) -> list[tuple[float, float]]:
    """Return x and reward of each step that has both, in order."""
    points: list[tuple[float, float]] = []
    trained = 0.0
    for record in reading.records:
        trained += record.num_trained_rollouts
        x = axis(reading, record, trained)
        if record.reward is not None and x is not None and x > 0.0:
            points.append((x, record.reward))
    return points


def reward_line(reading: Reading, axis: Axis) -> Line | None:
    """Fit reward over ln x, one point a step; None where that is no straight line."""
    points = _points(reading, axis)
    xs, ys = [math.log(x) for x, _ in points], [reward for _, reward in points]
    line = fit_line(xs, ys)
    if line is None or len(points) < 3 * MIN_STEPS:
        return line
    squares = [x * x for x in xs]
    of_x = fit_line(xs, squares)
    if of_x is None:
        return line
    bend = fit_line(
        [square - of_x.at(x) for x, square in zip(xs, squares, strict=True)],
        [y - line.at(x) for x, y in zip(xs, ys, strict=True)],
    )
    return None if bend is not None and bend.slope < -BENT * bend.slope_error else line


def _trained(reading: Reading, record: StepRecord, trained: float) -> float:
    return trained


def _wall(reading: Reading, record: StepRecord, trained: float) -> float:
    """Seconds since the first rollout was admitted: the start of processes is no part of it."""
    first = reading.records[0]
    return record.t - (first.t - first.duration_s)


def _usd(reading: Reading, record: StepRecord, trained: float) -> float | None:
    price = reading.metrics.facts.usd_per_hour
    return None if price is None else price * record.t / 3600.0


AXES = (
    ("trained_rollouts", "trained rollouts", _trained),
    ("wall_time", "time", _wall),
    ("cost", "cost", _usd),
)


def rows_of(readings: Sequence[Reading]) -> list[Row]:
    """Return every metric that one of the runs has."""
    rows: list[Row] = []

    def add(metric: str, label: str, unit: str, of: Callable[[Reading], Value]) -> None:
        values = tuple(of(reading) for reading in readings)
        if any(value.value is not None for value in values):
            differ = tuple(beyond(values[0], value) for value in values)
            rows.append(Row(metric, label, unit, values, differ))

    add("steps", "steps", "count", lambda r: Value(float(r.summary["steps"])))
    add("wall_s", "wall time, start-up included", "seconds", lambda r: Value(r.summary["wall_s"]))
    add("reward.last", "reward, last tenth", "number", lambda r: Value(r.summary["reward.last"]))
    add("eval.last", "evaluation, last", "number", lambda r: Value(r.summary["eval.last"]))
    for key, name, axis in AXES:
        add(
            f"reward.slope.{key}",
            f"reward gained while {name} double{'' if name[-1] == 's' else 's'}",
            "number",
            lambda r, a=axis: _slope(r, a),
        )
        common = _common(readings, axis)
        if common is not None:
            label = f"reward {_shown(common, name)}"
            add(f"reward.at_common.{key}", label, "number", lambda r, a=axis, x=common: _height(r, a, x))
    for metric, label, unit, numerator, denominator in _RATIOS:
        add(
            metric,
            label,
            unit,
            lambda r, n=numerator, d=denominator: ratio_of_sums(
                [n(record) for record in r.records], [d(record) for record in r.records]
            ),
        )
    add("rl.cost.usd_per_mtok", "a million trained tokens", "usd", _usd_per_mtok)
    add("rl.group.zero_advantage_fraction", "groups without signal", "share", _zero)
    add("rl.discard.rollout_fraction", "rollouts not trained", "share", _discarded)
    return rows


Of = Callable[["StepRecord"], float]


def _waited(record: StepRecord) -> float:
    return max(0.0, record.duration_s - record.compute_s - record.publish_s)


def _aged(record: StepRecord) -> float:
    return float(sum(age * num for age, num in record.token_staleness.items()))


def _tokens(record: StepRecord) -> float:
    return float(sum(record.token_staleness.values()))


_RATIOS: tuple[tuple[str, str, str, Of, Of], ...] = (
    (
        "rl.consumption.wall_samples_per_s",
        "rollouts trained a second",
        "rate",
        lambda r: r.num_trained_rollouts,
        lambda r: r.duration_s,
    ),
    (
        "rl.production.samples_per_s",
        "rollouts made a second",
        "rate",
        lambda r: r.num_rollouts,
        lambda r: r.duration_s,
    ),
    (
        "rl.consumption.active_samples_per_s",
        "rollouts trained a second of computing",
        "rate",
        lambda r: r.num_trained_rollouts,
        lambda r: r.compute_s,
    ),
    ("rl.trainer.wait_fraction", "trainer waits", "share", _waited, lambda r: r.duration_s),
    ("rl.staleness.token", "staleness of tokens, steps", "number", _aged, _tokens),
    (
        "rl.rollout.tokens",
        "tokens of a rollout",
        "number",
        lambda r: (r.mean_tokens or 0.0) * r.num_rollouts,
        lambda r: r.num_rollouts,
    ),
    (
        "rl.rollout.truncated_fraction",
        "cut off by a length limit",
        "share",
        lambda r: (r.truncated_fraction or 0.0) * r.num_rollouts,
        lambda r: r.num_rollouts,
    ),
)


def _slope(reading: Reading, axis: Axis) -> Value:
    line = reward_line(reading, axis)
    if line is None:
        return NOTHING
    low, high = line.slope_interval()
    doubling = math.log(2.0)
    return Value(line.slope * doubling, low * doubling, high * doubling)


def _height(reading: Reading, axis: Axis, x: float) -> Value:
    near = [reward for at, reward in _points(reading, axis) if NEAR * x <= at <= x]
    if len(near) < MIN_STEPS:
        return Value(fmean(near)) if near else NOTHING
    mean = fmean(near)
    half = t_quantile(0.975, len(near) - 1) * math.sqrt(variance(near) / len(near))
    return Value(mean, mean - half, mean + half)


def _common(readings: Sequence[Reading], axis: Axis) -> float | None:
    """Return the largest x that every run has reached, None where one has none."""
    ends: list[float] = []
    for reading in readings:
        trained = float(sum(record.num_trained_rollouts for record in reading.records))
        x = axis(reading, reading.records[-1], trained)
        if x is None or x <= 0.0:
            return None
        ends.append(x)
    return min(ends)


def _shown(x: float, axis: str) -> str:
    match axis:
        case "cost":
            return f"at ${x:,.2f}"
        case "time":
            return f"{x:,.0f} s after the first start"
        case _:
            return f"at {x:,.0f} {axis}"


def _usd_per_mtok(reading: Reading) -> Value:
    price = reading.metrics.facts.usd_per_hour
    if price is None:
        return NOTHING
    dollars = [price * record.duration_s / 3600.0 * 1e6 for record in reading.records]
    return ratio_of_sums(dollars, [float(record.num_trained_tokens) for record in reading.records])


def _zero(reading: Reading) -> Value:
    share, settled = reading.summary["rl.group.zero_advantage_fraction"], reading.metrics.groups.num_decided
    return NOTHING if share is None else Value(share, *wilson(share, settled))


def _discarded(reading: Reading) -> Value:
    """Rollouts of a group meet one fate, mostly: the groups are the observations."""
    share = reading.summary["rl.discard.rollout_fraction"]
    groups = reading.metrics.groups.num_settled
    return NOTHING if share is None or not groups else Value(share, *wilson(share, groups))
