"""Checks one TOML value against a setting's type and bounds.

Strict: nothing is coerced, except that an integer is a number too.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from headway.core.near import did_you_mean, nearest

if typing.TYPE_CHECKING:
    from headway.core.settings import Rule


class Mismatch(Exception):
    """A value that its setting refuses; `rule` begins with "must"."""

    def __init__(self, rule: str, remedy: str = "") -> None:
        super().__init__(rule)
        self.rule = rule
        self.remedy = remedy


def convert(value: Any, hint: Any, rule: Rule) -> Any:
    """Return `value` as the type `hint`, or raise Mismatch.

    Bounds of a list setting apply to its entries.
    """
    origin = get_origin(hint)
    if hint in (Any, object):
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, [arg for arg in get_args(hint) if arg is not type(None)], rule)
    if origin is Literal:
        return _convert_choice(value, get_args(hint))
    if origin in (list, tuple):
        return _convert_list(value, hint, rule)
    if origin in (dict, Mapping):
        return _convert_table(value, hint, rule)
    converter = _SCALARS.get(hint)
    if converter is None:
        raise TypeError(f"no setting can have the type {hint!r}")
    converted = converter(value)
    _check_bounds(converted, rule)
    return converted


def describe_type(hint: Any) -> str:
    """Return the type as a reader of TOML knows it, such as `integer` or `"a" or "b"`."""
    origin = get_origin(hint)
    if hint in (Any, object):
        return "any value"
    if origin in (Union, types.UnionType):
        return _join([describe_type(arg) for arg in get_args(hint) if arg is not type(None)])
    if origin is Literal:
        return _join([_quoted(choice) for choice in get_args(hint)])
    if origin is tuple and Ellipsis not in get_args(hint):
        return "list of " + ", ".join(describe_type(arg) for arg in get_args(hint))
    if origin in (list, tuple):
        return f"list of {describe_type(get_args(hint)[0])}"
    if origin in (dict, Mapping):
        return "table"
    return {bool: "true or false", int: "integer", float: "number", str: "string"}[hint]


def describe_bounds(rule: Rule) -> str:
    """Return the bounds as words, such as `at least 1 and below 2`; empty when there are none."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    limits = [(word, getattr(rule, name)) for name, word in words.items()]
    parts = [f"{word} {_number(limit)}" for word, limit in limits if limit is not None]
    if rule.pattern is not None:
        parts.append(rule.form or f"of the form {rule.pattern}")
    return " and ".join(parts)


def _number(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _check_bounds(value: Any, rule: Rule) -> None:
    fits = True
    if isinstance(value, (int, float)):
        fits = (
            (rule.ge is None or value >= rule.ge)
            and (rule.gt is None or value > rule.gt)
            and (rule.le is None or value <= rule.le)
            and (rule.lt is None or value < rule.lt)
        )
    elif isinstance(value, str) and rule.pattern is not None:
        fits = re.fullmatch(rule.pattern, value) is not None
    if not fits:
        raise Mismatch(f"must be {describe_bounds(rule)}")


def _convert_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Mismatch("must be true or false", "Write it in lower case and without quotes")
    return value


def _convert_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        remedy = _unquote(value)
        if isinstance(value, float) and value.is_integer():
            remedy = f"Write {int(value)}"
        raise Mismatch("must be an integer", remedy)
    return value


def _convert_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Mismatch("must be a number", _unquote(value))
    if not math.isfinite(value):
        raise Mismatch("must be a finite number")
    return float(value)


def _convert_str(value: Any) -> str:
    if not isinstance(value, str):
        raise Mismatch("must be a string", "Write it in quotes")
    return value


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    bool: _convert_bool,
    int: _convert_int,
    float: _convert_float,
    str: _convert_str,
}


def _convert_choice(value: Any, choices: tuple[Any, ...]) -> Any:
    if any(value == choice and type(value) is type(choice) for choice in choices):
        return value
    guess = nearest(value, [str(choice) for choice in choices]) if isinstance(value, str) else None
    raise Mismatch(
        f"must be {_join([_quoted(choice) for choice in choices])}",
        did_you_mean(None if guess is None else f'"{guess}"'),
    )


def _convert_union(value: Any, members: list[Any], rule: Rule) -> Any:
    for member in members[:-1]:
        try:
            return convert(value, member, rule)
        except Mismatch:
            continue
    try:
        return convert(value, members[-1], rule)
    except Mismatch as mismatch:
        if len(members) == 1:
            raise
        kinds = _join([describe_type(member) for member in members])
        raise Mismatch(f"must be {kinds}", mismatch.remedy) from mismatch


def _convert_list(value: Any, hint: Any, rule: Rule) -> Any:
    args = get_args(hint)
    if not isinstance(value, (list, tuple)):
        raise Mismatch(f"must be a {describe_type(hint)}", "Write it in square brackets")
    entries = typing.cast("list[Any]", value)
    hints = list(args)
    if get_origin(hint) is list or Ellipsis in args:
        hints = [args[0]] * len(entries)
    if len(entries) != len(hints):
        raise Mismatch(f"must have {len(hints)} entries")
    converted: list[Any] = []
    for index, (entry, entry_hint) in enumerate(zip(entries, hints, strict=True)):
        try:
            converted.append(convert(entry, entry_hint, rule))
        except Mismatch as mismatch:
            raise Mismatch(f"the {_ordinal(index + 1)} entry {mismatch.rule}", mismatch.remedy) from mismatch
    return converted if get_origin(hint) is list else tuple(converted)


def _ordinal(number: int) -> str:
    words = ("first", "second", "third", "fourth", "fifth")
    return words[number - 1] if number <= len(words) else f"{number}th"


def _convert_table(value: Any, hint: Any, rule: Rule) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Mismatch("must be a table", "Write it as { key = value }")
    converted: dict[str, Any] = {}
    for name, entry in typing.cast("dict[str, Any]", value).items():
        try:
            converted[name] = convert(entry, get_args(hint)[1], rule)
        except Mismatch as mismatch:
            raise Mismatch(f"entry {name} {mismatch.rule}", mismatch.remedy) from mismatch
    return converted


def _unquote(value: Any) -> str:
    """Return the remedy for a number in quotes; other text has none."""
    try:
        float(value)
    except (TypeError, ValueError):
        return ""
    return "Write it without quotes" if isinstance(value, str) else ""


def _quoted(choice: Any) -> str:
    return f'"{choice}"' if isinstance(choice, str) else str(choice)


def _join(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
