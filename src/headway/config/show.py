"""Renders a resolved config as TOML with every key's description: `--print-config` and `config.toml`.

Invariant: the text loads back to an equal config.
"""

from __future__ import annotations

import json
import re
import textwrap
import typing
from collections.abc import Mapping
from typing import Any

from headway.config.schema import Key, keys_of, sections_of, summary_of

WIDTH = 100


def render(config: object) -> str:
    """Return the whole config as TOML, keys in the order of their declaration, descriptions as comments."""
    sections = sections_of(type(config)).items()
    return "\n".join(_render_section(name, settings, getattr(config, name)) for name, settings in sections)


def toml_value(value: Any) -> str:
    """Return one value as TOML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        entries = typing.cast("list[Any]", value)
        return "[" + ", ".join(toml_value(entry) for entry in entries) + "]"
    if isinstance(value, Mapping):
        table = typing.cast("Mapping[str, Any]", value)
        pairs = ", ".join(f"{_toml_key(key)} = {toml_value(entry)}" for key, entry in table.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    raise TypeError(f"no TOML for {type(value).__name__}")


def _render_section(name: str, settings: type, values: object) -> str:
    lines = [f"# {summary_of(settings)}", f"[{name}]"]
    for key in keys_of(settings).values():
        lines += textwrap.wrap(key.doc, WIDTH, initial_indent="# ", subsequent_indent="# ")
        lines.append(_render_key(key, getattr(values, key.name)))
    return "\n".join([*lines, ""])


def _render_key(key: Key, value: Any) -> str:
    if value is None:
        return f"# {key.name} is not set"
    return f"{key.name} = {toml_value(value)}"


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)
