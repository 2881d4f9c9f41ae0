"""Rewards that need all rollouts of a group: they enter the advantage in place of those of single ones.

A group function takes the group's members and returns a finite number for each of them. It is called once a
group, when all of its rollouts are scored or lost, before the advantage. The rollouts' own scores, and what
is reported of them, stay as they were.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import EnvironmentSetupError, RewardFault
from headway.core.hooks import load_function
from headway.rewards.calls import call
from headway.rewards.check import is_finite, number, unboxed

if TYPE_CHECKING:
    from headway.rewards.judge import Judge

BUILT_IN = ("pairwise", "shorter")


@dataclass(frozen=True, slots=True)
class Member:
    """One scored rollout of a group."""

    rollout: str
    task_id: str
    reward: float  # of its own score
    num_tokens: int  # that it sampled
    turn_rewards: tuple[float, ...]
    data: dict[str, Any]  # what it left, Outcome.data
    transcript: list[dict[str, Any]]  # its messages

    @property
    def question(self) -> str:
        """What users' messages said before the first answer."""
        said: list[str] = []
        for message in self.transcript:
            if message["role"] == "assistant":
                break
            if message["role"] == "user":
                said.append(str(message["content"]))
        return "\n\n".join(said)

    @property
    def answer(self) -> str:
        """The policy's last answer."""
        answers = [str(each["content"]) for each in self.transcript if each["role"] == "assistant"]
        return (answers or [""])[-1]


GroupReward = Callable[[Sequence[Member]], Awaitable[list[float]]]


def load_group_reward(name: str, judge: Judge | None, timeout_s: float) -> GroupReward:
    """Return the configured group function, checked.

    Raises UserError when it cannot be loaded, or needs a judge that there is none of. What is returned
    raises RewardFault when the function raises, takes too long or returns something else, JudgeError when the
    judge failed.
    """
    if name == "pairwise":
        if judge is None:
            raise EnvironmentSetupError("pairwise needs a judge", key="reward.group", remedy="Set judge.url")
        function: Callable[..., Any] = Pairwise(judge)
    elif name == "shorter":
        function = shorter
    else:
        function = load_function(name, ["members"], may_await=True)

    async def checked(members: Sequence[Member]) -> list[float]:
        found: object = await call(f"of the group ({name})", _taking(function), timeout_s, members=members)
        return _finite(found, len(members), name)

    return checked


class Pairwise:
    """Adds to each reward how much the judge prefers the answer to the others of its group, from 0 to 1."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    async def __call__(self, members: Sequence[Member]) -> list[float]:
        """Return the rewards of a group."""
        question = members[0].question
        ranks = await self._judge.ranked(question, [member.answer for member in members])
        return [
            member.reward + self._judge.settings.weight * rank
            for member, rank in zip(members, ranks, strict=True)
        ]


def shorter(members: Sequence[Member]) -> list[float]:
    """Return rewards that prefer short rollouts among the best (the length reward of Kimi k1.5, 2025).

    With t from 0 for the shortest to 1 for the longest of the group, a rollout of the best reward gets
    0.5 - t added, any other one min(0, 0.5 - t). Nothing is added where all are equally long.
    """
    lengths = [member.num_tokens for member in members]
    least, most = min(lengths), max(lengths)
    if least == most:
        return [member.reward for member in members]
    best = max(member.reward for member in members)
    found: list[float] = []
    for member in members:
        bonus = 0.5 - (member.num_tokens - least) / (most - least)
        found.append(member.reward + (bonus if member.reward == best else min(0.0, bonus)))
    return found


def _taking(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let the parameter have any name, and a plain function stay one."""
    from headway.rewards.calls import is_async

    async def awaited(members: Sequence[Member]) -> Any:
        return await function(members)

    def plain(members: Sequence[Member]) -> Any:
        return function(members)

    return awaited if is_async(function) else plain


def _finite(found: object, num: int, name: str) -> list[float]:
    shown = repr(found)[:200]
    shape: object = getattr(found, "shape", None)
    if isinstance(shape, tuple) and len(cast("tuple[int, ...]", shape)) == 1:  # an array or a tensor
        found = cast("Any", found).tolist()
    values = list(map(unboxed, cast("Sequence[object]", found))) if isinstance(found, (list, tuple)) else []
    scores = [int(value) if isinstance(value, bool) else number(value) for value in values]
    numbers = [float(score) for score in scores if score is not None and is_finite(score)]
    if len(values) != num or len(numbers) != num:
        rule = (
            f"the rewards of a group ({name}) must be a list of one finite number for each of {num} rollouts"
        )
        raise RewardFault(rule, value=shown)
    return numbers
