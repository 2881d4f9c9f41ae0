"""Tools that the policy calls: plain functions, and the loop in which it calls them.

A function with annotations and a Google docstring is a tool. What a call returns, or a `ToolRefusal` that it
raises, is told to the policy; so are arguments that do not fit, a time-out and an unknown name. Whatever else
a function raises ends the rollout as a failure, and never as a reward: a ToolError or a SandboxError is the
infrastructure's, anything else the environment's.

`run_tools` waits for the policy, then for the calls of its answer, one after the other; it ends when an
answer calls nothing, is cut off, or has no room to go on, and after `max_turns` answers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

from headway.core.errors import ContextFullError, EnvironmentFault
from headway.core.near import did_you_mean, nearest
from headway.core.off_loop import in_thread
from headway.core.protocols import Reply
from headway.core.records import Message, ToolSpec
from headway.environments.tool_schema import ArgumentError, signature_of

if TYPE_CHECKING:
    from headway.core.protocols import Chat
    from headway.core.records import ToolCall

DEFAULT_TIMEOUT_S = 30.0
DEFAULT_MAX_CHARS = 8_000
_MAX_CALLS = 16  # of one answer


class ToolRefusal(Exception):
    """A tool has no result, for a reason that the policy is told: there is no such file, say."""


@runtime_checkable
class Tool(Protocol):
    """Something that the policy may call."""

    @property
    def spec(self) -> ToolSpec:
        """What the policy is told of it."""
        ...

    async def run(self, arguments: dict[str, Any]) -> str:
        """Return what the policy is told.

        Raises ToolRefusal in words for the policy, ToolError when its infrastructure failed.
        """
        ...


Callables: TypeAlias = Sequence[Tool | Callable[..., Any]]
"""Tools as `run_tools` takes them."""


@runtime_checkable
class TimesCalls(Protocol):
    """A chat that tells how long the calls of tools outside the sandbox take."""

    def calling(self) -> AbstractContextManager[None]:
        """Return what a call happens in."""
        ...


class FunctionTool:
    """A plain or async function as a tool. A plain one runs in a thread of its own.

    Args:
        function: named, its parameters annotated with types that JSON has.
        timeout_s: seconds after which the policy is told that it took too long; the thread of a plain
            function goes on until it returns.
        max_chars: characters of a result, what is longer loses its middle.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_chars: int = DEFAULT_MAX_CHARS,
    ) -> None:
        self._function = function
        self._signature = signature_of(function)
        self._timeout_s = timeout_s
        self._max_chars = max_chars

    @property
    def spec(self) -> ToolSpec:
        """See `Tool`."""
        return self._signature.spec

    async def run(self, arguments: dict[str, Any]) -> str:
        """See `Tool`."""
        try:
            given = self._signature.read(arguments)
        except ArgumentError as error:
            raise ToolRefusal(str(error)) from error
        began = asyncio.timeout(self._timeout_s)
        try:
            async with began:
                if inspect.iscoroutinefunction(inspect.unwrap(self._function)):
                    value = await self._function(**given)
                else:
                    value = await in_thread(
                        f"tool {self.spec.name}", lambda: self._function(**given), raised=EnvironmentFault
                    )
        except TimeoutError as error:
            if not began.expired():
                raise  # the function's own
            raise ToolRefusal(f"{self.spec.name} took longer than {self._timeout_s:g} s") from error
        return shortened(as_text(value), self._max_chars)


def tool_of(function: Callable[..., Any]) -> ToolSpec:
    """Return what the policy is told of a function; see `FunctionTool`."""
    return signature_of(function).spec


def tool(
    *, timeout_s: float = DEFAULT_TIMEOUT_S, max_chars: int = DEFAULT_MAX_CHARS
) -> Callable[[Callable[..., Any]], FunctionTool]:
    """Decorate a function that needs other limits than the defaults."""
    return lambda function: FunctionTool(function, timeout_s=timeout_s, max_chars=max_chars)


