"""Generates docs/configuration.md: python -m headway.config.reference > docs/configuration.md."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headway.config.compose import Config, SftConfig
from headway.config.show import toml_value
from headway.core.check import describe_bounds, describe_type
from headway.core.schema import Key, is_named, keys_of, sections_of, summary_of
from headway.environments.registry import names_and_summaries, settings_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_INTRODUCTION = """\
# Configuration

Every key of a config file. This page is generated from the settings themselves:
`python -m headway.config.reference > docs/configuration.md`.

A config file is TOML with the sections below; every key has a default unless it says *required*. Any key can
be overridden on the command line, and the last one wins:

    headway train examples/quickstart.toml queue.bound=0 run.name=sync model.path=./my-model

An override's value is read as TOML; what is no TOML is taken as a string, so strings rarely need quotes.
An empty value (`queue.bound=`) restores the default. An `environment.name` on the command line other than the
file's leaves out the file's `environment.args`, for they belong to the file's environment; a line on stderr
says so, and arguments on the command line stay. Unknown keys, wrong types and values out of bounds are
errors, all shown at once with file and line. A setting that you changed and that has no effect under the
others, such as `partial.after_steps` while `partial.park` is `"never"`, is a warning on stderr at the start.
`headway train CONFIG --print-config` shows the outcome.
"""

_SFT = """\
## `[sft]`

What [`headway sft`](sft.md) trains on, in which order and for how long. Of the sections above it reads
`[run]`, `[model]`, `[trainer]` and `[checkpoint]`; `headway train` does not read this one, so that one file
can hold both.
"""


def reference_page(schema: type, environments: Mapping[str, type]) -> str:
    """Return the page for a composed config class, as Markdown.

    Args:
        schema: the class of sections.
        environments: name -> dataclass of arguments of each environment to describe.
    """
    parts = [_INTRODUCTION]
    for section, settings in sections_of(schema).items():
        section = f"{section}.NAME" if is_named(schema, section) else section
        parts.append(f"## `[{section}]`\n\n{summary_of(settings)}\n\n{_table(settings)}")
    for name, settings in environments.items():
        parts.append(f"## `[environment.args]` of `{name}`\n\n{_table(settings)}")
    return "\n".join(parts)


def current_page() -> str:
    """Return the page as the code stands now."""
    page = reference_page(Config, {name: settings_type(name) for name, _ in names_and_summaries()})
    return f"{page}\n{_SFT}\n{_table(sections_of(SftConfig)['sft'])}"


def _table(settings: type) -> str:
    return key_table(keys_of(settings).values())


def key_table(keys: Iterable[Key]) -> str:
    """Return keys with type, default and description as a table in Markdown."""
    rows = "\n".join(_row(key) for key in keys)
    return f"| Key | Type | Default | Description |\n| --- | --- | --- | --- |\n{rows}\n"


def _row(key: Key) -> str:
    bounds = describe_bounds(key.rule)
    kind = describe_type(key.hint) + (f", {bounds}" if bounds else "")
    default = "not set" if key.default is None else "*required*"
    if key.default is not None and not key.is_required:
        default = f"`{toml_value(key.default)}`"
    return "| " + " | ".join(map(_cell, (f"`{key.name}`", kind, default, key.doc))) + " |"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


if __name__ == "__main__":
    print(current_page(), end="")
