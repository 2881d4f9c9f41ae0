"""What a rule between settings reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clash:
    """Settings that do not go together.

    The error is about the first of `keys`, and the rule says the values of the others. Its place is that
    of the first of them that the user wrote.
    """

    keys: tuple[str, ...]
    rule: str
    remedy: str
