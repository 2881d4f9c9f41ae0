"""Estimates over tasks, with 95 % intervals. Tasks are the clusters: rollouts of one task are alike.

Nothing here knows of runs; a test has the exact values. No interval is given where one task alone is known,
nor for a mean of tasks that are all alike: a point would claim to be certain.

- pass@k of a task with n rollouts, c of them solved: 1 - C(n - c, k) / C(n, k), unbiased (Chen et al. 2021,
  Evaluating Large Language Models Trained on Code). Over tasks: the mean.
- Its interval is Wilson's score interval with an effective number of observations, as is used for clustered
  samples: n_eff = p (1 - p) / (s^2 / T), where T tasks have the variance s^2 (denominator T), and at most
  T n / k. With n = 1 it is Wilson's interval itself. It stays within [0, 1] and is no point at 0 and 1.
- The mean reward is a ratio, rewards over rollouts, for tasks may have lost some; its interval is the normal
  approximation with the cluster-robust standard error, sqrt(T / (T - 1) sum_t (sum of t - mean n_t)^2) / n.
- A reward that was always 0 or 1 is a share, and has the interval of pass@1.
- The difference of two evaluations is the mean over tasks that both have of their paired differences, with
  the normal approximation over tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
Z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its interval; low and high are None where it has none."""

    value: float
    low: float | None
    high: float | None
    num_tasks: int  # that it rests on


def pass_at_k(num: int, solved: int, k: int) -> float:
    """Return the unbiased estimate of one task's pass@k from `num` rollouts; k is at most `num`."""
    return 1.0 - math.comb(num - solved, k) / math.comb(num, k)


def wilson(share: float, num: float) -> tuple[float, float]:
    """Return Wilson's score interval of a share that was observed in `num` trials."""
    spread = Z * Z / num
    centre = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * math.sqrt(share * (1 - share) / num + spread / (4 * num))
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return low, high


def pass_estimate(tasks: Sequence[tuple[int, int]], k: int) -> Estimate | None:
    """Return pass@k over tasks of (rollouts, solved); those with fewer than k rollouts are left out.

    None when no task has k rollouts.
    """
    known = [(num, pass_at_k(num, solved, k)) for num, solved in tasks if num >= k]
    if not known:
        return None
    values = [value for _, value in known]
    num_tasks, mean = len(values), math.fsum(values) / len(values)
    if num_tasks == 1:
        return Estimate(mean, None, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in values) / num_tasks
    most = sum(num for num, _ in known) / k
    if 0 < mean < 1:
        effective = min(most, mean * (1 - mean) * num_tasks / variance) if variance else most
    else:
        effective = num_tasks
    return Estimate(mean, *wilson(mean, effective), num_tasks)


def mean_estimate(tasks: Sequence[Sequence[float]]) -> Estimate | None:
    """Return the mean over all rollouts of tasks, given by their values; None when there are none."""
    known = [values for values in tasks if values]
    total = sum(map(len, known))
    if not total:
        return None
    mean = math.fsum(value for values in known for value in values) / total
    num_tasks = len(known)
    squares = math.fsum((math.fsum(values) - mean * len(values)) ** 2 for values in known)
    if num_tasks == 1 or not squares:
        return Estimate(mean, None, None, num_tasks)
    half = Z * math.sqrt(num_tasks / (num_tasks - 1) * squares) / total
    return Estimate(mean, mean - half, mean + half, num_tasks)


def reward_estimate(tasks: Sequence[Sequence[float]]) -> Estimate | None:
    """Return the mean reward; where each is 0 or 1 it is a share, with the interval of pass@1."""
    mean = mean_estimate(tasks)
    known = [values for values in tasks if values]
    is_share = all(value in (0.0, 1.0) for values in known for value in values)
    if mean is None or mean.low is None or not is_share or len(set(map(len, known))) > 1:
        return mean
    return pass_estimate([(len(values), round(math.fsum(values))) for values in known], 1)


def difference(pairs: Sequence[tuple[float, float]]) -> Estimate | None:
    """Return the mean of first - second over tasks; None without a task."""
    if not pairs:
        return None
    return mean_estimate([[first - second] for first, second in pairs])
