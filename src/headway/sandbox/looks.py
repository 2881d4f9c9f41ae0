"""A look at a limit, again and again, while a command runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.protocols import Cause

_LOOK_S = 0.1  # between two looks


class Looks:
    """Asks ten times a second whether a limit is broken, and tells by which cause; until `cancel`."""

    def __init__(self, broken: Callable[[], Cause | None], tell: Callable[[Cause], None]) -> None:
        self._broken = broken
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_LOOK_S, self._look)

    def cancel(self) -> None:
        """Look no more; idempotent."""
        self._timer.cancel()

    def _look(self) -> None:
        cause = self._broken()
        if cause is not None:
            self._tell(cause)
        self._timer = self._loop.call_later(_LOOK_S, self._look)
