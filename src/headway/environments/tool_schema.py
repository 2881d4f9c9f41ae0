"""What a plain function says of itself: a JSON schema of its arguments, and how given ones are checked.

Types come from the annotations, descriptions from a Google docstring. Nothing is coerced, except that an
integer is a number and a whole number an integer: what a model got wrong is told to it, not guessed.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, cast, get_args, get_origin

from headway.core.errors import EnvironmentFault
from headway.core.near import did_you_mean, nearest
from headway.core.records import ToolSpec

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean"}
_ARTICLES = {"string": "a string", "integer": "an integer", "number": "a number", "boolean": "true or false"}
_SECTION = re.compile(r"^(Args|Arguments|Parameters|Returns|Raises|Yields|Example|Examples|Note|Notes):\s*$")
_ENTRY = re.compile(r"^(\*{0,2}\w+)(?:\s*\(.*?\))?:\s*(.*)$")
_NOT_GIVEN = object()


class ArgumentError(Exception):
    """What a model gave is no argument; the words are for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
    """A function's arguments: a schema to tell, and a check for what is given."""

    spec: ToolSpec
    hints: Mapping[str, Any]
    defaults: Mapping[str, Any]  # of those that may be left out

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments as the function takes them; raise ArgumentError in words for the model."""
        return _fields(arguments, self.hints, set(self.defaults), f"{self.spec.name}")


def signature_of(function: Callable[..., Any]) -> Signature:
    """Return a function's signature as a tool.

    Raises EnvironmentFault when it has parameters without a type that JSON has, or not by name.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if not re.fullmatch(r"[A-Za-z_]\w{0,63}", name):
        raise EnvironmentFault("a tool must be a named function", value=name, remedy="Write it with def")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except TypeError as error:
        raise EnvironmentFault(
            "a tool must be a function or a method", value=name, remedy="Write it with def"
        ) from error
    except (NameError, SyntaxError, AttributeError) as error:
        raise EnvironmentFault(
            f"the annotations of tool {name} must be readable: {error}",
            remedy="Import what they name at the top of the file, not under TYPE_CHECKING or in a function",
        ) from error
    summary, described = _described(inspect.getdoc(function) or "")
    taken: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise EnvironmentFault(
                f"every parameter of tool {name} must have a name to be given by", value=str(parameter)
            )
        if parameter.name not in hints:
            raise EnvironmentFault(
                f"every parameter of tool {name} must have a type", value=parameter.name,
                remedy=f"Annotate it, as in {parameter.name}: str",
            )  # fmt: skip
        hint, words = _without_extras(hints[parameter.name])
        taken[parameter.name] = hint
        schema = _schema(hint, f"parameter {parameter.name} of tool {name}")
        if words := words or described.get(parameter.name, ""):
            schema = {**schema, "description": words}
        if parameter.default is not parameter.empty:
            defaults[parameter.name] = parameter.default
            if isinstance(parameter.default, (str, int, float, bool)):
                schema = {**schema, "default": parameter.default}
        properties[parameter.name] = schema
    return Signature(ToolSpec(name, summary, _object(properties, set(defaults))), taken, defaults)


