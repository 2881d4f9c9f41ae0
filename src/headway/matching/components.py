"""How much of the spread of lengths belongs to the task, to the rollout and to the single answer, and drift.

    log length = level + slope * step + task + rollout + answer

with normal task, rollout and answer parts. Neither scipy nor lifelines fits nested parts with censored
values, so they are drawn: a Gibbs sampler that fills in what was cut off (data augmentation: Tanner and Wong,
JASA 1987; flat priors on the level, the slope and the standard deviations). Its draws give the intervals too,
and these know that answers of one rollout are alike. The seed is fixed: a journal gives the same fit each
time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from scipy import special  # pyright: ignore[reportMissingTypeStubs]

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Places = NDArray[np.int64]

special_: Any = cast("Any", special)  # scipy has no types

MAX_VALUES = 6_000  # that the sampler looks at; of more, those of evenly spaced rollouts
WARM, KEPT = 100, 250  # draws
MIN_SHARED = 5  # tasks, or rollouts, with two values or more, for their part to be told
_EXACT_FROM = 30.0  # counts from which rounding does not matter


@dataclass(frozen=True, slots=True)
class Value:
    """One length or time, of one rollout at one task."""

    value: float
    is_cut: bool  # it would have been at least `value`
    rollout: str
    task: str
    step: int  # optimizer steps applied when the rollout started


@dataclass(frozen=True, slots=True)
class Estimate:
    """A posterior mean with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def differs_from_zero(self) -> bool:
        """Whether the interval leaves zero out."""
        return self.low > 0.0 or self.high < 0.0


@dataclass(frozen=True, slots=True)
class Components:
    """What the sampler found. The slope is of the logarithm, per step; None where steps do not differ."""

    level: float  # of the logarithm, at step 0
    slope: Estimate | None
    mean: Estimate  # of the value, at step 0 where the slope differs from zero, else over the whole run
    answer_sigma: Estimate
    rollout_sigma: Estimate | None  # None where no rollout has two values
    task_sigma: Estimate | None  # None where no task has two rollouts
    num: int
    censored: float

    @property
    def sigma(self) -> float:
        """Of all parts together."""
        parts = (self.answer_sigma, self.rollout_sigma, self.task_sigma)
        return math.sqrt(sum(part.value**2 for part in parts if part is not None))


def components(values: Sequence[Value], *, counts: bool = False) -> Components | None:
    """Fit the parts; None for fewer than 20 values or fewer than 10 that were seen whole.

    Args:
        values: above 0.
        counts: whether they are whole numbers of a rounded quantity, 1 for everything below 1.5.
    """
    values = _fewer(values)
    censored = sum(value.is_cut for value in values)
    if len(values) < 20 or len(values) - censored < 10:
        return None
    steps = np.asarray([value.step for value in values], dtype=np.float64)
    span = float(np.ptp(steps))
    drifts = span >= 3
    found = _Sampler(values, counts=counts, drifts=drifts).run()
    slope = _estimate(found["slope"] / span) if drifts else None
    if slope is not None and not slope.differs_from_zero:
        found = _Sampler(values, counts=counts, drifts=False).run()
    level = found["level"]
    if slope is not None and slope.differs_from_zero:
        level = level - found["slope"] * float(steps.min()) / span  # the sampler counts from the first step
    total = found["answer"] + found.get("rollout", 0.0) + found.get("task", 0.0)
    return Components(
        float(np.mean(level)),
        slope,
        _estimate(np.exp(level + total / 2)),
        _estimate(np.sqrt(found["answer"])),
        _estimate(np.sqrt(found["rollout"])) if "rollout" in found else None,
        _estimate(np.sqrt(found["task"])) if "task" in found else None,
        len(values),
        censored / len(values),
    )


