"""Changes of files as JSON, so that an outcome does not hold a whole module for one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.environments.bugfix.sources import Tree


def edits_of(tree: Tree, changed: Mapping[str, str | None]) -> dict[str, Any]:
    """Return changes against known files: path -> [first line, line after the last, new text], or None."""
    return {
        path: None if text is None else _edit(tree.get(path, b""), text) for path, text in changed.items()
    }


def _edit(before: bytes, text: str) -> list[Any]:
    old, new = before.decode("utf-8", "replace").splitlines(keepends=True), text.splitlines(keepends=True)
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    return [first, len(old) - last, "".join(new[first : len(new) - last])]


def with_edits(tree: Tree, edits: Mapping[str, Any]) -> Tree:
    """Return files with the changes of `edits_of`."""
    after = dict(tree)
    for path, edit in edits.items():
        if edit is None:
            after.pop(path, None)
            continue
        first, last, text = edit
        lines = tree.get(path, b"").decode("utf-8", "replace").splitlines(keepends=True)
        after[path] = "".join([*lines[:first], text, *lines[last:]]).encode()
    return after
