"""A rubric: weighted reward functions that are called at once; their sum is the score.

Consumes one case; waits for every function, each at most its own limit. A function that raises, takes too
long or returns no finite number leaves the rollout without a score, and the others are cancelled: it is never
counted as 0.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import EnvironmentSetupError
from headway.core.records import Reward
from headway.rewards.calls import call
from headway.rewards.case import Case, arguments, as_reward, prefixed, wanted
from headway.rewards.check import MalformedRewardFault, checked

if TYPE_CHECKING:
    from headway.core.protocols import Outcome, Sandbox
    from headway.core.records import Task


@dataclass(frozen=True, slots=True)
class Part:
    """One function of a rubric.

    Attributes:
        function: plain or async, with any of the parameters of case.NAMES; returns a number, true or false,
            (number, reason), or a Reward, whose turns are those of the rubric's too.
        weight: what its number counts in the score; 0 for a metric only.
        name: of its metric and of its reasons; "" for the function's own.
        timeout_s: its limit; waiting for a judge's rate limit does not count.
    """

    function: Callable[..., Any]
    weight: float = 1.0
    name: str = ""
    timeout_s: float = 30.0

    @property
    def label(self) -> str:
        """The name."""
        function = self.function
        return self.name or str(getattr(function, "name", "") or getattr(function, "__name__", "part"))


class Rubric:
    """Weighted reward functions.

    Raises EnvironmentSetupError for two parts of one name, a weight or limit that is not finite, or a
    function with a parameter that nothing is known for.
    """

    def __init__(self, *parts: Part | Callable[..., Any]) -> None:
        self.parts = tuple(part if isinstance(part, Part) else Part(part) for part in parts)
        labels = [part.label for part in self.parts]
        if not labels or len(set(labels)) < len(labels):
            rule = "a rubric must have parts, each with a name of its own"
            raise EnvironmentSetupError(rule, value=labels, remedy="Write Part(function, name=...)")
        for part in self.parts:
            for what, value in (("weight", part.weight), ("timeout_s", part.timeout_s)):
                if not _is_finite(value):
                    rule = f"the {what} of {part.label} must be a finite number"
                    raise EnvironmentSetupError(
                        rule, value=value, remedy="A weight of 0 is for a metric only"
                    )
        self._wanted = [wanted(part.label, part.function) for part in self.parts]

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Return the sum of all parts, each by its weight; every part's number is a metric of its name.

        Raises RewardFault that names the part, or the SandboxError or JudgeError that it met.
        """
        return await self.of(Case(task, outcome, sandbox))

    async def of(self, case: Case) -> Reward:
        """Return the reward of a case."""
        work = [self._part(part, names, case) for part, names in zip(self.parts, self._wanted, strict=True)]
        return summed(list(zip(self.parts, await all_of(work), strict=True)))

    async def _part(self, part: Part, names: tuple[str, ...], case: Case) -> Reward:
        found = await call(part.label, part.function, part.timeout_s, **arguments(case, names))
        return as_reward(part.label, found)


def summed(rewards: list[tuple[Part, Reward]]) -> Reward:
    """Return the weighted sum of rewards, their numbers as metrics, and what they say.

    The rewards of turns are the sum of those parts' that have any, likewise weighted.
    """
    metrics: dict[str, float] = {}
    reasons: list[str] = []
    turns: list[float] = []
    for part, reward in rewards:
        metrics |= {part.label: float(reward.score), **prefixed(part.label, reward.metrics)}
        reasons += [f"{part.label}: {reason}" for reason in reward.reasons or (f"{reward.score:g}",)]
        if reward.turns:
            own = [part.weight * value for value in reward.turns]
            if turns and len(turns) != len(own):
                rule = (
                    f"the parts of a rubric must reward as many turns each; {part.label} rewards {len(own)}"
                )
                raise MalformedRewardFault(rule, value=len(turns), remedy="Return one number for each answer")
            turns = [mine + theirs for mine, theirs in zip(turns, own, strict=True)] if turns else own
    score = math.fsum(part.weight * reward.score for part, reward in rewards)
    return checked(Reward(score, tuple(reasons), metrics, tuple(turns)))


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


async def all_of(work: list[Any]) -> list[Any]:
    """Return what coroutines return that run at once; the first that raises ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as errors:  # the first is the news; the others were cancelled for it
        raise _first(errors) from None
    return [task.result() for task in tasks]


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    if isinstance(first, BaseExceptionGroup):
        return _first(cast("BaseExceptionGroup[BaseException]", first))
    return first
