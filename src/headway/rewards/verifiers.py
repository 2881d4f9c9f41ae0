"""Small pure functions that read an answer."""

from __future__ import annotations

import re

# A minus sign right after a digit, a letter or a closing bracket is an operator, not a sign.
_NUMBER = re.compile(r"(?:(?<![\w)\]])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")
_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(?:python|py)3?[ \t]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE
)


def last_number(text: str) -> float | None:
    """Return the last number in a text, None when there is none.

    >>> last_number("74 + 99 is 1,173.")
    1173.0
    >>> last_number("5-12"), last_number("it is -12")
    (12.0, -12.0)
    """
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def equals_number(text: str, value: float) -> bool:
    """Return whether the last number of a text is `value`."""
    number = last_number(text)
    return number is not None and number == value


def extract_python_block(text: str) -> str | None:
    r"""Return the inside of the first closed ```python block, None when there is none.

    >>> extract_python_block("Sure:\n```python\nprint(1)\n```\n")
    'print(1)\n'
    >>> extract_python_block("```python\nprint(1)") is None
    True
    """
    found = _BLOCK.search(text)
    return found[1] if found else None
