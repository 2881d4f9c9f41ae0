"""Models of `SimSettings`: nothing slows anything else down, and every rollout takes as many turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.matching.contracts import RolloutPlan, SandboxStart, TurnPlan
from headway.matching.roles import SimModels, SimSettings

if TYPE_CHECKING:
    import random

_PROMPT_TOKENS = 30


def plain_models(sim: SimSettings) -> SimModels:
    """Return the models of these settings."""
    return SimModels(
        PlainEngine(sim), PlainTrainer(sim), PlainWorkload(sim), PlainFleet(sim), sim, sim.num_tasks
    )


class PlainEngine:
    """An engine whose requests do not slow one another down."""

    separate_prefill = True
    prefill_lines = 0
    tokens_per_iteration = 1.0

    def __init__(self, sim: SimSettings) -> None:
        self._sim = sim
        self.max_running, self.kv_tokens = sim.max_running, sim.kv_tokens
        self.offload_tokens = 0

    def decode_s(self, num_running: float, resident_tokens: float) -> float:
        """Return the seconds of one token."""
        return self._sim.token_s

    def prefill_s(self, num_tokens: float, context_tokens: float) -> float:
        """Return the seconds of a prefill."""
        return self._sim.prefill_s + self._sim.prefill_token_s * num_tokens


class PlainTrainer:
    """A trainer whose step takes as long whatever is in it."""

    load_s = 0.0

    def __init__(self, sim: SimSettings) -> None:
        self._train_s = sim.train_s
        self.publish_s, self.apply_s, self.save_s = sim.publish_s, sim.apply_s, sim.save_s

    def step_s(self, num_rows: int, num_tokens: int, sum_squares: float) -> float:
        """Return the seconds of a step."""
        return self._train_s


class PlainWorkload:
    """Rollouts of a fixed number of turns, with lognormal answers."""

    def __init__(self, sim: SimSettings) -> None:
        self._sim = sim

    def plan(
        self, rng: random.Random, task_id: str, rollout: str, attempt: int, step: int, purpose: str
    ) -> RolloutPlan:
        """Draw what an attempt does."""
        sim, turns = self._sim, list[TurnPlan]()
        for turn in range(sim.num_turns):
            tool_s = None if turn == sim.num_turns - 1 else draw_tool_s(rng, sim)
            turns.append(TurnPlan(draw_tokens(rng, sim, task_id), tool_s, 0))
        solved = rng.random() < task_solve_rate(task_id, sim, step)
        return RolloutPlan(_PROMPT_TOKENS, tuple(turns), False, solved, sim.score_s, sim.uses_sandbox)

    def reward(self, rng: random.Random, plan: RolloutPlan) -> float:
        """Return 1 for a rollout that solves its task, else 0."""
        return float(plan.solved)


@dataclass(frozen=True, slots=True)
class PlainFleet:
    """A provider whose sandboxes all take as long to start; it counts none, so it is its own `Fleet`."""

    sim: SimSettings

    def begin(self) -> PlainFleet:
        """Return the provider."""
        return self

    def start(self, rng: random.Random, now_s: float) -> SandboxStart:
        """Start a sandbox."""
        return SandboxStart(now_s + self.sim.sandbox_start_s)


def draw_tokens(rng: random.Random, settings: SimSettings, task_id: str = "") -> int:
    """Draw the length of one answer: lognormal with the given mean, at least 1, cut at the limit."""
    sigma = settings.tokens_sigma
    mu = -0.5 * sigma * sigma
    mean = settings.tokens_means.get(task_id.partition(":")[0], settings.tokens_mean)
    drawn = mean * rng.lognormvariate(mu, sigma)
    return max(1, min(settings.max_answer_tokens, round(drawn)))


def draw_tool_s(rng: random.Random, settings: SimSettings) -> float:
    """Draw the duration of one tool call, seconds: lognormal with the given mean."""
    if not settings.tool_sigma:
        return settings.tool_s
    sigma = settings.tool_sigma
    return settings.tool_s * rng.lognormvariate(-0.5 * sigma * sigma, sigma)


def task_solve_rate(task_id: str, settings: SimSettings, step: int = 0) -> float:
    """Return a task's own solve rate after so many steps.

    By its level or source where those are known; else 0, 1 or the mean, so that some groups have no signal.
    """
    source, _, place = task_id.rpartition(":")
    _, index, *level = place.split("/")
    known = settings.solve_rates.get(level[0] if level else source)
    if known is not None:
        return min(1.0, max(0.0, known + settings.learning * step))
    return (
        (settings.solve_rate, settings.solve_rate, 0.0, 1.0)[int(index) % 4]
        if int(index) % 8 > 3
        else settings.solve_rate
    )
