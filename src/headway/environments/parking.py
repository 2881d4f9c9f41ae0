"""Whether a rollout may ask for tokens.

open -> asked (a Park came; a request in flight must end first) -> parking (memory is given back, the payload
written) -> parked -> open. `wait` holds the rollout's next answer meanwhile. A repeated or late call changes
nothing; a Resume that overtakes the end of its parking is kept and honoured then.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from headway.core.clock import stopwatch


class Gate:
    """The state, and how long the rollout stood still for it."""

    def __init__(self) -> None:
        self.state: Literal["open", "asked", "parking", "parked"] = "open"
        self._opened = asyncio.Event()
        self._opened.set()
        self._early = ""  # replica of a Resume that came before the parking was over
        self._since: float | None = None  # an answer waits since then
        self._stood_s = 0.0

    def ask(self) -> bool:
        """Close; return whether it was open."""
        if self.state != "open":
            return False
        self.state = "asked"
        self._opened.clear()
        return True

    def begin(self) -> bool:
        """Return whether the caller is to park now, once for each time that it was asked for."""
        if self.state != "asked":
            return False
        self.state = "parking"
        return True

    def parked(self) -> str:
        """Parking is complete; return the replica that a Resume named already, if one did."""
        self.state = "parked"
        early, self._early = self._early, ""
        return early

    def may_open(self, replica: str) -> bool:
        """Return whether a Resume finds it parked; the caller calls `open` when all is ready."""
        if self.state in ("asked", "parking"):
            self._early = replica
        return self.state == "parked"

    def open(self) -> float:
        """Go on; return the seconds that an answer stood still since the parking."""
        self._count()
        self.state = "open"
        self._opened.set()
        stood_s, self._stood_s = self._stood_s, 0.0
        return stood_s

    async def wait(self) -> None:
        """Wait until it is open; a cancelled wait counts as long as it lasted."""
        if self._opened.is_set():
            return
        self._since = stopwatch()
        try:
            await self._opened.wait()
        finally:
            self._count()

    def _count(self) -> None:
        if self._since is not None:
            self._stood_s += stopwatch() - self._since
            self._since = None
