"""Time that a scoring spends waiting for a limit of Headway's own, which counts against none of its limits.

A `Waiting` is of one scoring, or of one function of a rubric inside it. What waits says so with `outside`,
wherever it is; functions that run at once may wait at once, and the time counts once.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch

if TYPE_CHECKING:
    from collections.abc import Generator

_current: ContextVar[Waiting | None] = ContextVar("headway_waiting", default=None)


class Waiting:
    """Seconds outside, and what it is busy with.

    Args:
        parent: of what this one is a part; it waits when this one does.
    """

    def __init__(self, parent: Waiting | None = None) -> None:
        self._parent = parent
        self._num_waiting = 0
        self._since = 0.0
        self._total_s = 0.0
        self._busy: list[str] = []
        self.was_answered = False  # by such a service

    @property
    def outside_s(self) -> float:
        """Seconds spent waiting so far, a wait that goes on included."""
        return self._total_s + (stopwatch() - self._since if self._num_waiting else 0.0)

    @property
    def busy_with(self) -> str:
        """Somebody else's service that is being asked, or was when it was cancelled; "" for none."""
        return self._busy[-1] if self._busy else ""

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits now."""
        return self._num_waiting > 0

    @contextlib.contextmanager
    def here(self) -> Generator[None]:
        """Let this be the one that `outside` and `busy` tell."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def began(self) -> None:
        """Begin a wait."""
        if not self._num_waiting:
            self._since = stopwatch()
        self._num_waiting += 1
        if self._parent is not None:
            self._parent.began()

    def ended(self) -> None:
        """End a wait."""
        self._num_waiting -= 1
        if not self._num_waiting:
            self._total_s += stopwatch() - self._since
        if self._parent is not None:
            self._parent.ended()

    def began_with(self, what: str) -> None:
        """Begin to ask a service."""
        self._busy.append(what)
        if self._parent is not None:
            self._parent.began_with(what)

    def ended_with(self, what: str) -> None:
        """It is asked no more."""
        self._busy.remove(what)
        if self._parent is not None:
            self._parent.ended_with(what)

    def answered(self) -> None:
        """A service answered."""
        self.was_answered = True
        if self._parent is not None:
            self._parent.answered()


def current() -> Waiting | None:
    """Return the innermost one, None outside any scoring."""
    return _current.get()


@contextlib.contextmanager
def outside() -> Generator[None]:
    """Let the time inside count against no limit of the scoring, if this is one."""
    waiting = _current.get()
    if waiting is not None:
        waiting.began()
    try:
        yield
    finally:
        if waiting is not None:
            waiting.ended()


@contextlib.contextmanager
def busy(what: str) -> Generator[None]:
    """Let a time-out inside be the fault of `what`; whoever is cancelled inside stays busy with it."""
    waiting = _current.get()
    if waiting is None:
        yield
        return
    waiting.began_with(what)
    try:
        yield
    except Exception:
        waiting.ended_with(what)
        raise
    waiting.ended_with(what)
    waiting.answered()
