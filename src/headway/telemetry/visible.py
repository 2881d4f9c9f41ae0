"""Text that a model, a task or a program wrote, made harmless for a terminal.

Invariant: what is returned moves no cursor, sets no colour and reorders no text; letters of every script,
line feeds and tabs stay as they are.
"""

from __future__ import annotations

import re
from typing import Any, cast

_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what turns the direction of writing
    "\u2028\u2029\ufeff"  # separators that few editors show
    "\ud800-\udfff]"  # lone surrogates, which no encoding has
)
_NAMES = {"\r": "\\r", "\0": "\\0"}


def visible(text: str) -> str:
    r"""Return the text with what a terminal would obey escaped.

    >>> visible("a\x1b[31mb\r\n")
    'a\\x1b[31mb\\r\n'
    """
    return _HARMFUL.sub(_escape, text)


def visible_line(text: str) -> str:
    r"""Return the text escaped, and on one line.

    >>> visible_line("a\n\tb")
    'a\\n\\tb'
    """
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def harmless(value: object) -> object:
    r"""Return plain data with each text escaped and on one line, keys too; white space is run together.

    >>> harmless({"a\r": ["b\n  c\x1b"], "d": 1})
    {'a\\r': ['b c\\x1b'], 'd': 1}
    """
    if isinstance(value, str):
        return visible(" ".join(value.split()))
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {visible_line(key) if isinstance(key, str) else key: harmless(item) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [harmless(item) for item in cast("list[Any]", value)]
    return value


def cut_middle(text: str, limit: int, how_to_see_all: str) -> tuple[str, str, str]:
    """Return (head, note, tail): where the text is longer than `limit`, the note says what is left out.

    The head is the longer part, and both end at a line's end where one is near.
    """
    if len(text) <= limit:
        return text, "", ""
    head, tail = text[: 2 * limit // 3], text[-(limit // 3) :]
    if (at := head.rfind("\n")) > len(head) * 3 // 4:
        head = head[: at + 1]
    if 0 <= (at := tail.find("\n")) < len(tail) // 4:
        tail = tail[at + 1 :]
    num_left_out = len(text) - len(head) - len(tail)
    return head, f"[... {num_left_out:,} of {len(text):,} characters left out; {how_to_see_all} ...]", tail


def short_line(text: str, limit: int) -> str:
    """Return one line of at most `limit` characters, cut in its middle with an ellipsis."""
    line = visible_line(text)
    if len(line) <= limit:
        return line
    tail = (limit - 1) // 2
    return f"{line[: limit - 1 - tail]}…{line[len(line) - tail :]}"


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    return _NAMES.get(char) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
