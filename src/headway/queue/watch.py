"""Watching a run's numbers: is the newest window of steps out of line with the steps before it? Pure.

Each metric has a window of its newest steps and a baseline of the steps before the window. Both are summed
up robustly, so that one odd step neither raises an alarm nor spoils the baseline. Metrics that are never
negative are judged by their logarithm, because they change by factors (log(x + floor), so that noise near 0
counts for nothing); the reward as it is:

    scale = max(1.4826 * median(|x - median(baseline)|), least scale)
    alarm when median(window) - median(newer half of the baseline) is beyond sigmas * scale (0.7 of it for the
    reward, whose noise has no tails), on a side on which the metric collapses

1.4826 makes the median absolute deviation of normal noise its standard deviation. The newer half follows a
metric that drifts as the run learns. An absolute limit of the user's is compared with the window's median
too, and needs no baseline. While a metric is in alarm its baseline stands still, so that a collapse does not
become normal; after `baseline` steps in alarm it does: what lasted so long under a warning is how the run is
now. What drifts more slowly than the baseline moves raises no alarm; only an absolute limit sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headway.core.settings import Problem, setting

Action = Literal["off", "warn", "pause", "rollback", "stop"]
_NORMAL = 1.4826
_LEAST_REWARD = 0.02  # least scale of the reward
_LEAST_FACTOR = 0.1  # of the logarithm of everything else: 10 %
_FEWEST = 8  # steps that a baseline needs


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Section [guard]: what happens when the run's numbers collapse."""

    action: Action = setting(
        "warn",
        "On an alarm: warn; pause (no more batches; the run stops after max_pause_s, or by Ctrl-C, and "
        "`headway resume` goes on); rollback (to the last checkpoint from before the alarm, with a lower "
        "learning rate); stop (the run can be resumed from its last checkpoint). off watches nothing.",
    )
    window: int = setting(
        5, "Newest steps whose median is judged; an alarm needs more than half of them to be out.", ge=1
    )
    baseline: int = setting(20, "Steps before the window that it is compared with.", ge=8)
    sigmas: float = setting(
        5.0, "How many robust standard deviations the window's median may lie from the baseline's.", gt=0
    )
    min_reward: float | None = setting(None, "Mean reward of a step's rollouts, below which is an alarm.")
    min_entropy: float | None = setting(None, "Entropy in nats a token, below which is an alarm.", ge=0)
    max_entropy: float | None = setting(None, "Entropy in nats a token, above which is an alarm.", gt=0)
    max_grad_norm: float | None = setting(
        None, "Gradient norm before clipping, above which is an alarm.", gt=0
    )
    max_mismatch_kl: float | None = setting(
        None, "KL of generator and trainer in nats a token, above which is an alarm.", gt=0
    )
    max_clip_fraction: float | None = setting(
        None, "Share of clipped tokens, above which is an alarm.", gt=0, le=1
    )
    max_mask_fraction: float | None = setting(
        None, "Share of masked tokens, above which is an alarm.", gt=0, le=1
    )
    max_response_tokens: float | None = setting(
        None, "Mean sampled tokens of a step's rollouts, above which is an alarm.", gt=0
    )
    paused: bool = setting(
        False, "Release no batch while true; `headway resume RUN guard.paused=false` ends that."
    )
    max_pause_s: float = setting(3600.0, "A pause that nobody ended by then stops the run, resumable.", gt=0)
    rollback_lr_scale: float = setting(
        0.5, "What the learning rate is multiplied by at each rollback.", gt=0, le=1
    )
    max_rollbacks: int = setting(2, "Rollbacks in a run; the next alarm stops it.", ge=0)

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        low, high = self.min_entropy, self.max_entropy
        if low is not None and high is not None and low >= high:
            yield Problem("min_entropy", low, f"must be below max_entropy ({high:g})", "Use a smaller value.")


class Watched(NamedTuple):
    """How one metric is judged."""

    falls: bool  # a fall is a collapse
    rises: bool  # a rise is
    floor: float | None  # what is far below this is 0; None is judged as it is, not by its logarithm
    share: float = 1.0  # of `sigmas`: less where the noise has no tails


WATCHED: dict[str, Watched] = {
    "reward": Watched(falls=True, rises=False, floor=None, share=0.7),
    "entropy": Watched(falls=True, rises=True, floor=0.05),
    "grad_norm": Watched(falls=False, rises=True, floor=1e-3),
    "mismatch_kl": Watched(falls=False, rises=True, floor=0.02),
    "clip_fraction": Watched(falls=False, rises=True, floor=0.1),
    "mask_fraction": Watched(falls=False, rises=True, floor=0.1),
    "response_tokens": Watched(falls=True, rises=True, floor=1.0),
}


