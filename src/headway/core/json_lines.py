"""JSONL files: one JSON object a line, UTF-8; empty lines are passed over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ARRAY = "JSONL has one object a line; for a JSON array: jq -c '.[]' data.json > data.jsonl"
_GZIP = b"\x1f\x8b"
_HALF = "An escape \\ud800 to \\udfff stands for a character only in a pair: write the character itself"


def text_lines(path: Path, key: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not empty, each with its number from 1.

    Args:
        path: the file.
        key: the config's key that names it, for messages.

    Raises UserError when it cannot be read or is no UTF-8.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        rule = "the data file must exist"
        remedy = "In a config file a path is relative to its folder, on the command line to the current one"
        raise UserError(rule, value=str(path), remedy=remedy, key=key) from None
    except OSError as error:
        rule = f"the data file must be readable: {error.strerror}"
        raise UserError(rule, value=str(path), remedy="Give a JSONL file", key=key) from None
    if data[:2] == _GZIP:
        rule = "the data file must be UTF-8 text, and it is compressed"
        raise UserError(rule, value=str(path), remedy="Unpack it, with gunzip say", key=key)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        rule = "the data file must be UTF-8 text"
        raise UserError(rule, remedy="Save it as UTF-8", key=key, where=f"{path}:{line}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line


def json_object(line: str) -> dict[str, Any]:
    """Return the object of a line; raise UserError, without a place, when it holds none."""
    twice: list[str] = []

    def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice.extend(name for name in found if names.count(name) > 1)
        return found

    try:
        row = json.loads(line, object_pairs_hook=no_key_twice)
    except (ValueError, RecursionError) as error:
        what = (
            f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        )
        remedy = "Each line must be one JSON object"
        if line.lstrip()[:1] in ("[", "{") and len(line.strip()) < 3:
            remedy = _ARRAY
        raise UserError(f"not valid JSON: {what}", remedy=remedy) from None
    if twice:
        rule = "a key must stand once in a JSON object"
        raise UserError(rule, value=twice[0], remedy="Leave one out: readers differ in which they take")
    if not isinstance(row, dict):
        raise UserError("a line must be a JSON object", value=type(row).__name__, remedy=_ARRAY)
    if "\\ud" in line or "\\uD" in line:
        try:
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(str(error.object)[error.start]):04x}"
            raise UserError("a text must have no half of a character", value=half, remedy=_HALF) from None
    return cast("dict[str, Any]", row)
