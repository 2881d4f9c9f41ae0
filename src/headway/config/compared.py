"""A run's settings beside their defaults, from the config that its journal's header holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from headway.config.arguments import PREFIX, argument_keys
from headway.config.compose import Config
from headway.config.show import toml_value
from headway.core.codec import to_plain
from headway.core.schema import Key, is_named, keys_of, sections_of
from headway.environments.registry import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_SET, REQUIRED = "not set", "required"


@dataclass(frozen=True, slots=True)
class Compared:
    """One setting of a run."""

    key: str  # full
    value: str  # as TOML, NOT_SET for none
    default: str  # likewise, REQUIRED where there is none, "" where nothing here knows the key
    differs: bool  # from the default
    doc: str = ""


def compared(config: Mapping[str, Any]) -> list[Compared]:
    """Return every setting of a plain config in the order of the sections; nothing is loaded or checked.

    Arguments of an environment of one's own have no known defaults: whatever is given counts as different.
    """
    rows: list[Compared] = []
    for section, settings in sections_of(Config).items():
        keys, values = keys_of(settings), _table(config.get(section))
        if not is_named(Config, section):
            rows += _section(section, keys, values)
            continue
        for name, one in values.items():
            rows += _section(f"{section}.{name}", keys, _table(one))
    return rows


def _section(section: str, keys: Mapping[str, Key], values: Mapping[str, Any]) -> Iterator[Compared]:
    for name, value in values.items():
        full = f"{section}.{name}"
        if name == "args" and isinstance(value, Mapping):
            named = values.get("name", values.get("environment", ""))
            yield from _arguments(full, str(named), _table(cast("object", value)))
            continue
        yield _row(full, keys.get(name), value)


def _arguments(prefix: str, environment: str, values: Mapping[str, Any]) -> Iterator[Compared]:
    known = argument_keys(environment) if environment in BUILT_IN and prefix == PREFIX else {}
    for name, value in values.items():
        yield _row(f"{prefix}.{name}", known.get(name), value)


def _row(full: str, key: Key | None, value: object) -> Compared:
    shown = NOT_SET if value is None else toml_value(value)
    if key is None:
        return Compared(full, shown, "", differs=True)
    if key.is_required:
        return Compared(full, shown, REQUIRED, differs=True, doc=key.doc)
    default = to_plain(key.default)
    text = NOT_SET if default is None else toml_value(default)
    return Compared(full, shown, text, differs=value != default, doc=key.doc)


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
