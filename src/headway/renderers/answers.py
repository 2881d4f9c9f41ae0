"""Takes an answer's text apart: its reasoning, its content, and the calls of tools that it asks for.

A call of a tool is JSON in one of the forms below. All calls of an answer are read, or none is: of an answer
that is understood in part nothing is done, and `malformed` says why, in words that the policy can use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, cast

THINK, THINK_END = "<think>", "</think>"
CALL, CALL_END = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
MARKERS = (THINK, THINK_END, CALL, CALL_END, PYTHON_TAG)
"""What the text must still hold when it is read, whether or not the tokenizer calls it a special token."""

_CALLS = re.compile(f"{re.escape(CALL)}(.*?){re.escape(CALL_END)}", re.DOTALL)
_SEPARATOR = re.compile(r"[\s;]*")
_ARGUMENTS = ("arguments", "parameters")
_MAX_DEPTH = 64  # of arguments; whoever writes them again recurses, perhaps from deeper within a program


class Parsed(NamedTuple):
    """What is in a text that may call tools."""

    content: str  # what is not a call
    calls: tuple[tuple[str, str], ...] = ()  # name and arguments, a JSON object as text
    malformed: str = ""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How the models of a family write calls of tools."""

    name: str
    read: Callable[[str], Parsed]
    write: Callable[[str, str], str]  # name and arguments of a call, as `read` reads it
    between: str  # calls


class _CallError(Exception):
    """Why something is no call."""


def split_reasoning(text: str, *, opened: bool) -> tuple[str, str]:
    """Return reasoning and the rest of an answer.

    Args:
        text: the answer.
        opened: whether the prompt ends in `<think>`, so that the answer begins within it.
    """
    inside = text
    if text.lstrip().startswith(THINK):
        inside = text.lstrip()[len(THINK) :]
    elif not opened:
        return "", text
    reasoning, found, rest = inside.partition(THINK_END)
    return reasoning.strip(), rest.lstrip() if found else ""


def read_tagged(text: str) -> Parsed:
    """Read `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them, anywhere."""
    content = _CALLS.sub("", text)
    if CALL in content or CALL_END in content:
        return Parsed(text, malformed=f"each {CALL} needs its {CALL_END}, and each {CALL_END} its {CALL}")
    bodies = _CALLS.findall(text)
    if not bodies:
        return Parsed(text)
    try:
        calls = tuple(_call(_loaded(body)) for body in bodies)
    except _CallError as error:
        return Parsed(text, malformed=f"what is between {CALL} and {CALL_END} must be a call: {error}")
    return Parsed(content.strip(), calls)


def read_bare(text: str) -> Parsed:
    """Read `{"name": ..., "parameters": {...}}`, the whole answer, after `<|python_tag|>` if that is there.

    Several calls follow one another, or have a semicolon between them. An answer that is other JSON is no
    call, and neither is JSON after words.
    """
    body = text.strip()
    tagged = body.startswith(PYTHON_TAG)
    body = body.removeprefix(PYTHON_TAG).lstrip()
    if not tagged and not body.startswith("{"):
        return Parsed(text)
    looks_so = tagged or (body.find('"name"') >= 0 and any(f'"{key}"' in body for key in _ARGUMENTS))
    calls: list[tuple[str, str]] = []
    at = 0
    try:
        while at < len(body):
            value, at = _decoded(body, at)
            calls.append(_call(value))
            if (space := _SEPARATOR.match(body, at)) is not None:
                at = space.end()
        if not calls:
            raise _CallError("there is none")
    except _CallError as error:
        return Parsed(text, malformed=f"the whole answer must be calls: {error}" if looks_so else "")
    return Parsed("", tuple(calls))


def _write_tagged(name: str, arguments: str) -> str:
    return f'{CALL}\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n{CALL_END}'


def _write_bare(name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "parameters": {arguments}}}'


TAGGED = ToolFormat("tagged", read_tagged, _write_tagged, "\n")
BARE = ToolFormat("bare", read_bare, _write_bare, "; ")
FORMATS = (TAGGED, BARE)


def _call(value: Any) -> tuple[str, str]:
    """Return name and arguments of a call; raise _CallError when it is none."""
    if not isinstance(value, dict):
        raise _CallError(f"it must be a JSON object, not {_shortened(value)}")
    fields = cast("dict[str, Any]", value)
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise _CallError('"name" must be the name of a tool')
    given = next((fields[key] for key in _ARGUMENTS if key in fields), None)
    if isinstance(given, str):  # an object within a string, as the OpenAI API has it
        given = _loaded(given)
    if not isinstance(given, dict):
        raise _CallError(f'"{_ARGUMENTS[0]}" of {name} must be a JSON object, not {_shortened(given)}')
    try:
        arguments = json.dumps(given, ensure_ascii=False, allow_nan=False)
    except ValueError as error:  # 1e999
        raise _CallError(f"a number of {_shortened(name)} is too large") from error
    if arguments.count("[") + arguments.count("{") > _MAX_DEPTH and _too_deep(given):
        raise _CallError(f"the arguments of {_shortened(name)} are more than {_MAX_DEPTH} levels deep")
    try:
        (name + arguments).encode()
    except UnicodeEncodeError as error:
        raise _CallError(f"the call of {_shortened(name)} holds half a character") from error
    return name, arguments


def _too_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            within = cast("dict[str, Any]", one).values() if isinstance(one, dict) else cast("list[Any]", one)
            inner += [each for each in within if isinstance(each, (dict, list))]
        if not inner:
            return False
        level = inner
    return True


def _loaded(text: str) -> Any:
    value, end = _decoded(text := text.strip(), 0)
    if end != len(text):
        raise _CallError(f"after the JSON there is {_shortened(text[end:].strip())}")
    return value


def _decoded(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        where = _shortened(text[error.pos :]) if error.pos < len(text) else "its end"
        raise _CallError(f"it is not valid JSON at {where} ({error.msg})") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # thousands of digits, NaN, brackets without end
        raise _CallError(f"it is not valid JSON ({type(error).__name__}: {error})") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)


def _shortened(value: Any, limit: int = 40) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return repr(text if len(text) <= limit else f"{text[:limit]}...")