@dataclass(frozen=True, slots=True)
class Talk:
    """How a loop of answers and calls ended."""

    reply: Reply  # the last one
    ended: Literal["answer", "turns", "length", "full"]  # it called nothing; max_turns; cut off; context full
    num_turns: int  # answers
    num_calls: int  # that were run
    num_refused: int  # of those, plus calls that could not be read

    @property
    def answer(self) -> str:
        """The content of an answer that called nothing, "" when the loop ended otherwise."""
        return self.reply.message.content if self.ended == "answer" else ""


async def run_tools(
    chat: Chat,
    messages: Sequence[Message],
    tools: Callables,
    *,
    max_turns: int = 8,
    max_tokens: int | None = None,
) -> Talk:
    """Say the messages and run what the policy calls, until it answers without a call.

    Args:
        chat: of the rollout.
        messages: the first ones.
        tools: functions and Tools; the same ones in each loop of a rollout.
        max_turns: answers at most; calls of the last one are not run.
        max_tokens: caps each answer.
    """
    by_name = _by_name(tools)
    specs = tuple(each.spec for each in by_name.values())
    num_turns = num_calls = num_refused = 0
    reply: Reply | None = None
    while True:
        try:
            reply = await chat.say(messages, max_tokens=max_tokens, tools=specs)
        except ContextFullError:
            if reply is None:
                raise  # the task itself does not fit
            return Talk(reply, "full", num_turns, num_calls, num_refused)
        num_turns += 1
        calls = reply.message.tool_calls
        if reply.finish == "length":
            return Talk(reply, "length", num_turns, num_calls, num_refused)
        if not calls and not reply.malformed:
            return Talk(reply, "answer", num_turns, num_calls, num_refused)
        if num_turns >= max_turns:
            return Talk(reply, "turns", num_turns, num_calls, num_refused)
        if reply.malformed:
            messages = [Message("tool", f"Error: {reply.malformed}.")]
            num_refused += 1
            continue
        messages = []
        for at, call in enumerate(calls):
            if at < _MAX_CALLS:
                text, refused = await _called(chat, by_name, call)
                num_calls += 1
            else:
                text, refused = f"Error: only {_MAX_CALLS} calls of an answer are run.", True
            num_refused += refused
            messages.append(Message("tool", text, tool_call_id=call.id, name=call.name))


async def _called(chat: Chat, tools: Mapping[str, Tool], call: ToolCall) -> tuple[str, bool]:
    """Return what the policy is told of a call, and whether it was refused."""
    if call.name not in tools:
        guess = did_you_mean(nearest(call.name, tools)) or f"There are {', '.join(tools)}."
        return f"Error: there is no tool {call.name[:80]}. {guess}", True
    timed = chat.calling() if isinstance(chat, TimesCalls) else nullcontext()
    try:
        with timed:
            return _whole(await tools[call.name].run(json.loads(call.arguments))), False
    except ToolRefusal as refusal:
        return _whole(shortened(f"Error: {refusal}", DEFAULT_MAX_CHARS)), True


def _whole(text: str) -> str:
    """Return a text without halves of characters, which a service's JSON may hold and no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _by_name(tools: Callables) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for each in tools:
        one = each if isinstance(each, Tool) else FunctionTool(each)
        if one.spec.name in found:
            raise EnvironmentFault("tools must have different names", value=one.spec.name)
        found[one.spec.name] = one
    return found


def as_text(value: Any) -> str:
    """Return a result as the policy reads it: text as it is, anything else as JSON.

    Raises EnvironmentFault for what JSON has not.
    """
    if value is None:
        return "Done."
    if isinstance(value, str):
        return _whole(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(cast("Any", value))
    try:
        return _whole(json.dumps(value, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise EnvironmentFault(f"a tool must return text or what JSON has: {error}") from error


def shortened(text: str, max_chars: int) -> str:
    """Return a text without its middle when it is too long, and how much is gone."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[len(text) - half :]}"
