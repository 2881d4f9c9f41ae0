"""Reads a config file: parse, apply overrides, check every key, then every rule between keys."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from headway.config.build import build
from headway.config.source import COMMAND_LINE, Source, read_source
from headway.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from pathlib import Path

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Clash:
    """Settings that do not go together.

    The error is about the first of `keys`, and the rule says the values of the others. Its place is that
    of the first of them that the user wrote.
    """

    keys: tuple[str, ...]
    rule: str
    remedy: str


CrossRule = Callable[[C], Iterator[Clash]]


def load_into(
    schema: type[C],
    path: Path,
    overrides: Sequence[str],
    *,
    examples: Mapping[str, Any],
    rules: Iterable[CrossRule[C]],
) -> C:
    """Read `path` and the overrides into a config class of sections.

    Args:
        schema: a frozen dataclass with one settings dataclass a field; field names are section names.
        path: the TOML file.
        overrides: `key=value` texts, applied in order.
        examples: a value for each required key, for messages.
        rules: rules between sections.

    Raises:
        ConfigError: with every problem, in the order of the file.
        UserError: when the file cannot be read or is no TOML.
    """
    source = read_source(path, overrides)
    problems: list[UserError] = []
    config, refused = build(schema, source, examples, problems)
    for rule in rules:
        clashes = [clash for clash in rule(config) if refused.isdisjoint(clash.keys)]
        problems += [_blame(clash, config, source) for clash in clashes]
    if problems:
        raise ConfigError(sorted(problems, key=_position))
    return config


def with_name(config: C, path: Path) -> C:
    """Return the config with an empty run name replaced by the config file's stem."""
    run: Any = getattr(config, "run")  # noqa: B009
    if run.name:
        return config
    stem = re.sub(r"[^A-Za-z0-9_.-]", "-", path.stem).lstrip(".-") or "run"
    changes: dict[str, Any] = {"run": dataclasses.replace(run, name=stem)}
    return dataclasses.replace(config, **changes)  # pyright: ignore[reportArgumentType, reportUnknownVariableType]


def value_of(config: Any, key: str) -> Any:
    """Return the value of a full key, such as `queue.bound`."""
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


def _blame(clash: Clash, config: Any, source: Source) -> UserError:
    key, value = clash.keys[0], value_of(config, clash.keys[0])
    written = next(filter(source.is_given, clash.keys), key)
    return UserError(clash.rule, value=value, key=key, remedy=clash.remedy, where=source.where(written))


def _position(problem: UserError) -> tuple[bool, int]:
    line = re.search(r":(\d+)$", problem.where)
    return problem.where == COMMAND_LINE, int(line.group(1)) if line else 0
