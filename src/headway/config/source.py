"""A config file and its overrides as one tree of values, with the place that each value came from."""

from __future__ import annotations

import copy
import dataclasses
import re
import shlex
import tomllib
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.config import positions
from headway.core.errors import ConfigError, UserError
from headway.core.hooks import absolute

if typing.TYPE_CHECKING:
    from collections.abc import Sequence

COMMAND_LINE = "command line"
_ARGUMENTS = ("environment", "args")


@dataclass(frozen=True, slots=True)
class Source:
    """Parsed values before validation."""

    file: str  # as the user named it
    values: dict[str, Any]  # nested tables
    places: dict[positions.Path, str]  # `file:line` or `command line` of every table and key
    left_out: str = ""  # one sentence on what of the file is not looked at, empty where all is

    def is_given(self, key: str) -> bool:
        """Say whether the user wrote this dotted key."""
        return tuple(key.split(".")) in self.places

    def where(self, key: str) -> str:
        """Return the place of a dotted key, else of the table that would hold it, else the file."""
        path = tuple(key.split("."))
        while path:
            if path in self.places:
                return self.places[path]
            path = path[:-1]
        return self.file


def read_source(path: Path | None, overrides: Sequence[str]) -> Source:
    """Read the file, if there is one, and apply `key=value` overrides in order.

    Where they name another environment than the file, the file's environment.args are left out.

    Raises UserError when the file cannot be read or parsed, and ConfigError for malformed overrides.
    """
    text = "" if path is None else _read_text(path)
    file = COMMAND_LINE if path is None else str(path)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), file, text) from None
    places = {key: f"{file}:{line}" for key, line in positions.key_lines(text).items()}
    problems: list[UserError] = []
    parsed: list[tuple[positions.Path, Any]] = []
    for override in overrides:
        try:
            parsed.append(parse_override(override))
        except UserError as error:
            problems.append(error)
    source = Source(file, values, places)
    if path is not None:
        source = dataclasses.replace(source, left_out=_leave_out_arguments(source, path.parent, parsed))
    for key, value in parsed:
        _apply(source, key, value)
    if problems:
        raise ConfigError(problems)
    return source


def overridden(values: dict[str, Any], name: str, overrides: Sequence[str]) -> Source:
    """Return plain values, such as a run's config in its journal, with `key=value` overrides on top.

    Raises ConfigError for malformed overrides.
    """
    source = Source(name, copy.deepcopy(values), {})
    problems: list[UserError] = []
    for override in overrides:
        try:
            _apply(source, *parse_override(override))
        except UserError as error:
            problems.append(error)
    if problems:
        raise ConfigError(problems)
    return source


def _leave_out_arguments(
    source: Source, folder: Path, overrides: Sequence[tuple[positions.Path, Any]]
) -> str:
    """Take the file's environment.args out when the command line names another environment.

    Returns the sentence for `Source.left_out`.
    """
    environment = source.values.get("environment")
    if not isinstance(environment, dict) or any(key == _ARGUMENTS for key, _ in overrides):
        return ""
    table = typing.cast("dict[str, Any]", environment)
    old, new = table.get("name"), dict(overrides).get(("environment", "name"))
    if not (isinstance(old, str) and isinstance(new, str) and table.get("args")):
        return ""
    if absolute(old, folder) == absolute(new, Path()):
        return ""
    where = source.where("environment.args")
    _apply(source, _ARGUMENTS, None)
    return f"environment.args of {where} belong to {old} and are left out"


def parse_override(text: str) -> tuple[positions.Path, Any]:
    """Split `a.b=value` into the key's parts and its value, None when the value is empty.

    The value is read as TOML; what is no TOML and does not begin like a string, list or table is taken as
    a plain string, so that `model.path=./my model` needs no quotes for TOML inside quotes for the shell.
    """
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not equals or not key:
        remedy = "Write it like queue.bound=2; options begin with two dashes"
        raise UserError(
            "an override must have the form key=value", value=text, remedy=remedy, where=COMMAND_LINE
        )
    try:
        parts = _only_path(tomllib.loads(f"{key} = 0"))
    except tomllib.TOMLDecodeError:
        rule = "an override's key must be names joined by dots"
        remedy = "Write it like queue.bound=2"
        raise UserError(rule, value=key, remedy=remedy, where=COMMAND_LINE) from None
    if not raw:
        return parts, None
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError as error:
        if raw[0] in "\"'[{":
            rule = f"the value is not valid TOML: {_reason(str(error))}"
            remedy = "Put the whole override in single quotes for the shell"
            raise UserError(rule, value=raw, key=key, remedy=remedy, where=COMMAND_LINE) from None
        return parts, raw
    return parts, parsed["value"] if len(parsed) == 1 else raw


def _apply(source: Source, path: positions.Path, value: Any) -> None:
    """Set one value; None takes the key out, which restores its default."""
    for known in [known for known in source.places if known[: len(path)] == path]:
        del source.places[known]
    table = source.values
    for depth, part in enumerate(path[:-1], start=1):
        inner = table.get(part)
        if not isinstance(inner, dict):
            if value is None:
                return
            inner = table[part] = {}
            source.places[path[:depth]] = COMMAND_LINE
        table = typing.cast("dict[str, Any]", inner)
    if value is None:
        table.pop(path[-1], None)
        return
    table[path[-1]] = value
    source.places[path] = COMMAND_LINE


def _only_path(nested: dict[str, Any]) -> positions.Path:
    ((part, inner),) = nested.items()
    return (part, *_only_path(inner)) if isinstance(inner, dict) else (part,)  # pyright: ignore


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except IsADirectoryError:
        remedy = f"Give a TOML file; to go on with a run: headway resume {shlex.quote(str(path))}"
        raise UserError(
            "the config must be a file, not a directory", value=str(path), remedy=remedy
        ) from None
    except FileNotFoundError:
        remedy = "Give the path of a TOML file, such as examples/quickstart.toml"
        raise UserError("the config file must exist", value=str(path), remedy=remedy) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        remedy = "Save it as UTF-8"
        raise UserError("the config file must be UTF-8 text", remedy=remedy, where=f"{path}:{line}") from None
    except OSError as error:
        remedy = "Give yourself the right to read it, or correct its path"
        raise UserError(
            f"the config file must be readable: {error.strerror}", value=str(path), remedy=remedy
        ) from None


def _syntax_error(message: str, file: str, text: str) -> UserError:
    match = re.search(r"at line (\d+)", message)
    line = int(match.group(1)) if match else len(text.splitlines())
    remedy = ""
    if re.search(r"line \d+", message) and "Invalid value" in message:
        remedy = "Strings need quotes; true and false are in lower case"
    return UserError(f"not valid TOML: {_reason(message)}", remedy=remedy, where=f"{file}:{line}")


def _reason(message: str) -> str:
    return re.sub(r" \(at (line \d+, column \d+|end of document)\)", "", message)
