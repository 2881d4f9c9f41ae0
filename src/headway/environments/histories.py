"""Answers to whole histories, as programs ask for them.

Any number may be awaited at a time, each on the branch that its history goes on from. An answer that is not
awaited to its end leaves nothing in the record.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headway.core.errors import EnvironmentFault
from headway.core.protocols import Completion
from headway.core.records import Message

if TYPE_CHECKING:
    from array import array
    from collections.abc import Awaitable, Callable, Sequence

    from headway.core.records import ToolSpec, Turn
    from headway.environments.answer import Answer
    from headway.environments.turns import Turns
    from headway.renderers.chat import Renderer


class Histories:
    """The part of a conversation that answers `Completions`."""

    def __init__(
        self,
        turns: Turns,
        renderer: Renderer,
        parked: Callable[[], Awaitable[None]],
        must_be_open: Callable[[], None],
    ) -> None:
        self._turns = turns
        self._renderer = renderer
        self._parked = parked
        self._must_be_open = must_be_open
        self._num_asked = 0

    async def complete(
        self,
        messages: Sequence[Message],
        tools: tuple[ToolSpec, ...],
        max_tokens: int | None,
        stop: tuple[str, ...],
    ) -> Completion:
        """Let the policy answer a whole history."""
        if not messages or messages[-1].role == "assistant":
            raise EnvironmentFault(
                "a history must end with a message that is not the assistant's",
                remedy="Leave the last message out, or put a user's or a tool's message behind it",
            )
        turns = self._turns
        parent, covered = turns.branches.find(messages, tools)
        new = messages[covered:]
        answer = turns.begin(new, max_tokens, turns.prompt(parent, new, tools), parent, stop)
        turn = await self._answered(answer)
        told = self._told(turn, stop, tools)
        return self._completion(turns.record(turn, new, told[0], tools), *told)

    async def complete_ids(
        self, prompt_ids: array[int], max_tokens: int | None, stop: tuple[str, ...]
    ) -> Completion:
        """Let the policy go on from token ids."""
        if not prompt_ids:
            raise EnvironmentFault("a prompt must have at least one token")
        turns = self._turns
        parent, covered = turns.branches.find_ids(prompt_ids, turns.recorder.turns)
        new = prompt_ids[covered:]
        turn = await self._answered(turns.begin([], max_tokens, new, parent, stop))
        told = self._told(turn, stop, ())
        said = [Message("user", self._renderer.decode(new, skip_special=False))]
        return self._completion(turns.record(turn, said, told[0], as_ids=True), *told)

    async def _answered(self, answer: Answer) -> Turn:
        """Grow an answer; return the turn, which is not recorded yet."""
        number, self._num_asked = self._num_asked, self._num_asked + 1
        try:
            finish = await self._turns.grow(answer, f"c{number}", number)
        finally:
            await self._parked()
        self._must_be_open()
        return self._turns.ended(answer, finish)

    def _told(self, turn: Turn, stop: Sequence[str], tools: tuple[ToolSpec, ...]) -> tuple[Message, str]:
        """Return an answer as clients are told it, and why what looks like a call of a tool is none."""
        number = len(self._turns.recorder.turns)
        message, malformed = self._renderer.message(turn.token_ids, tools, turn=number)
        ends = [at for each in stop if (at := message.content.find(each)) >= 0]
        return (replace(message, content=message.content[: min(ends)]) if ends else message), malformed

    def _completion(self, index: int, message: Message, malformed: str) -> Completion:
        turns = self._turns
        turns.judge(index)
        turn = turns.recorder.turns[index]
        context = turns.recorder.context(turn.parent) + turn.prompt_ids
        sampled = turn.token_ids, turn.logprobs
        return Completion(context, *sampled, message, turn.finish, malformed, index, turn.parent)
