"""For which steps something holds, in words."""

from __future__ import annotations

from collections.abc import Sequence

_MOSTLY = 0.7  # of the steps: throughout


def when(steps: Sequence[int], holds: Sequence[bool]) -> str:
    """Return the stretch of steps in which something holds, "" where it does nowhere.

    Args:
        steps: numbers, ascending.
        holds: one for each.
    """
    places = [place for place, one in enumerate(holds) if one]
    if not places:
        return ""
    if len(places) >= _MOSTLY * len(holds):
        return f"throughout, steps {steps[0]}-{steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    tenth = max(0, len(places) // 10)  # a few far away move neither end
    first, last = steps[places[tenth]], steps[places[-1 - tenth]]
    return f"mostly steps {first}-{last}" if last > first else f"step {first}"
