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


def equals_text(text: str, value: str) -> bool:
    r"""Return whether a text is `value`, spaces and line breaks around and between words apart.

    >>> equals_text(" a  b\n", "a b"), equals_text("A b", "a b")
    (True, False)
    """
    return text.split() == value.split()


def contains_text(text: str, value: str) -> bool:
    """Return whether `value` is somewhere in a text, whatever the case, and stands there by itself.

    >>> contains_text("It is PARIS.", "Paris"), contains_text("Parisian", "Paris")
    (True, False)
    """
    words = r"\s+".join(map(re.escape, value.split()))
    return bool(words) and re.search(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE) is not None


_CHOICE = re.compile(r"(?<![A-Za-z0-9])\(?([A-Z])\)?(?![A-Za-z0-9'])")
_SAID = re.compile(r"(?i:answer|choice|option)\s*(?i:is)?\s*:?\s*\*{0,2}\(?([A-Za-z])\)?(?![A-Za-z0-9'])")


def last_choice(text: str) -> str | None:
    """Return the letter of a multiple choice that a text settles on, None when it names none.

    That is the letter after the last "answer is", "answer:", "choice" or "option", else the last capital that
    stands alone; a lower-case letter counts where it is the whole text. "I" and "A" as words deceive it.

    >>> last_choice("(B) is wrong, so the answer is (c)."), last_choice("b"), last_choice("D. 12")
    ('C', 'B', 'D')
    """
    if re.fullmatch(r"\W*[A-Za-z]\W*", text):
        return re.sub(r"\W", "", text).upper()
    found = _SAID.findall(text) or _CHOICE.findall(text)
    return found[-1].upper() if found else None
