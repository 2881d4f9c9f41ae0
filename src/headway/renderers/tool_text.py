"""Tools in a chat template: which form it writes calls in, and what stands in where it knows no tools.

The template itself is asked: it renders one tool and one call, and what reads that call back is its form. One
that leaves the tool out, or writes calls in a form that nothing here reads, gets the tools in the system
prompt instead, calls in `<tool_call>` and results in `<tool_response>` tags.
"""

from __future__ import annotations

import json
from dataclasses import replace
from os.path import commonprefix
from typing import TYPE_CHECKING

from headway.core.errors import ModelError
from headway.core.records import Message, ToolCall, ToolSpec
from headway.renderers.answers import CALL, CALL_END, FORMATS, TAGGED, ToolFormat
from headway.renderers.template import plain_tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.renderers.template import ChatTemplate

_PROBE = ToolSpec(
    "headway_probe",
    "Nothing.",
    {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
)
_ARGUMENTS = '{"key": "value"}'
_ASK = Message("user", ".")
_SENTINEL = "\u2060HEADWAY-CALL\u2060"
_INTRODUCTION = f"""# Tools

Functions that you may call, with JSON schemas of their arguments:
<tools>
{{tools}}
</tools>
A call is JSON between tags, and its result comes in <tool_response> tags:
{CALL}
{{{{"name": "a function", "arguments": {{{{"a parameter": "its value"}}}}}}}}
{CALL_END}"""


def format_of(template: ChatTemplate) -> ToolFormat | None:
    """Return the form in which a template writes calls of tools; None when tools must be put into words."""
    call = ToolCall("headway00", _PROBE.name, _ARGUMENTS)
    said = Message("assistant", _SENTINEL)
    asked = Message("assistant", "", tool_calls=(call,))
    try:
        if _PROBE.name not in template.render([_ASK], add_generation_prompt=True, tools=[_PROBE]):
            return None
        around = template.render([_ASK, said], add_generation_prompt=False, tools=[_PROBE])
        text = template.render([_ASK, asked], add_generation_prompt=False, tools=[_PROBE])
    except ModelError:
        return None
    end = len(text) - len(around.rpartition(_SENTINEL)[2])
    written = text[len(commonprefix([around, text])) : end]  # noqa: RUF071 - of characters
    for form in FORMATS:
        parsed = form.read(written)
        if parsed.calls == ((_PROBE.name, _ARGUMENTS),) and not parsed.content:
            return form
    return None


def in_words(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """Return a conversation with the tools in its system prompt, calls and results in its messages."""
    written = [_result_in_words(message) for message in calls_in_content(messages, TAGGED)]
    if not tools:
        return written
    listed = "\n".join(json.dumps(plain_tool(tool), ensure_ascii=False) for tool in tools)
    told = _INTRODUCTION.format(tools=listed)
    head, *rest = written
    if head.role == "system":
        return [replace(head, content=f"{head.content}\n\n{told}"), *rest]
    return [Message("system", told), *written]


def calls_in_content(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """Return a conversation whose calls are written into the content, as the policy writes them."""
    return [_with_calls_in_content(message, form) for message in messages]


def in_first_question(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """Return the same for a template that refuses system prompts: what they say begins the first question."""
    system, *rest = in_words(messages, tools)
    if not rest:
        return [replace(system, role="user")]
    return [replace(rest[0], content=f"{system.content}\n\n{rest[0].content}"), *rest[1:]]


def _result_in_words(message: Message) -> Message:
    if message.role != "tool":
        return message
    return Message("user", f"<tool_response>\n{message.content}\n</tool_response>")


def _with_calls_in_content(message: Message, form: ToolFormat) -> Message:
    if not message.tool_calls:
        return message
    calls = form.between.join(form.write(call.name, call.arguments) for call in message.tool_calls)
    content = f"{message.content}\n{calls}" if message.content else calls
    return replace(message, content=content, tool_calls=())
