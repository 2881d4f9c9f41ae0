"""A drawn workload: what rollouts do, from `[workload]`.

Every length and time is lognormal with the mean that the settings give. A rollout's answers share two factors
of mean 1, its task's and its own; those are what make whole rollouts long, so that a group waits for its
slowest. A task's solve rate is drawn once from a Beta distribution and learning moves its log-odds, so that a
task that nobody solves stays hard for long. Solving does not depend on length.
"""

from __future__ import annotations

import random
import zlib
from math import exp, log
from typing import TYPE_CHECKING

from headway.matching.contracts import RolloutPlan, TurnPlan

if TYPE_CHECKING:
    from headway.matching.spec import WorkloadSettings

_MAX_TASKS = 4096  # whose factors are remembered
_LEAST_RATE = 1e-9  # solve rates keep away from 0 and 1, or no learning could move them


class DrawnWorkload:
    """Draws rollouts; pure but for what it remembers of tasks, which it would draw again alike."""

    def __init__(self, settings: WorkloadSettings, *, max_context_tokens: int = 0) -> None:
        """Take the settings; `max_context_tokens` cuts where they have no limit of their own, 0 for none."""
        self._settings = settings
        self._limit = settings.max_tokens or max_context_tokens
        self._tasks: dict[str, tuple[float, float]] = {}  # -> length factor, log-odds of being solved

    def plan(
        self, rng: random.Random, task_id: str, rollout: str, attempt: int, step: int, purpose: str
    ) -> RolloutPlan:
        """Draw what an attempt does; see `contracts.Workload`."""
        settings = self._settings
        task_factor, log_odds = self._task(task_id)
        gauss, limit = rng.gauss, self._limit
        num_turns, stopped = self._num_turns(rng, step)
        sigma = settings.answer_sigma
        mu = log(settings.answer_tokens * task_factor * self._drift("answer_tokens", step))
        mu += _shift(settings.rollout_sigma) + settings.rollout_sigma * gauss(0.0, 1.0) + _shift(sigma)
        tool_s = settings.tool_s * self._drift("tool_s", step)
        tool_mu = log(tool_s) + _shift(settings.tool_sigma) if tool_s else 0.0
        tool_sigma = settings.tool_sigma
        observation = round(settings.observation_tokens * self._drift("observation_tokens", step))
        prompt = max(1, round(settings.prompt_tokens * self._drift("prompt_tokens", step)))
        context = prompt
        turns: list[TurnPlan] = []
        truncated = stopped
        for left in range(num_turns - 1, -1, -1):
            answer = int(exp(mu + sigma * gauss(0.0, 1.0)) + 0.5) or 1
            if limit and context + answer >= limit:
                turns.append(TurnPlan(max(1, limit - context), None, 0))
                truncated = True
                break
            context += answer
            if not (left or settings.final_tool):
                turns.append(TurnPlan(answer, None, 0))
                break
            took_s = exp(tool_mu + tool_sigma * gauss(0.0, 1.0)) if tool_s and tool_sigma else tool_s
            turns.append(TurnPlan(answer, took_s, observation if left else 0))
            if not left:
                break
            context += observation
            if limit and context >= limit:  # no room for another answer
                truncated = True
                break
        return RolloutPlan(
            prompt_tokens=prompt,
            turns=tuple(turns),
            truncated=truncated,
            solved=rng.random() < _logistic(log_odds + settings.learning * step),
            score_s=_lognormal(rng, settings.score_s * self._drift("score_s", step), settings.score_sigma),
            uses_sandbox=settings.uses_sandbox,
            fails_after=self._fails_after(rng, len(turns)),
        )

    def reward(self, rng: random.Random, plan: RolloutPlan) -> float:
        """Return 1 for a rollout that solves its task, else 0."""
        return 1.0 if plan.solved else 0.0

    def solve_rate(self, task_id: str, step: int) -> float:
        """Return how likely a rollout solves a task after so many steps."""
        return _logistic(self._task(task_id)[1] + self._settings.learning * step)

    def _num_turns(self, rng: random.Random, step: int) -> tuple[int, bool]:
        """Return how many turns a rollout takes, and whether the limit cuts it."""
        settings = self._settings
        mean = settings.turns * self._drift("turns", step)
        drawn = max(1, round(_lognormal(rng, mean, settings.turns_sigma)))
        most = settings.max_turns
        return (most, True) if 0 < most < drawn else (drawn, False)

    def _fails_after(self, rng: random.Random, num_turns: int) -> int | None:
        settings = self._settings
        if settings.failure_rate and rng.random() < settings.failure_rate:
            return max(1, round(settings.failure_after * num_turns))
        return None

    def _task(self, task_id: str) -> tuple[float, float]:
        known = self._tasks.get(task_id)
        if known is None:
            settings = self._settings
            rng = random.Random(zlib.crc32(task_id.encode()))
            factor = _lognormal(rng, 1.0, settings.task_sigma)
            rate = rng.betavariate(settings.solve_alpha, settings.solve_beta)
            rate = min(1.0 - _LEAST_RATE, max(_LEAST_RATE, rate))
            if len(self._tasks) >= _MAX_TASKS:
                del self._tasks[next(iter(self._tasks))]
            known = self._tasks[task_id] = (factor, log(rate / (1.0 - rate)))
        return known

    def _drift(self, name: str, step: int) -> float:
        """Return the factor of a quantity after so many steps: from 1 along a straight line, then level."""
        reached = self._settings.drift.get(name)
        if reached is None:
            return 1.0
        return 1.0 + (reached - 1.0) * min(1.0, step / self._settings.drift_steps)


def _logistic(log_odds: float) -> float:
    if log_odds < 0.0:  # so that no exponential overflows
        odds = exp(log_odds)
        return odds / (1.0 + odds)
    return 1.0 / (1.0 + exp(-log_odds))


def _shift(sigma: float) -> float:
    """Return what makes the mean of a lognormal 1."""
    return -0.5 * sigma * sigma


def _lognormal(rng: random.Random, mean: float, sigma: float) -> float:
    if not sigma or not mean:
        return mean
    return mean * exp(_shift(sigma) + sigma * rng.gauss(0.0, 1.0))