class Sample(NamedTuple):
    """A metric's value at one step."""

    step: int
    value: float


@dataclass(slots=True)
class Course:
    """One metric's newest steps."""

    baseline: list[Sample] = field(default_factory=list[Sample])
    window: list[Sample] = field(default_factory=list[Sample])
    alarmed_steps: int = 0  # in a row


@dataclass(slots=True)
class GuardState:
    """What the guard remembers."""

    courses: dict[str, Course] = field(default_factory=dict[str, Course])
    num_scored: int = 0  # train rollouts since the last step
    sum_reward: float = 0.0  # of these
    sum_tokens: int = 0  # that these sampled
    paused: bool = False
    num_rollbacks: int = 0
    tried: list[int] = field(default_factory=list[int])  # checkpoints that a rollback went back to
    dropped: bool = False  # a checkpoint was deleted, so that the run cannot begin anew

    def rollout_scored(self, reward: float, num_tokens: int) -> None:
        """A train rollout was scored; it counts for the step in progress."""
        self.num_scored += 1
        self.sum_reward += reward
        self.sum_tokens += num_tokens


class Finding(NamedTuple):
    """A window that is out of line."""

    metric: str
    value: float  # median of the window
    limit: float  # that it broke
    baseline: float | None  # median; None where an absolute limit was broken without one
    since: int  # step of the window's first value beyond the limit


def observe(settings: GuardSettings, name: str, course: Course, step: int, value: float) -> Finding | None:
    """Take a metric's value in; return a finding at the step at which an alarm begins."""
    course.window.append(Sample(step, value))
    if len(course.window) > settings.window:
        oldest = course.window.pop(0)
        if not course.alarmed_steps:
            course.baseline.append(oldest)
            del course.baseline[: max(0, len(course.baseline) - settings.baseline)]
    finding = _judge(settings, name, course) if len(course.window) == settings.window else None
    if finding is None:
        course.alarmed_steps = 0
        return None
    course.alarmed_steps += 1
    if course.alarmed_steps > settings.baseline:
        course.alarmed_steps = 0
        course.baseline = list(course.window)
        return None
    return finding if course.alarmed_steps == 1 else None


def back_to(course: Course, step: int) -> None:
    """Forget what later steps than `step` told: they are gone."""
    every = [sample for sample in (*course.baseline, *course.window) if sample.step <= step]
    course.baseline, course.window, course.alarmed_steps = every, [], 0


def median(values: Sequence[float]) -> float:
    """Return the median; of an even number of values the mean of the middle two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def limits_of(
    settings: GuardSettings, name: str, baseline: Sequence[float]
) -> tuple[float | None, float | None]:
    """Return the lowest and the highest value that is no alarm; None where there is no limit."""
    low = getattr(settings, f"min_{name}", None)
    high = getattr(settings, f"max_{name}", None)
    if len(baseline) >= _FEWEST:
        watched = WATCHED[name]
        values = [_to_scale(watched, value) for value in baseline]
        middle = median(values)
        spread = _NORMAL * median([abs(value - middle) for value in values])
        reach = (
            settings.sigmas
            * watched.share
            * max(spread, _LEAST_REWARD if watched.floor is None else _LEAST_FACTOR)
        )
        recent = median(values[-(len(values) // 2) :])
        if watched.falls:
            relative = _from_scale(watched, recent - reach)
            low = relative if low is None else max(low, relative)
        if watched.rises:
            relative = _from_scale(watched, recent + reach)
            high = relative if high is None else min(high, relative)
    return low, high


def _to_scale(watched: Watched, value: float) -> float:
    return value if watched.floor is None else math.log(watched.floor + max(0.0, value))


def _from_scale(watched: Watched, value: float) -> float:
    return value if watched.floor is None else math.exp(min(value, 700.0)) - watched.floor


def _judge(settings: GuardSettings, name: str, course: Course) -> Finding | None:
    baseline = [sample.value for sample in course.baseline]
    low, high = limits_of(settings, name, baseline)
    value = median([sample.value for sample in course.window])
    middle = median(baseline) if baseline else None
    if low is not None and value < low:
        since = next(sample.step for sample in course.window if sample.value < low)
        return Finding(name, value, low, middle, since)
    if high is not None and value > high:
        since = next(sample.step for sample in course.window if sample.value > high)
        return Finding(name, value, high, middle, since)
    return None
