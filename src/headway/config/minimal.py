"""Overrides as the config file that says the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headway.config.show import toml_value
from headway.config.source import read_source

if TYPE_CHECKING:
    from collections.abc import Sequence


def as_config(overrides: Sequence[str]) -> str:
    """Return TOML that holds what `key=value` overrides set, and nothing else.

    Paths stay as they were written: in a file they are relative to its folder.
    """
    parts: list[str] = []
    _render((), read_source(None, overrides).values, parts)
    return "\n".join(parts)


def _render(path: tuple[str, ...], values: dict[str, Any], parts: list[str]) -> None:
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    if plain and path:
        parts += ["", f"[{'.'.join(path)}]"] if parts else [f"[{'.'.join(path)}]"]
        parts += [f"{key} = {toml_value(value)}" for key, value in plain.items()]
    for key, value in values.items():
        if isinstance(value, dict):
            _render((*path, key), cast("dict[str, Any]", value), parts)
