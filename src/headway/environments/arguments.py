"""An environment's own arguments, checked against its dataclass of settings like every other key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.core.check import Mismatch, convert
from headway.core.near import did_you_mean, nearest
from headway.core.schema import keys_of
from headway.core.settings import Problem


def read_arguments(name: str, cls: type[Any], args: Mapping[str, Any]) -> tuple[Any | None, list[Problem]]:
    """Return the settings, or every problem with its key relative to `[environment.args]`.

    Args:
        name: the environment's, for messages.
        cls: its `settings_type`.
        args: values as TOML has them: lists for tuples, integers for numbers.
    """
    keys, values = keys_of(cls), dict[str, Any]()
    problems: list[Problem] = []
    for argument, value in args.items():
        if argument not in keys:
            remedy = did_you_mean(nearest(argument, keys)) or f"It takes {', '.join(keys) or 'none'}"
            rule = f"is not an argument of the environment {name}"
            problems.append(Problem(argument, value, rule, remedy))
            continue
        try:
            values[argument] = convert(value, keys[argument].hint, keys[argument].rule)
        except Mismatch as mismatch:
            problems.append(Problem(argument, value, mismatch.rule, mismatch.remedy))
    for argument, key in keys.items():
        if key.is_required and argument not in args:
            rule = f"is required by the environment {name}: {key.doc.rstrip('.')}"
            problems.append(Problem(argument, None, rule, f"Set environment.args.{argument}"))
    if problems:
        return None, problems
    settings = cls(**values)
    if hasattr(settings, "problems"):
        problems += settings.problems()
    return (None if problems else settings), problems
