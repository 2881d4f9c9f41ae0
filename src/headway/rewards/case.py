"""What a reward function may look at, and what it may answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any, cast

from headway.core.errors import EnvironmentSetupError
from headway.core.protocols import Outcome, Sandbox
from headway.core.records import Reward, Task
from headway.rewards.check import MalformedRewardFault, checked, number, unboxed

NAMES = ("case", "task", "outcome", "sandbox", "payload", "data", "transcript", "question", "answer")
"""Parameters that a reward function may have, in any number and order."""


@dataclass(frozen=True, slots=True)
class Case:
    """One rollout that is to be scored."""

    task: Task
    outcome: Outcome
    sandbox: Sandbox

    @property
    def payload(self) -> dict[str, Any]:
        """The task's own values."""
        return self.task.payload

    @property
    def data(self) -> dict[str, Any]:
        """What the rollout left."""
        return self.outcome.data

    @property
    def transcript(self) -> list[dict[str, Any]]:
        """All messages."""
        return self.outcome.transcript

    @property
    def question(self) -> str:
        """What users' messages said before the first answer, joined by empty lines."""
        said: list[str] = []
        for message in self.outcome.transcript:
            if message["role"] == "assistant":
                break
            if message["role"] == "user":
                said.append(str(message["content"]))
        return "\n\n".join(said)

    @property
    def answers(self) -> list[str]:
        """The policy's answers, in the order of the transcript."""
        return [str(message["content"]) for message in self.transcript if message["role"] == "assistant"]

    @property
    def answer(self) -> str:
        """The policy's last answer, "" where the transcript holds none."""
        return (self.answers or [""])[-1]

    @property
    def num_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return sum(int(message.get("num_tokens", 0)) for message in self.transcript)

    @property
    def truncated(self) -> bool:
        """Whether an answer hit its limit."""
        return any(message.get("finish") == "length" for message in self.transcript)


def wanted(name: str, function: Callable[..., Any]) -> tuple[str, ...]:
    """Return which of NAMES a function takes.

    Raises EnvironmentSetupError when it needs anything else.
    """
    try:
        parameters = signature(function).parameters.values()
    except ValueError:  # some functions written in C tell nothing of themselves
        return ("answer",)
    found: list[str] = []
    for parameter in parameters:
        if parameter.kind is Parameter.VAR_KEYWORD:
            continue
        if parameter.name in NAMES and parameter.kind is not Parameter.POSITIONAL_ONLY:
            found.append(parameter.name)
        elif parameter.default is Parameter.empty:
            raise EnvironmentSetupError(
                f"reward {name} has a parameter that Headway knows nothing for",
                value=parameter.name,
                remedy=f"It may take {', '.join(NAMES)}",
            )
    return tuple(found)


def arguments(case: Case, names: tuple[str, ...]) -> dict[str, Any]:
    """Return a function's arguments by name."""
    return {name: case if name == "case" else getattr(case, name) for name in names}


def as_reward(name: str, value: object) -> Reward:
    """Return what a function answered as a Reward.

    It may be a number, true or false, (number, reason), or a Reward; numpy's and torch's scalars are numbers
    and truth values too. Raises RewardFault otherwise.
    """
    if isinstance(value, Reward):
        return checked(value)
    reasons: tuple[str, ...] = ()
    given = value
    if isinstance(value, tuple):
        pair = cast("tuple[object, ...]", value)
        if len(pair) == 2:
            given, reasons = pair[0], (str(pair[1]),)
    given = unboxed(given)
    score = float(given) if isinstance(given, bool) else number(given)
    if score is None:
        rule = f"reward {name} must return a number, (number, reason) or a Reward"
        raise MalformedRewardFault(rule, value=type(given).__name__)
    return checked(Reward(score, reasons))


def prefixed(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics under the name of whom they are of."""
    return {f"{name}_{key}": value for key, value in metrics.items()}
