"""Compiles a checkpoint's chat template as transformers does, without importing it.

The template is code from the checkpoint: it runs in jinja2's immutable sandbox and sees the messages, the
special tokens and four helpers (`raise_exception`, `strftime_now`, the `tojson` filter, the `generation`
block, which only marks the assistant's text and renders as its body).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headway.core.clock import wall_time
from headway.core.errors import ModelError

if TYPE_CHECKING:
    from jinja2.parser import Parser

    from headway.core.records import Message, ToolSpec


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` renders as its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own convention

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return time.strftime(form, time.localtime(wall_time()))


def _tojson(value: Any, indent: int | None = None, **kwargs: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **kwargs)


class ChatTemplate:
    """Messages to text."""

    def __init__(self, source: str, special_tokens: dict[str, str], where: Path) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
        )
        filters = cast("dict[str, Any]", environment.filters)  # pyright: ignore[reportUnknownMemberType]
        filters["tojson"] = _tojson
        helpers = cast("dict[str, Any]", environment.globals)  # pyright: ignore[reportUnknownMemberType]
        helpers |= {"raise_exception": _raise, "strftime_now": _strftime_now}
        self._special_tokens = special_tokens
        self._where = where
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ModelError(
                f"the chat template of {where} does not compile: {error}",
                remedy="Mend it in the model's directory, or fetch the model again",
            ) from error

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, tools: Sequence[ToolSpec] = ()
    ) -> str:
        """Return the text of a conversation, of tools that the policy may call too.

        Raises ModelError when the template refuses the messages.
        """
        try:
            return self._template.render(
                messages=[_plain(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=[plain_tool(tool) for tool in tools] or None,
                documents=None,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError) as error:
            roles = ", ".join(message.role for message in messages)
            raise ModelError(
                f"the chat template of {self._where} refuses a conversation of roles {roles}: {error}",
                remedy="Use the roles that it knows in the environment's messages, or mend the template",
            ) from error


def _plain(message: Message) -> dict[str, Any]:
    """Return a message as templates know it: the names of the OpenAI API, arguments as an object."""
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        plain["reasoning_content"] = message.reasoning
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        plain["tool_call_id"] = message.tool_call_id
    if message.name:
        plain["name"] = message.name
    return plain


def plain_tool(tool: ToolSpec) -> dict[str, Any]:
    """Return a tool as templates know it: the names of the OpenAI API."""
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def find_template(folder: Path, tokenizer_config: dict[str, Any]) -> str:
    """Return the template's source: `chat_template.jinja`, else the entry in tokenizer_config.json.

    Raises ModelError when the checkpoint has none.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    entry = tokenizer_config.get("chat_template")
    if isinstance(entry, list):  # several templates by name
        named = {item["name"]: item["template"] for item in cast("list[dict[str, str]]", entry)}
        entry = named.get("default")
    if not isinstance(entry, str):
        raise ModelError(
            f"the model in {folder} has no chat template",
            remedy="Use an instruction-tuned checkpoint, or put a chat_template.jinja into its folder",
        )
    return entry
