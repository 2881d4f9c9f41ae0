"""An answer that is asked of a simulated engine, and what an engine needs of the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.core.records import VersionSpan

Place = Literal["out", "line", "prefill", "decode"]


class Timer(Protocol):
    """What a replica needs of the simulation."""

    now_s: float

    def at(self, delay_s: float, action: Callable[..., None], argument: Any = None) -> None:
        """Do something later."""
        ...


class Request:
    """An answer that is asked for; the same object serves all answers of a rollout, one after another.

    Attributes:
        rollout: its id, the key of its conversation in the prefix cache.
        group: whose prompt it shares.
        priority: lower ones leave the line first.
        prompt_tokens: of the conversation, that the group shares.
        context_tokens: before the answer.
        recomputed_tokens: of these, that the prefix cache does not hold whatever happens.
        num_left: tokens that the answer still lacks.
        answer: versions of the tokens that it has.
        place: where it is.
        waited_s, prefill_s, decode_s: of this answer so far.
    """

    __slots__ = (
        "answer", "begun_v", "context_tokens", "decode_s", "end_v", "group", "num_left", "part", "place",
        "prefill_s", "priority", "prompt_tokens", "recomputed_tokens", "resident", "rollout", "since_s",
        "waited_s",
    )  # fmt: skip

    def __init__(self, rollout: str, group: str, priority: int = 0) -> None:
        self.rollout, self.group, self.priority = rollout, group, priority
        self.prompt_tokens = self.context_tokens = self.recomputed_tokens = self.num_left = 0
        self.answer: list[VersionSpan] = []
        self.place: Place = "out"
        self.part = 0  # one more each time that it moves: what was planned for it before is void
        self.waited_s = self.prefill_s = self.decode_s = self.since_s = 0.0
        self.begun_v = self.end_v = 0.0  # virtual times of decoding
        self.resident = 0  # tokens that it held when it began to decode

    def ask(self, num_tokens: int) -> None:
        """Want an answer of so many tokens."""
        self.num_left, self.answer = num_tokens, []
        self.waited_s = self.prefill_s = self.decode_s = 0.0

    @property
    def num_answered(self) -> int:
        """Tokens of the answer that are there."""
        return sum(span.num_tokens for span in self.answer)
