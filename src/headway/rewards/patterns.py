"""Regular expressions of users over what a policy, a judge or a test wrote: given up after a second.

Texts can be made for which a backtracking matcher takes years, and all rollouts of a worker would wait for
it. The library regex has the syntax of re, and a limit. A text that it gave up has no match.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regex import Match, Pattern

_LIMIT_S = 1.0


def compiled(pattern: str, *, dotall: bool = False, multiline: bool = False) -> Pattern[str]:
    """Return a pattern; raises ValueError, with the reason, for what is no regular expression."""
    import regex

    try:
        return regex.compile(pattern, dotall * regex.DOTALL | multiline * regex.MULTILINE)
    except regex.error as error:
        raise ValueError(str(error)) from None


def fits(pattern: Pattern[str], text: str, *, whole: bool = False) -> bool:
    """Return whether a pattern matches somewhere in a text, or the whole of it."""
    try:
        return (pattern.fullmatch if whole else pattern.search)(text, timeout=_LIMIT_S) is not None
    except TimeoutError:
        return False


def last_match(pattern: Pattern[str], text: str) -> Match[str] | None:
    """Return the last match of a pattern in a text, None without one."""
    try:
        last = deque(pattern.finditer(text, timeout=_LIMIT_S), maxlen=1)
    except TimeoutError:
        return None
    return last[0] if last else None
