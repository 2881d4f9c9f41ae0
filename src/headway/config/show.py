"""Renders a resolved config as TOML with every key's description: `--print-config` and `config.toml`.

Invariant: the text loads back to an equal config.
"""

from __future__ import annotations

import json
import re
import textwrap
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.config.arguments import PREFIX, argument_keys
from headway.config.compose import Config
from headway.core.schema import is_named, keys_of, sections_of, summary_of

if TYPE_CHECKING:
    from pathlib import Path

    from headway.config.compose import SftConfig

WIDTH = 100


def render_config(config: Config | SftConfig) -> str:
    """Return the config as TOML, with the descriptions of the environment's arguments too."""
    if not isinstance(config, Config):
        return render(config)
    keys = argument_keys(config.environment.name)
    docs = {f"{PREFIX}.{name}": key.doc for name, key in keys.items()}
    for name, source in config.source.items():
        keys = argument_keys(source.environment or config.environment.name)
        docs |= {f"source.{name}.args.{argument}": key.doc for argument, key in keys.items()}
    return render(config, docs)


def write_config(config: Config | SftConfig, path: Path) -> None:
    """Write the config as TOML to a new file."""
    with path.open("x", encoding="utf-8", newline="") as file:
        file.write(render_config(config))


def render(config: object, docs: Mapping[str, str] | None = None) -> str:
    """Return a config class's values as TOML, in the order of declaration, descriptions as comments.

    Args:
        config: a frozen dataclass of sections.
        docs: descriptions of entries of table settings, by full key.
    """
    parts: list[str] = []
    for section, settings in sections_of(type(config)).items():
        values = getattr(config, section)
        if not is_named(type(config), section):
            parts.append(_render_section(section, settings, values, docs or {}))
            continue
        parts += [
            _render_section(f"{section}.{name}", settings, one, docs or {}) for name, one in values.items()
        ]
    return "\n".join(parts)


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


def _render_section(section: str, settings: type, values: object, docs: Mapping[str, str]) -> str:
    """Render one section; tables that are not empty come last, under headers of their own."""
    lines, tables = [f"# {summary_of(settings)}", f"[{section}]"], list[str]()
    for key in keys_of(settings).values():
        value = getattr(values, key.name)
        if isinstance(value, dict) and value:
            tables += ["", *_comment(key.doc), f"[{section}.{key.name}]"]
            for name, entry in typing.cast("dict[str, Any]", value).items():
                tables += _comment(docs.get(f"{section}.{key.name}.{name}", ""))
                tables.append(f"{_toml_key(name)} = {toml_value(entry)}")
            continue
        lines += _comment(key.doc)
        lines.append(f"# {key.name} is not set" if value is None else f"{key.name} = {toml_value(value)}")
    return "\n".join([*lines, *tables, ""])


def _comment(text: str) -> list[str]:
    prefix = "# "
    return textwrap.wrap(text, WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False)


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_value(key)
