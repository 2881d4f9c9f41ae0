"""Which answer of a rollout a history goes on from.

A history continues an answer when it repeats everything that was said up to it: the messages before it as
they came, the answer as clients were told it. Surrounding white space of an answer, and the way in which the
arguments of its calls are written, are no difference; nor is reasoning that a client left out, unless
`strict`, for most clients do not know that field. Invariant: what continues an answer is put behind the ids
that were sampled, whatever the client sent in their place.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.core.records import Message, ToolSpec

if TYPE_CHECKING:
    from array import array

    from headway.core.records import ToolCall, Turn


@dataclass(slots=True)
class _Node:
    """One answer in the tree."""

    parent: int
    added: tuple[Message, ...] | None  # since the parent's answer; None where only ids are known
    answer: Message
    tools: tuple[ToolSpec, ...]
    num_messages: int  # from the root, the answer included


class Branches:
    """The answers of one rollout as messages."""

    def __init__(self, *, strict: bool = False) -> None:
        self._strict = strict
        self._nodes: dict[int, _Node] = {}
        self._children: dict[int, list[int]] = {}

    def add(
        self,
        turn: int,
        parent: int,
        added: Sequence[Message] | None,
        answer: Message,
        tools: tuple[ToolSpec, ...] = (),
    ) -> None:
        """Note an answer; `parent` is -1 for a root."""
        before = self._nodes[parent].num_messages if parent >= 0 else 0
        num_messages = before + len(added or ()) + 1
        kept = None if added is None else tuple(added)
        self._nodes[turn] = _Node(parent, kept, answer, tools, num_messages)
        self._children.setdefault(parent, []).append(turn)

    def history(self, turn: int) -> list[Message]:
        """Return the messages up to and including an answer; those that came as ids are left out."""
        parts: list[tuple[Message, ...]] = []
        while turn >= 0:
            node = self._nodes[turn]
            parts.append((*(node.added or ()), node.answer))
            turn = node.parent
        return [message for part in reversed(parts) for message in part]

    def find(self, messages: Sequence[Message], tools: tuple[ToolSpec, ...]) -> tuple[int, int]:
        """Return the deepest answer that a history repeats, -1 for none, and how many messages lead to it."""
        best, covered = -1, 0
        open_turns = list(self._children.get(-1, ()))
        while open_turns:
            turn = open_turns.pop()
            node = self._nodes[turn]
            if node.parent < 0 and node.tools != tools:
                continue
            end = node.num_messages
            begin = end - 1 - len(node.added or ())
            if node.added is None or end > len(messages) or not self._repeats(node, messages[begin:end]):
                continue
            if end > covered or (end == covered and turn > best):
                best, covered = turn, end
            open_turns += self._children.get(turn, ())
        return best, covered

    def find_ids(self, prompt_ids: array[int], turns: Sequence[Turn]) -> tuple[int, int]:
        """Return the deepest answer whose whole context these ids begin with, and that context's length."""
        best, covered = -1, 0
        open_turns = [(turn, 0) for turn in self._children.get(-1, ())]
        while open_turns:
            turn, begin = open_turns.pop()
            ids = turns[turn].prompt_ids + turns[turn].token_ids
            end = begin + len(ids)
            if end >= len(prompt_ids) or prompt_ids[begin:end] != ids:
                continue
            if end > covered or (end == covered and turn > best):
                best, covered = turn, end
            open_turns += [(child, end) for child in self._children.get(turn, ())]
        return best, covered

    def _repeats(self, node: _Node, messages: Sequence[Message]) -> bool:
        assert node.added is not None
        *before, last = messages
        return tuple(before) == node.added and same_answer(last, node.answer, strict=self._strict)


def same_answer(sent: Message, said: Message, *, strict: bool = False) -> bool:
    """Say whether a message that a client sends is the answer that it was told."""
    if sent.role != "assistant" or sent.content.strip() != said.content.strip():
        return False
    if sent.reasoning.strip() != said.reasoning.strip() and (strict or sent.reasoning):
        return False
    calls = zip(sent.tool_calls, said.tool_calls, strict=False)
    return len(sent.tool_calls) == len(said.tool_calls) and all(_same_call(*pair) for pair in calls)


def _same_call(sent: ToolCall, said: ToolCall) -> bool:
    if (sent.id, sent.name) != (said.id, said.name):
        return False
    return sent.arguments == said.arguments or _parsed(sent.arguments) == _parsed(said.arguments)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
