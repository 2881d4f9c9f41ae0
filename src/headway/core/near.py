"""Near misses: what the writer of a wrong name probably meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_ALMOST = 0.85  # likeness of a name with a letter or two wrong


def nearest(name: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the choice that `name` resembles by at least `cutoff`, of 1, None when none does."""
    by_folded = {_fold(choice): choice for choice in choices}
    found = difflib.get_close_matches(_fold(name), by_folded, n=1, cutoff=cutoff)
    return by_folded[found[0]] if found else None


def nearest_key(section: str, name: str, keys: Mapping[str, Sequence[str]]) -> str | None:
    """Return the full key that `section.name` was probably meant to be.

    In this order: a name in this section that is as good as the same, the same name in exactly one other
    section, a similar name in this section, almost the same name anywhere. `keys` maps each section to its
    keys.
    """
    own = nearest(name, keys.get(section, ()), cutoff=_ALMOST) or _begun(name, keys.get(section, ()))
    if own is not None:
        return f"{section}.{own}"
    homes = [home for home, names in keys.items() if name in names]
    if len(homes) == 1:
        return f"{homes[0]}.{name}"
    if (found := nearest(name, keys.get(section, ()))) is not None:
        return f"{section}.{found}"
    everywhere = {other: home for home, names in keys.items() for other in names}
    found = nearest(name, everywhere, cutoff=_ALMOST)
    return None if found is None else f"{everywhere[found]}.{found}"


def _begun(name: str, choices: Iterable[str]) -> str | None:
    """Return the one choice that begins `name` or that `name` begins, None without exactly one."""
    folded = _fold(name)
    long = [choice for choice in choices if min(len(choice), len(folded)) > 2]
    found = [choice for choice in long if folded.startswith(choice) or choice.startswith(folded)]
    return found[0] if len(found) == 1 else None


def did_you_mean(guess: str | None) -> str:
    """Return the sentence, empty without a guess."""
    return "" if guess is None else f"Did you mean {guess}?"


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
