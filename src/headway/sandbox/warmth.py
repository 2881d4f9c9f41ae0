"""How many sandboxes to keep ready: as many as were asked for in the busiest second of the last minute.

A pure rule. Rollouts ask in bursts, a group or a batch of them at once, and a burst is as large as the last
ones were; in a lull the number falls to one, so that the next burst finds a beginning and the memory is free.
Before anybody asked, all are kept: a run begins with a burst.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0
_BURST_S = 1.0


class Warmth:
    """The demand for one image.

    Args:
        most: upper limit of what is kept ready; 0 keeps none.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._asked: deque[tuple[float, int]] = deque()  # beginning of a burst, how many asked in it

    def asked(self, now: float) -> None:
        """One was asked for."""
        if self._asked and now - self._asked[-1][0] < _BURST_S:
            began, num = self._asked.pop()
            self._asked.append((began, num + 1))
        else:
            self._asked.append((now, 1))
        while len(self._asked) > 1 and now - self._asked[0][0] > WINDOW_S:
            self._asked.popleft()

    def target(self, now: float) -> int:
        """Return how many to keep ready now."""
        if not self._asked:
            return self._most
        recent = [num for began, num in self._asked if now - began <= WINDOW_S]
        return min(self._most, max([1, *recent]))
