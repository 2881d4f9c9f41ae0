"""Builds settings objects from a Source and collects every problem on the way."""

from __future__ import annotations

import re
import typing
from typing import Any, TypeVar

from headway.config.source import COMMAND_LINE, Source
from headway.core.check import Mismatch, convert
from headway.core.errors import UserError
from headway.core.near import did_you_mean, nearest, nearest_key
from headway.core.schema import Key, is_named, keys_of, sections_of

if typing.TYPE_CHECKING:
    from collections.abc import Mapping

S = TypeVar("S")
_NAME = r"[A-Za-z0-9_-]+"


def build(
    schema: type[S], source: Source, examples: Mapping[str, Any], problems: list[UserError]
) -> tuple[S, set[str]]:
    """Return the config and the keys that were refused; `problems` grows by one a fault.

    A refused key stands at its default (a required one at its example), so that the rules between
    settings can still be checked where they do not involve it.
    """
    sections = sections_of(schema)
    names = _names(sections)
    for name, value in source.values.items():
        if name not in sections:
            problems.append(_unknown_section(name, value, names, source))
    refused: set[str] = set()
    built: dict[str, Any] = {}
    for section, settings in sections.items():
        table = source.values.get(section, {})
        if not isinstance(table, dict):
            problems.append(_no_section(section, table, source))
            refused.add(section)
            table = {}
        given = typing.cast("dict[str, Any]", table)
        if not is_named(schema, section):
            built[section] = _section(section, settings, given, names, source, examples, problems, refused)
            continue
        built[section] = {}
        for name, inner in given.items():
            full = f"{section}.{name}"
            if not re.fullmatch(_NAME, name):
                rule = "the name of a section consists of letters, digits, - and _"
                remedy = f"Rename it, as in [{section}.easy_1]"
                problems.append(
                    UserError(rule, value=name, key=full, remedy=remedy, where=source.where(full))
                )
            elif not isinstance(inner, dict):
                problems.append(_no_section(full, inner, source))
            else:
                built[section][name] = _section(
                    full, settings, typing.cast("dict[str, Any]", inner), names, source, examples, problems,
                    refused,
                )  # fmt: skip
    return schema(**built), refused


def _names(sections: Mapping[str, type]) -> dict[str, list[str]]:
    """Return the keys of every section, and of the sections inside one, such as [hardware.trainer]."""
    names: dict[str, list[str]] = {}
    for section, settings in sections.items():
        keys = keys_of(settings)
        names[section] = list(keys)
        inner = {f"{section}.{name}": key.hint for name, key in keys.items() if key.is_section}
        names |= _names(inner)
    return names


def _no_section(section: str, value: Any, source: Source) -> UserError:
    rule = f"must be a section, written [{section}]"
    remedy = f"Write its keys below a line [{section}]"
    return UserError(rule, value=value, key=section, remedy=remedy, where=source.where(section))


def _section(
    section: str,
    settings: type,
    given: dict[str, Any],
    names: dict[str, list[str]],
    source: Source,
    examples: Mapping[str, Any],
    problems: list[UserError],
    refused: set[str],
) -> Any:
    """Build one section's settings from what was given."""
    keys = keys_of(settings)
    found: list[UserError] = [
        _unknown_key(section, name, value, names, source) for name, value in given.items() if name not in keys
    ]
    values: dict[str, Any] = {}
    for name, key in keys.items():
        full = f"{section}.{name}"
        if not key.is_section:
            values[name] = _value(key, full, given, source, examples, found, refused)
            continue
        inner = given.get(name, {})
        if not isinstance(inner, dict):
            found.append(_no_section(full, inner, source))
            refused.add(full)
            inner = {}
        table = typing.cast("dict[str, Any]", inner)
        values[name] = _section(full, key.hint, table, names, source, examples, found, refused)
    built = settings(**values)
    if not any(key == section or key.startswith(f"{section}.") for key in refused):
        found += _own_problems(section, built, source)
    problems += found
    return built


def _value(
    key: Key,
    full: str,
    given: dict[str, Any],
    source: Source,
    examples: Mapping[str, Any],
    problems: list[UserError],
    refused: set[str],
) -> Any:
    """Return one key's value, or its stand-in after noting why it was refused."""
    stand_in = examples[full] if key.is_required else key.default
    if key.name not in given:
        if key.is_required and full.partition(".")[0] not in refused:
            section = full.partition(".")[0]
            rule = f"is required: {key.doc.rstrip('.')}"
            remedy = f'In section [{section}] write, for example, {key.name} = "{stand_in}"'
            where = source.where(section)
            where = source.file if where == COMMAND_LINE else where
            problems.append(UserError(rule, key=full, remedy=remedy, where=where))
        if key.is_required:
            refused.add(full)
        return stand_in
    try:
        return convert(given[key.name], key.hint, key.rule)
    except Mismatch as mismatch:
        refused.add(full)
        value, where = given[key.name], source.where(full)
        problems.append(UserError(mismatch.rule, value=value, key=full, remedy=mismatch.remedy, where=where))
        return stand_in


def _own_problems(section: str, settings: Any, source: Source) -> list[UserError]:
    """Ask a settings object for the rules inside it."""
    if not hasattr(settings, "problems"):
        return []
    return [
        UserError(
            problem.rule,
            value=problem.value,
            key=f"{section}.{problem.key}",
            remedy=problem.remedy,
            where=source.where(f"{section}.{problem.key}"),
        )
        for problem in settings.problems()
    ]


def _unknown_section(name: str, value: Any, names: dict[str, list[str]], source: Source) -> UserError:
    where = source.where(name)
    if isinstance(value, dict):
        guess = nearest(name, names)
        remedy = did_you_mean(f"[{guess}]" if guess else None)
        remedy = remedy or "The sections are " + ", ".join(names)
        return UserError("is not a section", key=name, remedy=remedy, where=where)
    remedy = did_you_mean(nearest_key("", name, names)) or "Put it into a section"
    return UserError("is not in a section", value=value, key=name, remedy=remedy, where=where)


def _unknown_key(
    section: str, name: str, value: Any, names: dict[str, list[str]], source: Source
) -> UserError:
    key = f"{section}.{name}"
    kind = section if section in names else section.partition(".")[0]
    guess = nearest_key(kind, name, names)
    if kind != section and guess is not None and guess.partition(".")[0] == kind:
        guess = f"{section}.{guess.partition('.')[2]}"
    remedy = did_you_mean(guess)
    remedy = remedy or f"The keys of [{section}] are " + ", ".join(names[kind])
    return UserError("is not a setting", value=value, key=key, remedy=remedy, where=source.where(key))
