"""Texts of settings with words in braces, each standing for what it says."""

from __future__ import annotations

from collections.abc import Collection
from string import Formatter

from headway.core.settings import Problem

_REMEDY = "Write {{ and }} for braces that are meant so"


def template_problem(key: str, text: str, words: Collection[str]) -> Problem | None:
    """Return what keeps a text from being filled in, None where nothing does.

    A word stands alone in its braces: neither `{prompt!r}` nor `{prompt:>10}` is one.
    """
    try:
        parts = [part[1:] for part in Formatter().parse(text) if part[1] is not None]
    except ValueError as error:
        return Problem(key, text, f"must have braces in pairs: {error}", _REMEDY)
    if any(name not in words for name, _, _ in parts):
        return Problem(key, text, f"must name only {', '.join(words)} in braces", _REMEDY)
    if odd := next((name for name, form, conversion in parts if form or conversion), None):
        return Problem(key, text, f"must have {odd} alone in its braces", f"Write {{{odd}}}")
    return None
