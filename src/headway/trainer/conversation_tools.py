"""Tools in a line of conversations, in the form of the OpenAI API: which there are, and calls. No torch."""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

from headway.core.errors import UserError
from headway.core.records import ToolCall, ToolSpec

_CALL = '{"type": "function", "function": {"name": "...", "arguments": {}}}'
_TOOL = '{"type": "function", "function": {"name": "...", "description": "...", "parameters": {...}}}'


def tools_of(row: dict[str, Any]) -> tuple[ToolSpec, ...]:
    """Return the tools that a line names. Raises UserError without a place."""
    given = row.get("tools") or []
    if not isinstance(given, list):
        _no_tool(given)
    return tuple(map(_tool, cast("list[Any]", given)))


def calls_of(message: dict[str, Any], index: int) -> tuple[ToolCall, ...]:
    """Return the calls of a message. Raises UserError without a place."""
    given = message.get("tool_calls") or []
    if given and message["role"] != "assistant":
        rule = f"message {index} has tool_calls, which only an assistant's message may have"
        raise UserError(rule, value=message["role"], remedy="Move them to the answer that makes them")
    if not isinstance(given, list):
        _no_call(given, index)
    return tuple(_call(one, index, at) for at, one in enumerate(cast("list[Any]", given)))


def _tool(given: Any) -> ToolSpec:
    function = _function(given)
    name, parameters = (
        function.get("name"),
        function.get("parameters") or {"type": "object", "properties": {}},
    )
    if not isinstance(name, str) or not name or not isinstance(parameters, dict):
        _no_tool(given)
    return ToolSpec(name, str(function.get("description") or ""), cast("dict[str, Any]", parameters))


def _call(given: Any, index: int, at: int) -> ToolCall:
    function = _function(given)
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            _no_call(given, index)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        _no_call(given, index)
    known = cast("dict[str, Any]", given).get("id")
    written = json.dumps(arguments, ensure_ascii=False)
    try:
        written.encode()
    except UnicodeEncodeError:  # half of a character
        _no_call(given, index)
    return ToolCall(known if isinstance(known, str) else f"call_{index}_{at}", name, written)


def _function(given: Any) -> dict[str, Any]:
    """Return what describes a function, itself or below its name in the API."""
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    inner = fields.get("function", fields)
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}


def _no_tool(given: Any) -> NoReturn:
    raise UserError("tools must be a list of functions", value=_short(given), remedy=f"Write {_TOOL}")


def _no_call(given: Any, index: int) -> NoReturn:
    rule = f"tool_calls of message {index} must be a list of calls with a name and an object of arguments"
    raise UserError(rule, value=_short(given), remedy=f"Write {_CALL}")


def _short(given: Any) -> str:
    return repr(given)[:80]