def _fewer(values: Sequence[Value]) -> Sequence[Value]:
    if len(values) <= MAX_VALUES:
        return values
    names = list(dict.fromkeys(value.rollout for value in values))
    kept = set(names[:: -(-len(values) // MAX_VALUES)])
    return [value for value in values if value.rollout in kept]


def _estimate(draws: Array) -> Estimate:
    low, high = (float(value) for value in np.quantile(draws, (0.025, 0.975)))
    return Estimate(float(np.mean(draws)), low, high)


class _Sampler:
    """The state of the chain: the filled-in logs, the parts, their variances."""

    def __init__(self, values: Sequence[Value], *, counts: bool, drifts: bool) -> None:
        self._rng = np.random.default_rng(0)
        raw = np.maximum(np.asarray([value.value for value in values], dtype=np.float64), 1e-6)
        cut = np.asarray([value.is_cut for value in values])
        low, high = np.log(raw), np.log(raw)
        if counts:
            coarse = ~cut & (raw < _EXACT_FROM)
            low = np.where(coarse, np.where(raw < 1.5, -np.inf, np.log(np.maximum(raw - 0.5, 1e-9))), low)
            high = np.where(coarse, np.log(raw + 0.5), high)
        high = np.where(cut, np.inf, high)
        self._filled = np.flatnonzero(low != high)
        self._low, self._high = low[self._filled], high[self._filled]
        self._y = np.log(raw)
        steps = np.asarray([value.step for value in values], dtype=np.float64)
        span = max(1.0, float(np.ptp(steps)))
        columns = [np.ones_like(steps), *([(steps - steps.min()) / span] if drifts else [])]
        self._design = np.stack(columns, axis=1)
        self._rollout = _places([value.rollout for value in values])
        self._task = _places([value.task for value in values])
        rollouts_of_task = _places_of(self._rollout, self._task)
        start = max(1e-4, float(np.var(self._y)))
        self._parts: dict[str, tuple[Places, Array, Array]] = {}  # place of each value, effects, counts
        if np.sum(np.bincount(self._rollout) > 1) >= MIN_SHARED:
            self._add("rollout", self._rollout)
        if np.sum(np.bincount(rollouts_of_task) > 1) >= MIN_SHARED:
            self._add("task", self._task)
        self._variance = dict.fromkeys(("answer", *self._parts), start / 3)
        self._beta = np.zeros(self._design.shape[1])

    def _add(self, name: str, places: Places) -> None:
        counts = np.bincount(places).astype(np.float64)
        self._parts[name] = places, np.zeros(len(counts)), counts

    def run(self) -> dict[str, Array]:
        """Return the kept draws of the level, the slope and the variances."""
        kept: dict[str, list[float]] = {}
        for draw in range(WARM + KEPT):
            self._step()
            if draw < WARM:
                continue
            names = ("level", "slope")[: len(self._beta)]
            for name, value in (*zip(names, self._beta, strict=True), *self._variance.items()):
                kept.setdefault(name, []).append(float(value))
        return {name: np.asarray(draws) for name, draws in kept.items()}

    def _step(self) -> None:
        rng, noise = self._rng, self._variance["answer"]
        fixed = self._design @ self._beta
        shared = self._shared()
        if len(self._filled):
            centre = (fixed + shared)[self._filled]
            self._y[self._filled] = _truncated(rng, centre, math.sqrt(noise), self._low, self._high)
        gram = np.linalg.inv(self._design.T @ self._design)
        mean = gram @ (self._design.T @ (self._y - shared))
        self._beta = rng.multivariate_normal(mean, gram * noise)
        left = self._y - self._design @ self._beta
        for name, (places, effects, counts) in self._parts.items():
            others = left - self._shared(but=name)
            precision = counts / noise + 1 / self._variance[name]
            centre = np.bincount(places, weights=others, minlength=len(counts)) / noise / precision
            effects[:] = centre + rng.standard_normal(len(counts)) / np.sqrt(precision)
            # Part and level are told apart by the level alone.
            self._variance[name] = _variance(rng, float(np.sum(effects**2)), len(counts))
        self._variance["answer"] = _variance(rng, float(np.sum((left - self._shared()) ** 2)), len(left))

    def _shared(self, but: str = "") -> Array:
        total = np.zeros_like(self._y)
        for name, (places, effects, _) in self._parts.items():
            if name != but:
                total += effects[places]
        return total


def _variance(rng: np.random.Generator, squares: float, num: int) -> float:
    """Draw a variance given squares of `num` normals, flat prior on the standard deviation."""
    return max(1e-12, squares) / max(1e-9, float(rng.chisquare(max(1, num - 1))))


def _truncated(rng: np.random.Generator, centre: Array, sigma: float, low: Array, high: Array) -> Array:
    """Draw normals between bounds, by the inverse of their distribution on the side of the smaller tail."""
    ndtr: Callable[[Array], Array] = special_.ndtr
    a, b = (low - centre) / sigma, (high - centre) / sigma
    upper = a + np.where(np.isfinite(b), b, 1e3) > 0
    a, b = np.where(upper, -b, a), np.where(upper, -a, b)
    begin, end = ndtr(a), ndtr(b)
    drawn: Array = special_.ndtri(np.clip(begin + rng.random(len(a)) * (end - begin), 1e-300, 1 - 1e-16))
    drawn = np.clip(drawn, np.where(np.isfinite(a), a, -40.0), np.where(np.isfinite(b), b, 40.0))
    return centre + sigma * np.where(upper, -drawn, drawn)


def _places(names: Sequence[str]) -> Places:
    known: dict[str, int] = {}
    return np.asarray([known.setdefault(name, len(known)) for name in names], dtype=np.int64)


def _places_of(inner: Places, outer: Places) -> Places:
    """Return the outer place of each inner one."""
    result = np.zeros(int(inner.max()) + 1, dtype=np.int64)
    result[inner] = outer
    return result
