"""How a setting is declared: a field of a frozen dataclass, beside the code that it sets.

    @dataclass(frozen=True, slots=True)
    class QueueSettings:
        group_size: int = setting(8, "Rollouts per task.", ge=1)

The description and bounds travel in the field's metadata; `headway.config` builds the validation,
`--print-config` and the reference page from them. No validation library is imported here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Rule:
    """Bounds of one setting, all optional.

    `pattern` is a regular expression for strings; `form` says it in words that complete "must be".
    `names` says that an environment's argument names a "file" or folder (but hf:NAME), a "hook" of the
    user's own code, or "either": the config makes its path absolute, from the config file's folder or, on the
    command line, the current one.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    pattern: str | None = None
    form: str = ""
    names: Literal["", "file", "hook", "either"] = ""


def setting(
    default: Any,
    doc: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    pattern: str | None = None,
    form: str = "",
    names: Literal["", "file", "hook", "either"] = "",
) -> Any:
    """Declare a setting with its default, its own description and its bounds.

    A callable default (a class, `dict`, `list`) is a default factory. Pass `dataclasses.MISSING` for a
    setting that the user must give.
    """
    metadata = {"doc": doc, "rule": Rule(ge, gt, le, lt, pattern, form, names)}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule between settings that does not hold; `key` is relative to the settings object that found it."""

    key: str
    value: object
    rule: str
    remedy: str
