"""Checks every key, then every rule between keys, and raises all problems together."""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from headway.config.build import build
from headway.config.clash import Clash
from headway.config.source import COMMAND_LINE, Source
from headway.core.errors import ConfigError, UserError

C = TypeVar("C")
CrossRule = Callable[[C], Iterator[Clash]]


def validate(
    schema: type[C], source: Source, *, examples: Mapping[str, Any], rules: Iterable[CrossRule[C]]
) -> C:
    """Return the config that a source describes.

    Args:
        schema: a frozen dataclass with one settings dataclass a field; field names are section names.
        source: the parsed values and their places.
        examples: a value for each required key, for messages.
        rules: rules between sections.

    Raises:
        ConfigError: with every problem, in the order of the file.
    """
    problems: list[UserError] = []
    config, refused = build(schema, source, examples, problems)
    for rule in rules:
        clashes = [clash for clash in rule(config) if refused.isdisjoint(clash.keys)]
        problems += [_blame(clash, config, source) for clash in clashes]
    if problems:
        raise ConfigError(sorted(problems, key=lambda problem: in_file_order(problem.where)))
    return config


def _blame(clash: Clash, config: object, source: Source) -> UserError:
    key = clash.keys[0]
    value = functools.reduce(_entry, key.split("."), config)
    value = (
        list(typing.cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value
    )  # as TOML has it
    written = next(filter(source.is_given, clash.keys), key)
    return UserError(clash.rule, value=value, key=key, remedy=clash.remedy, where=source.where(written))


def _entry(holder: object, name: str) -> object:
    """Return a field of a settings object or an entry of a table, None when it has none."""
    if isinstance(holder, Mapping):
        return typing.cast("Mapping[str, object]", holder).get(name)
    return getattr(holder, name)


def in_file_order(where: str) -> tuple[bool, int]:
    """Return what sorts places by line, the command line last."""
    line = re.search(r":(\d+)$", where)
    return where == COMMAND_LINE, int(line.group(1)) if line else 0
