"""Is a verdict of yours usable? Needs nothing but headway.

    from verdict_contract import check_verdict
    check_verdict(my_function)

Raises AssertionError or what the function raises; returns nothing when it keeps the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

GROUPS: Sequence[tuple[list[float], list[int]]] = (
    ([0.0, 1.0, 1.0, 0.0], [10, 20, 30, 40]),
    ([1.0] * 8, [5] * 8),
    ([0.0], [1]),
    ([-2.5, 3.0], [100_000, 1]),
)
"""Groups as they come: unequal and equal rewards, one rollout, rewards of any size."""


def check_verdict(function: Callable[[list[float], list[int]], object]) -> None:
    """Ask for a verdict on groups of every kind, each twice."""
    for rewards, lengths in GROUPS:
        given = (list(rewards), list(lengths))
        answer = function(*given)
        assert given == (rewards, lengths), "it must leave its arguments as they are"
        keep, reason = answer if isinstance(answer, tuple) else (answer, "")
        is_bool = type(keep).__name__ in ("bool", "bool_")  # numpy's are as good
        assert is_bool, f"whether a group is kept must be True or False, not {keep!r}"
        assert isinstance(reason, str), f"a reason must be text, not {reason!r}"
        assert len(reason.splitlines()) < 2, f"a reason must be of one line, not {reason!r}"
        assert function(list(rewards), list(lengths)) == answer, "the same group must get the same verdict"
