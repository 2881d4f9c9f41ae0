"""Generates docs/spec.md: python -m headway.matching.reference > docs/spec.md."""

from __future__ import annotations

from headway.config.compose import Config
from headway.config.reference import key_table
from headway.core.schema import Key, keys_of, sections_of, summary_of
from headway.matching.spec_load import SpecModelSettings, SpecSections

_INTRODUCTION = """\
# The sections of a SPEC

What `headway plan`, `headway simulate` and `headway cost` read beside the sections of
[a run's config](configuration.md), each of which is optional here. This page is generated from the settings
themselves: `python -m headway.matching.reference > docs/spec.md`. [matching.md](matching.md) explains them.
"""


def current_page() -> str:
    """Return the page as the code stands now."""
    parts = [_INTRODUCTION, _section("model", SpecModelSettings)]
    own = {
        name: settings
        for name, settings in sections_of(SpecSections).items()
        if name not in sections_of(Config)
    }
    for section, settings in own.items():
        inner = {name: key for name, key in keys_of(settings).items() if key.is_section}
        if len(inner) < len(keys_of(settings)):
            parts.append(_section(section, settings))
        parts += [_section(f"{section}.{name}", key.hint) for name, key in inner.items()]
    return "\n".join(parts)


def _section(section: str, settings: type) -> str:
    keys: list[Key] = [key for key in keys_of(settings).values() if not key.is_section]
    return f"## `[{section}]`\n\n{summary_of(settings)}\n\n{key_table(keys)}"


if __name__ == "__main__":
    print(current_page(), end="")