def _object(properties: dict[str, Any], optional: set[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required := [name for name in properties if name not in optional]:
        schema["required"] = required
    return schema


def _without_extras(hint: Any) -> tuple[Any, str]:
    """Return a hint without Annotated, and the string that it carries."""
    if get_origin(hint) is typing.Annotated:
        inner, *extras = get_args(hint)
        return inner, next((extra for extra in extras if isinstance(extra, str)), "")
    return hint, ""


def _schema(hint: Any, what: str, within: tuple[Any, ...] = ()) -> dict[str, Any]:
    hint, words = _without_extras(hint)
    if words:
        return {**_schema(hint, what, within), "description": words}
    origin, args = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if hint is Any:
        return {}
    if origin is Literal:
        kinds = {_SCALARS.get(cast("type[Any]", type(choice)), "") for choice in args}
        kind = {"type": kinds.pop()} if len(kinds) == 1 and "" not in kinds else {}
        return {**kind, "enum": list(args)}
    if origin in (Union, types.UnionType):
        given = [_schema(arg, what, within) for arg in args if arg is not type(None)]
        given += [{"type": "null"}] * (type(None) in args)
        return {"anyOf": given}
    if hint in (list, dict) or (origin in (list, dict, Sequence, Mapping) and not args):
        return {"type": "array" if (origin or hint) in (list, Sequence) else "object"}
    if origin in (list, Sequence):
        return {"type": "array", "items": _schema(args[0], what, within)}
    if origin in (dict, Mapping) and args[0] is str:
        return {"type": "object", "additionalProperties": _schema(args[1], what, within)}
    if dataclasses.is_dataclass(hint) and hint not in within:  # one within itself has no end
        hints, optional = _of_dataclass(cast("type[Any]", hint))
        within = (*within, hint)
        return _object({name: _schema(kind, what, within) for name, kind in hints.items()}, optional)
    raise EnvironmentFault(
        f"{what} must have a type that JSON has",
        value=str(hint),
        remedy="Use str, int, float, bool, list, dict with str keys, Literal, Optional or a dataclass",
    )


def _of_dataclass(cls: type[Any]) -> tuple[dict[str, Any], set[str]]:
    hints = typing.get_type_hints(cls, include_extras=True)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    missing = dataclasses.MISSING
    optional = {f.name for f in fields if f.default is not missing or f.default_factory is not missing}
    return {field.name: hints[field.name] for field in fields}, optional


def _fields(
    given: Mapping[str, Any], hints: Mapping[str, Any], optional: set[str], what: str
) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for name, value in given.items():
        if name not in hints:
            guess = did_you_mean(nearest(name, hints)) or f"It takes {', '.join(hints) or 'nothing'}."
            raise ArgumentError(f"{what} has no {name!r}. {guess}")
        read[name] = _read(value, hints[name], f"{name} of {what}")
    if missing := [name for name in hints if name not in given and name not in optional]:
        raise ArgumentError(f"{what} needs {', '.join(missing)}")
    return read


def _read(value: Any, hint: Any, what: str) -> Any:
    hint, _ = _without_extras(hint)
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if hint in _SCALARS:
        return _scalar(value, hint, what)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in args):
            return value
        raise ArgumentError(f"{what} must be one of {', '.join(map(repr, args))}, not {_short(value)}")
    if origin in (Union, types.UnionType):
        return _one_of(value, args, what)
    if hint is list or origin in (list, Sequence):
        if not isinstance(value, list):
            raise ArgumentError(f"{what} must be a list, not {_short(value)}")
        entries = cast("list[Any]", value)
        return (
            [_read(entry, args[0], f"entry {at} of {what}") for at, entry in enumerate(entries)]
            if args
            else entries
        )
    if not isinstance(value, dict):
        raise ArgumentError(f"{what} must be an object, not {_short(value)}")
    table = cast("dict[str, Any]", value)
    if dataclasses.is_dataclass(hint):
        hints, optional = _of_dataclass(cast("type[Any]", hint))
        try:
            return cast("type[Any]", hint)(**_fields(table, hints, optional, what))
        except (ValueError, TypeError) as error:  # its __post_init__ refuses it
            raise ArgumentError(f"{what}: {error}") from error
    return {key: _read(entry, args[1], f"{key} of {what}") for key, entry in table.items()} if args else table


def _one_of(value: Any, choices: Sequence[Any], what: str) -> Any:
    if value is None and type(None) in choices:
        return None
    words: list[str] = []
    for choice in choices:
        if choice is not type(None):
            try:
                return _read(value, choice, what)
            except ArgumentError as error:
                words.append(str(error))
    raise ArgumentError("; or ".join(words))


def _scalar(value: Any, hint: type, what: str) -> Any:
    is_number = type(value) is int or (isinstance(value, float) and math.isfinite(value))
    if hint is float and type(value) is int and abs(value) > sys.float_info.max:
        raise ArgumentError(f"{what} must be a number below 1e308")
    if hint is float and is_number:
        return float(value)
    if hint is int and is_number and value == int(value):
        return int(value)
    if hint in (str, bool) and type(value) is hint:
        return value
    raise ArgumentError(f"{what} must be {_ARTICLES[_SCALARS[hint]]}, not {_short(value)}")


def _short(value: Any, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _described(docstring: str) -> tuple[str, dict[str, str]]:
    """Return what stands above the sections of a docstring, and the descriptions of its arguments."""
    above: list[str] = []
    described: dict[str, str] = {}
    section, last = "", ""
    for line in docstring.splitlines():
        if found := _SECTION.match(line):
            section, last = found[1], ""
        elif not section:
            above.append(line)
        elif section in ("Args", "Arguments", "Parameters") and line.strip():
            indent = len(line) - len(line.lstrip())
            entry = _ENTRY.match(line.strip()) if indent <= 4 else None
            if entry:
                last = entry[1].lstrip("*")
                described[last] = entry[2]
            elif last:
                described[last] = f"{described[last]} {line.strip()}"
    return " ".join(" ".join(above).split()), described
