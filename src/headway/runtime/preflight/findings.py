"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headway.core.errors import ConfigError, HeadwayError, UserError

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: that something is well, or what is not and how it is mended."""

    level: Level
    text: str
    remedy: str = ""
    value: object = None
    key: str = ""  # full config key
    where: str = ""  # `file:line` of that key
    error: UserError | None = None  # what `level` error raises where a run was to start

    @property
    def place(self) -> str:
        """Where in the config it is about, empty when it is about no key."""
        return ": ".join(part for part in (self.where, self.key) if part)

    def sentence(self) -> str:
        """Return place, text, value and remedy as one line."""
        error = HeadwayError(self.text, value=self.value, remedy=self.remedy, key=self.key, where=self.where)
        return str(error)

    def to_plain(self) -> dict[str, Any]:
        """Return JSON values."""
        value = self.value if isinstance(self.value, (int, float, str, bool)) else None
        if self.value is not None and value is None:
            value = str(self.value)
        parts = {"remedy": self.remedy, "key": self.key, "where": self.where, "value": value}
        given = {name: part for name, part in parts.items() if part not in ("", None)}
        return {"level": self.level, "text": self.text, **given}


def ok(text: str) -> Finding:
    """Return that something is well."""
    return Finding("ok", text)


def warning(text: str, remedy: str, *, value: object = None, key: str = "") -> Finding:
    """Return that a run can start and something is likely to go wrong in it, or to cost more than it must."""
    return Finding("warning", text, remedy, value, key)


def failed(error: UserError) -> list[Finding]:
    """Return that a run cannot start: a finding for each problem of an error."""
    problems = error.problems if isinstance(error, ConfigError) else [error]
    return [
        Finding("error", one.rule, one.remedy, one.value, one.key, one.where, error=one) for one in problems
    ]
