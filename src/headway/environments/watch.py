"""Watches a rollout while it grows and says what the pruning rule may act on (VerdictGiven).

length: tokens sampled by the whole rollout, told once when they reach `tokens`. repetition: the share of
4-grams within the newest `window` tokens of an answer that occurred there before, told once when it reaches
`repetition`; 0 for text that never repeats, near 1 for a loop. value: what a user's function predicts, told
at each turn's end. The environment's own report is told each time. Nothing here ends a rollout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headway.core.commands import StartRollout
from headway.core.errors import EnvironmentFault
from headway.core.events import VerdictGiven
from headway.core.records import Message, Task

if TYPE_CHECKING:
    from array import array

_GRAM = 4

Source = Literal["environment", "value", "repetition", "length"]


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """What a value hook sees of a rollout."""

    task: Task
    messages: tuple[Message, ...]  # so far, the policy's answers included
    num_tokens: int  # sampled so far


ValueHook = Callable[[ValueRecord], float]


@dataclass(slots=True)
class Watch:
    """One attempt's watch; 0 and None switch a part off."""

    command: StartRollout
    task: Task
    tokens: int = 0
    repetition: float = 0.0
    window: int = 0
    value_hook: ValueHook | None = None
    _told: set[Source] = field(default_factory=set[Source])

    def tokens_changed(self, tokens: int) -> None:
        """Tell of so many tokens from now on, though fewer were told of before; of a train rollout only."""
        if self.command.purpose == "train" and tokens != self.tokens:
            self.tokens = tokens
            self._told.discard("length")

    def grew(self, ids: array[int], num_tokens: int) -> list[VerdictGiven]:
        """Look at an answer that got more tokens; `num_tokens` is the whole rollout's."""
        verdicts: list[VerdictGiven] = []
        if self.tokens and num_tokens >= self.tokens and "length" not in self._told:
            reason = f"{num_tokens} tokens were sampled, {self.tokens} are watched for"
            verdicts.append(self._once("length", float(num_tokens), reason))
        if self.repetition and len(ids) >= self.window and "repetition" not in self._told:
            share = repeated_share(ids[-self.window :])
            if share >= self.repetition:
                reason = f"{share:.0%} of the last {self.window} tokens repeat what was said within them"
                verdicts.append(self._once("repetition", share, reason))
        return verdicts

    def turn_ended(self, messages: Sequence[Message], num_tokens: int) -> list[VerdictGiven]:
        """Ask the value hook, if there is one.

        Raises EnvironmentFault when it returns no finite number, and whatever it raises.
        """
        if self.value_hook is None:
            return []
        value = _finite("a value hook", self.value_hook(ValueRecord(self.task, tuple(messages), num_tokens)))
        return [self._verdict("value", value, "")]

    def reported(self, value: float, reason: str) -> VerdictGiven:
        """Return the environment's own verdict.

        Raises EnvironmentFault when it is no finite number.
        """
        return self._verdict("environment", _finite("Chat.report", value), reason)

    def _once(self, source: Source, value: float, reason: str) -> VerdictGiven:
        self._told.add(source)
        return self._verdict(source, value, reason)

    def _verdict(self, source: Source, value: float, reason: str) -> VerdictGiven:
        command = self.command
        return VerdictGiven(command.rollout, command.attempt, source, value, reason.partition("\n")[0])


def repeated_share(ids: Sequence[int]) -> float:
    """Return the share of 4-grams that are a repetition of one before them, in [0, 1)."""
    num_grams = len(ids) - _GRAM + 1
    if num_grams < 1:
        return 0.0
    distinct = {tuple(ids[at : at + _GRAM]) for at in range(num_grams)}
    return 1.0 - len(distinct) / num_grams


def _finite(who: str, value: object) -> float:
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    raise EnvironmentFault(f"{who} must give a finite number", value=value)
