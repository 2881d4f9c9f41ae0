"""A shown config loads back to an equal one, and explains every key."""

import dataclasses
import string
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.config import show
from headway.config.reference import reference_page
from headway.config.source import read_source
from headway.config.validate import validate
from headway.core.settings import setting

plain = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@dataclass(frozen=True, slots=True)
class Everything:
    """Every type that a setting can have.

    More text.
    """

    count: int = setting(1, "How many.", ge=-(10**9))
    share: float = setting(0.5, "A share of it, which has so long a description that it has to be "
                           "wrapped when it is shown as a comment above its key.")  # fmt: skip
    on: bool = setting(True, "Whether.")
    text: str = setting("a | b", "Text.")
    kind: Literal["fast", "slow"] = setting("fast", "Kind.")
    limit: int | None = setting(None, "Limit.", ge=1)
    steps: tuple[float, ...] = setting((1.0,), "Steps.")
    args: dict[str, Any] = setting(dict, "Arguments.")


@dataclass(frozen=True, slots=True)
class Schema:
    first: Everything
    second: Everything


finite = st.floats(allow_nan=False, allow_infinity=False)
sections = st.builds(
    Everything,
    count=st.integers(min_value=-(10**9)),
    share=finite,
    on=st.booleans(),
    text=st.text(),
    kind=st.sampled_from(["fast", "slow"]),
    limit=st.none() | st.integers(min_value=1),
    steps=st.lists(finite, max_size=3).map(tuple),
    args=st.dictionaries(st.text(), plain, max_size=3),
)


@settings(deadline=None)
@given(st.builds(Schema, sections, sections))
def test_a_shown_config_loads_back_equal(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "shown.toml"
    path.write_text(show.render(config), encoding="utf-8", newline="")
    assert validate(Schema, read_source(path, []), examples={}, rules=[]) == config


def test_every_key_is_shown_with_its_description():
    shown = show.render(Schema(Everything(), Everything(limit=3)))
    first, second = shown.split("\n\n")
    assert first == (
        "# Every type that a setting can have.\n"
        "[first]\n"
        "# How many.\n"
        "count = 1\n"
        "# A share of it, which has so long a description that it has to be wrapped when it is shown as a\n"
        "# comment above its key.\n"
        "share = 0.5\n"
        "# Whether.\n"
        "on = true\n"
        "# Text.\n"
        'text = "a | b"\n'
        "# Kind.\n"
        'kind = "fast"\n'
        "# Limit.\n"
        "# limit is not set\n"
        "# Steps.\n"
        "steps = [1.0]\n"
        "# Arguments.\n"
        "args = {}"
    )
    assert "limit = 3\n" in second


@pytest.mark.parametrize("character", [*string.printable, "\x7f", "\x00", "é", "\u2028", "😀"])
def test_any_character_survives(tmp_path, character):
    config = Schema(Everything(text=character, args={character: character}), Everything())
    path = tmp_path / "shown.toml"
    path.write_text(show.render(config), encoding="utf-8", newline="")
    assert validate(Schema, read_source(path, []), examples={}, rules=[]) == config


def test_the_reference_has_a_row_a_key():
    page = reference_page(Schema, {"own": Everything})
    assert page.count("\n## `[") == 3
    assert "| `count` | integer, at least -1000000000 | `1` | How many. |" in page
    assert '| `text` | string | `"a \\| b"` | Text. |' in page
    assert '| `kind` | "fast" or "slow" | `"fast"` | Kind. |' in page
    assert "| `limit` | integer, at least 1 | not set | Limit. |" in page
    assert page.count("\n| `") == 3 * len(dataclasses.fields(Everything))
