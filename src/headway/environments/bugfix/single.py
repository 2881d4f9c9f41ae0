"""Bugs to be mended in one turn: a function is shown, and the answer is one line of it.

With the place: the line is marked and the answer is the line as it should be. Without: the lines are numbered
and the answer names one, as in `3: return x`. What the first fenced block holds counts, or all of it without
one, and that must be one line. Taking the first of several would pay for a function that is written out:
`def name():` in the place of `if wrong:` leaves the branch out, and tests may pass.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.environments.bugfix.mutations import Function

MARK = "  # BUG"
_BLOCK = re.compile(r"```[a-z]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)
_NUMBERED = re.compile(r"^\s*(?:line\s+)?(\d{1,4})\s*[:.]\s?(.*)$", re.IGNORECASE)


def function_around(among: Sequence[Function], line: int) -> Function:
    """Return the function that holds a line; raises KeyError when there is none."""
    for function in among:
        if function.first <= line <= function.last:
            return function
    raise KeyError(line)


def shown(data: bytes, function: Function, *, marked: int = 0) -> str:
    """Return a function's text, its own indentation left out.

    Args:
        data: the file.
        function: in it.
        marked: the line to mark, from 1; 0 numbers all lines instead, from 1 at the function's first.
    """
    lines = data.decode().split("\n")[function.first - 1 : function.last]  # splitlines knows other ends too
    indent = len(lines[0]) - len(lines[0].lstrip())
    plain = [line[indent:] if not line[:indent].strip() else line for line in lines]
    if marked:
        at = marked - function.first
        plain[at] += MARK
        return "\n".join(plain)
    return "\n".join(f"{number}: {line}".rstrip() for number, line in enumerate(plain, 1))


def answered(text: str, function: Function, line: int) -> tuple[int, str] | None:
    """Return the line of the file that an answer replaces and what is to stand there, without indentation.

    None for an answer that is not one line.

    Args:
        text: the answer.
        function: that was shown.
        line: the marked one; 0 when the answer must name it.
    """
    block = _BLOCK.search(text)
    lines = [one for one in (block[1] if block else text).splitlines() if one.strip()]
    if len(lines) != 1:
        return None
    if line:
        answer = lines[0].strip()
        return line, answer.removesuffix(MARK.strip()).rstrip()
    named = _NUMBERED.match(lines[0])
    if named is None or not 1 <= int(named[1]) <= function.last - function.first + 1:
        return None
    return function.first + int(named[1]) - 1, named[2].strip()


def replaced(data: bytes, line: int, text: str) -> bytes:
    """Return a file with another line, of the indentation of the one that it replaces."""
    lines = data.split(b"\n")
    old = lines[line - 1]
    indent = old[: len(old) - len(old.lstrip())]
    lines[line - 1] = indent + text.encode()
    return b"\n".join(lines)
