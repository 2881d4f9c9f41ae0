"""An environment's own arguments, checked against its frozen dataclass of settings."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from headway.core.settings import Problem, Rule

T = TypeVar("T")


def read_arguments(cls: type[T], args: Mapping[str, Any]) -> tuple[T | None, list[Problem]]:
    """Return the settings, or every problem with its key relative to `[environment.args]`."""
    fields = {field.name: field for field in dataclasses.fields(cast("Any", cls))}
    problems = [_unknown(key, value, list(fields)) for key, value in args.items() if key not in fields]
    known = {key: value for key, value in args.items() if key in fields}
    try:
        # By way of JSON, because strict JSON takes an array for a tuple and strict Python does not.
        settings = TypeAdapter(cls).validate_json(json.dumps(known, default=str), strict=True)
    except ValidationError as error:
        for entry in error.errors():
            key = ".".join(str(part) for part in entry["loc"]) or "args"
            problems.append(Problem(key, entry.get("input"), entry["msg"].lower(), ""))
        return None, problems
    for name, field in fields.items():
        rule = field.metadata.get("rule")
        if isinstance(rule, Rule):
            problems += _outside(name, getattr(settings, name), rule)
    check = getattr(settings, "problems", None)
    if check is not None and not problems:
        problems += check()
    return (None if problems else settings), problems


def _unknown(key: str, value: object, names: list[str]) -> Problem:
    near = difflib.get_close_matches(key, names, 1)
    remedy = f"Did you mean {near[0]}?" if near else f"It takes {', '.join(names)}"
    return Problem(key, value, "is not a setting of this environment", remedy)


def _outside(name: str, value: object, rule: Rule) -> list[Problem]:
    values = cast("tuple[object, ...]", value) if isinstance(value, tuple) else (value,)
    found: list[Problem] = []
    for item in values:
        if not isinstance(item, (int, float)):
            continue
        for holds, words in (
            (rule.ge is None or item >= rule.ge, f"must be at least {rule.ge}"),
            (rule.gt is None or item > rule.gt, f"must be greater than {rule.gt}"),
            (rule.le is None or item <= rule.le, f"must be at most {rule.le}"),
            (rule.lt is None or item < rule.lt, f"must be less than {rule.lt}"),
        ):
            if not holds:
                found.append(Problem(name, item, words, ""))
    return found
