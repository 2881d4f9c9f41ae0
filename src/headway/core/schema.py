"""What a settings dataclass says about its keys: the one reading of field metadata."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin

from headway.core.settings import Rule


@dataclass(frozen=True, slots=True)
class Key:
    """One setting."""

    name: str  # without its section
    hint: Any  # resolved type
    doc: str  # the description
    rule: Rule  # bounds
    default: Any  # MISSING when the user must give it

    @property
    def is_required(self) -> bool:
        """True when there is no default."""
        return self.default is dataclasses.MISSING

    @property
    def is_section(self) -> bool:
        """True for a settings class of its own, written as a section inside its section."""
        return dataclasses.is_dataclass(self.hint)

    @property
    def is_optional(self) -> bool:
        """True when the setting may be unset."""
        return get_origin(self.hint) in (Union, types.UnionType) and type(None) in get_args(self.hint)


@functools.cache
def keys_of(settings: type) -> dict[str, Key]:
    """Return the keys of a settings dataclass in the order of their declaration."""
    hints = typing.get_type_hints(settings)
    keys: dict[str, Key] = {}
    for field in dataclasses.fields(settings):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        doc, rule = field.metadata.get("doc", ""), field.metadata.get("rule", Rule())
        keys[field.name] = Key(field.name, hints[field.name], doc, rule, default)
    return keys


@functools.cache
def sections_of(schema: type) -> dict[str, type]:
    """Return section name -> settings dataclass of a composed config class, in order.

    For named sections, such as [source.NAME], it is that of one of them; `is_named` tells them apart.
    """
    hints = typing.get_type_hints(schema)
    return {
        field.name: get_args(hints[field.name])[1] if is_named(schema, field.name) else hints[field.name]
        for field in dataclasses.fields(schema)
    }


@functools.cache
def is_named(schema: type, section: str) -> bool:
    """Say whether a section stands for any number of sections [section.NAME]."""
    return get_origin(typing.get_type_hints(schema)[section]) is dict


def summary_of(settings: type) -> str:
    """Return the first line of a settings class's docstring, without the section that it may name first."""
    line = (settings.__doc__ or "").strip().partition("\n")[0]
    line = re.sub(r"^Section \[\w+\]: ", "", line)
    return line[:1].upper() + line[1:]
