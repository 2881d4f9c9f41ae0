"""The part of the contract tests that looks for settings which nothing reads."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from headway.environments.contract_rollouts import Line


def watch(settings: Any) -> tuple[Any, set[str]]:
    """Return settings that note which of their fields are read."""
    read: set[str] = set()
    cls = cast("Any", type(settings))
    names = {field.name for field in dataclasses.fields(cls)}

    def get(self: Any, name: str) -> Any:
        if name in names:
            read.add(name)
        return cls.__getattribute__(self, name)

    watched_class: Any = type(cls.__name__, (cls,), {"__slots__": (), "__getattribute__": get})
    watched = watched_class(**{f.name: getattr(settings, f.name) for f in dataclasses.fields(cls) if f.init})
    read.clear()
    return watched, read


def unread(settings: Any, read: set[str]) -> Line:
    """Return which fields were not read, as a line of the check."""
    cls = cast("Any", type(settings))
    names = [field.name for field in dataclasses.fields(cls)]
    if unused := [name for name in names if name not in read]:
        return (
            "settings",
            "warning",
            f"not read with these arguments: {', '.join(unused)}",
            "Use them, or remove them where nothing else needs them",
        )
    return "settings", "ok", f"each of {len(names)} is read" if names else "there are none", ""
