"""Rewards of turns: one for each answer of the policy (`Reward.turns`), for process supervision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from headway.core.records import Reward
from headway.rewards.calls import call, is_async
from headway.rewards.case import Case, as_reward
from headway.rewards.check import checked
from headway.rewards.faults import RewardRaisedFault
from headway.rewards.rubric import all_of

_COMBINED: dict[str, Callable[[list[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "min": min,
    "last": lambda values: values[-1],
}


@dataclass(frozen=True, slots=True)
class Step:
    """One answer, with what came before it."""

    index: int  # 0 for the first answer
    answer: str
    before: list[dict[str, Any]]  # messages up to the answer
    after: list[dict[str, Any]]  # messages between it and the next answer: what a tool said to it
    case: Case


def steps_of(case: Case) -> list[Step]:
    """Return the answers of a case's transcript in order."""
    transcript = case.transcript
    places = [at for at, message in enumerate(transcript) if message["role"] == "assistant"]
    ends = [*places[1:], len(transcript)]
    return [
        Step(index, str(transcript[at]["content"]), transcript[:at], transcript[at + 1 : end], case)
        for index, (at, end) in enumerate(zip(places, ends, strict=True))
    ]


class EachTurn:
    """A part of a rubric that calls a function for each answer: its numbers are the rewards of the turns.

    Args:
        function: plain or async; takes a Step, returns a number or (number, reason).
        combine: what the rollout's own number is made of the turns'.
        timeout_s: of one call; calls run at once.
        name: of its metric and reasons; "" for the function's own.
    """

    def __init__(
        self,
        function: Callable[[Step], Any],
        combine: Literal["mean", "sum", "min", "last"] = "mean",
        timeout_s: float = 30.0,
        name: str = "",
    ) -> None:
        self._function = function
        self._combine = _COMBINED[combine]
        self._timeout_s = timeout_s
        self.name = name or str(getattr(function, "__name__", "turns"))

    async def __call__(self, case: Case) -> Reward:
        """Return the reward of a case, with a reward for each turn."""
        steps = steps_of(case)
        if not steps:
            raise RewardRaisedFault(f"reward {self.name} needs an answer, and the transcript holds none")
        rewards = await all_of([self._one(step) for step in steps])
        turns = tuple(float(reward.score) for reward in rewards)
        reasons = tuple(
            f"turn {at}: {reason}" for at, reward in enumerate(rewards) for reason in reward.reasons
        )
        return checked(Reward(self._combine(list(turns)), reasons, turns=turns))

    async def _one(self, step: Step) -> Reward:
        label = f"{self.name} of turn {step.index}"
        found = await call(label, _by_position(self._function), self._timeout_s, step=step)
        return as_reward(label, found)


def _by_position(function: Callable[[Step], Any]) -> Callable[..., Any]:
    """Let a parameter have any name, and a plain function stay one."""

    async def awaited(step: Step) -> Any:
        return await function(step)

    def plain(step: Step) -> Any:
        return function(step)

    return awaited if is_async(function) else plain


def with_outcome(reward: Reward, score: float) -> Reward:
    """Return a reward whose last turn has a score added: the advantage `process` reads turns only."""
    if not reward.turns:
        return reward
    turns = (*reward.turns[:-1], reward.turns[-1] + score)
    return Reward(reward.score, reward.reasons, reward.metrics, turns)
