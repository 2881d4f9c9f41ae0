"""Sandboxes that are wanted or live at this moment."""

from __future__ import annotations

from collections import deque


class SandboxPlaces:
    """Who waits for a sandbox, which ones live, and how long the newest took to start.

    Attributes:
        live: ids between their grant and their end.
        starting: those of them that do not run yet.
        starts_s: seconds from grant to ready, of the newest ones.
        calls_s: seconds of the newest calls.
    """

    def __init__(self, num_recent: int) -> None:
        self.live: set[str] = set()
        self.starting: set[str] = set()
        self.starts_s: deque[float] = deque(maxlen=num_recent)
        self.calls_s: deque[float] = deque(maxlen=num_recent)
        self._wishes: dict[str, str] = {}  # sandbox -> rollout
        self._wishes_of: dict[str, set[str]] = {}  # rollout -> the sandboxes that it waits for

    @property
    def num_waiting(self) -> int:
        """Sandboxes that were asked for and not granted yet."""
        return len(self._wishes)

    def wanted(self, rollout: str, sandbox: str) -> None:
        """A rollout or its verifier asks for a sandbox."""
        self._wishes[sandbox] = rollout
        self._wishes_of.setdefault(rollout, set()).add(sandbox)

    def granted(self, sandbox: str) -> None:
        """It may be created now."""
        self._end_wish(sandbox)
        self.live.add(sandbox)
        self.starting.add(sandbox)

    def ready(self, sandbox: str, start_s: float) -> None:
        """It runs."""
        self.live.add(sandbox)
        self.starting.discard(sandbox)
        self.starts_s.append(start_s)

    def gone(self, sandbox: str) -> None:
        """It ended, asked or not."""
        self._end_wish(sandbox)
        self.live.discard(sandbox)
        self.starting.discard(sandbox)

    def forget_wish(self, rollout: str) -> None:
        """A rollout ended: it waits for no sandbox any more."""
        for sandbox in tuple(self._wishes_of.get(rollout, ())):
            self._end_wish(sandbox)

    def clear(self) -> None:
        """A new life begins: nothing of the old one is there."""
        self.live.clear()
        self.starting.clear()
        self._wishes.clear()
        self._wishes_of.clear()

    def _end_wish(self, sandbox: str) -> None:
        rollout = self._wishes.pop(sandbox, None)
        if rollout is not None:
            wishes = self._wishes_of[rollout]
            wishes.discard(sandbox)
            if not wishes:
                del self._wishes_of[rollout]
