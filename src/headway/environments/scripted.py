"""A policy without a model, for contract tests: it calls the tools it is told of, then says what it is told.

It is deterministic, so an environment that is a function of its answers asks it the same things each time.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import EnvironmentFault
from headway.core.protocols import Reply
from headway.core.records import Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from headway.core.protocols import Endpoint

MAX_SAYS = 200  # after which an environment is taken for one that never ends


class NotScriptedError(Exception):
    """The environment asks for what only a model and a run have."""


class ScriptedChat:
    """The `Chat` of a rollout that is only tried. `said` is the messages of each say."""

    answering_s = 0.0
    max_context_tokens = 1 << 20
    sampled: Sequence[array[int]] = ()

    def __init__(self, answer: str, *, calls_tools: bool) -> None:
        self._answer = answer
        self._calls_tools = calls_tools
        self.tools: tuple[ToolSpec, ...] = ()
        self.said: list[list[Message]] = []

    @property
    def shown(self) -> str:
        """All that the policy was shown before its first answer."""
        messages = "\n".join(message.content for message in self.said[0]) if self.said else ""
        tools = "\n".join(json.dumps([tool.description, tool.parameters]) for tool in self.tools)
        return f"{messages}\n{tools}"

    async def say(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, tools: Sequence[ToolSpec] = ()
    ) -> Reply:
        """Answer; see `Chat`."""
        if not messages or any(message.role == "assistant" for message in messages):
            raise EnvironmentFault("say takes at least one message, and none of the assistant's")
        if self.said and tuple(tools) != self.tools:
            raise EnvironmentFault("each say of a rollout names the tools that its first one named")
        self.tools = tuple(tools)
        turn = len(self.said)
        self.said.append(list(messages))
        if turn >= MAX_SAYS:
            raise EnvironmentFault(f"a rollout must end: it asked the policy {MAX_SAYS} times")
        message = Message("assistant", self._answer)
        if self._calls_tools and turn < len(tools):
            arguments = json.dumps(example_of(tools[turn].parameters))
            call = ToolCall(f"call_{turn}_0", tools[turn].name, arguments)
            message = Message("assistant", "", tool_calls=(call,))
        return Reply(message.content, "stop", 1 + len(self._answer), 1 << 20, message)

    def report(self, value: float, reason: str = "") -> None:
        """Take note of nothing; see `Chat`."""

    def endpoint(self) -> AbstractAsyncContextManager[Endpoint]:
        """There is none; see `Chat`."""
        raise NotScriptedError("it serves its rollout to a program")

    async def complete(self, *_: Any, **__: Any) -> Any:
        """There is none; see `Chat`."""
        raise NotScriptedError("it completes histories of its own")

    complete_ids = complete

    def encode(self, text: str) -> Any:
        """There is no tokenizer; see `Chat`."""
        raise NotScriptedError("it asks for token ids")

    def decode(self, ids: Any) -> str:
        """There is no tokenizer; see `Chat`."""
        raise NotScriptedError("it asks for token ids")


def example_of(schema: dict[str, Any]) -> Any:
    """Return a value that fits a JSON schema, the same one each time."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0])
    match schema.get("type"):
        case "object":
            properties = cast("dict[str, dict[str, Any]]", schema.get("properties", {}))
            needed = cast("list[str]", schema.get("required", []))
            return {name: example_of(properties.get(name, {})) for name in needed}
        case "array":
            return [example_of(schema.get("items", {}))]
        case "integer" | "number":
            return 1
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "1"
