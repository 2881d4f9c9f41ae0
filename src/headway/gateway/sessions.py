"""The rollouts that are served, each behind a secret key of its own."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING

from headway.gateway.faults import ended, unknown_key

if TYPE_CHECKING:
    from headway.core.protocols import Completion, Completions
    from headway.gateway.http import Request

_MAX_AT_ONCE = 64  # requests of one session that are asked of the policy; more wait
_MAX_UNDELIVERED = 8  # answers of one session that no client took
_MAX_ENDED = 10_000  # sessions whose end is remembered


class Session:
    """One rollout."""

    __slots__ = ("_undelivered", "completions", "key", "name", "places", "tasks", "why")

    def __init__(self, completions: Completions, name: str) -> None:
        self.completions = completions
        self.name = name
        self.key = f"hw-{secrets.token_urlsafe(24)}"
        self.why = ""  # it has ended
        self.tasks: set[asyncio.Task[Completion | Exception]] = set()  # answers that are awaited
        self.places = asyncio.Semaphore(_MAX_AT_ONCE)
        self._undelivered: OrderedDict[bytes, Completion] | None = None

    async def end(self, why: str) -> None:
        """Cut off what is awaited, and wait until that is gone."""
        self.why = why
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks)

    def keep(self, asked: bytes, done: Completion) -> None:
        """Keep an answer whose client had left, for the client that asks the same again."""
        if self._undelivered is None:
            self._undelivered = OrderedDict()
        self._undelivered[asked] = done
        if len(self._undelivered) > _MAX_UNDELIVERED:
            self._undelivered.popitem(last=False)

    def kept(self, asked: bytes) -> Completion | None:
        """Return the answer that such a request left behind, once."""
        return None if self._undelivered is None else self._undelivered.pop(asked, None)


class Sessions:
    """Those that are open, by key, and why others have ended."""

    def __init__(self) -> None:
        self._open: dict[str, Session] = {}
        self._ended: OrderedDict[str, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, session: Session) -> None:
        """Open one."""
        self._open[session.key] = session

    async def end(self, key: str, why: str) -> None:
        """End one; idempotent."""
        session = self._open.pop(key, None)
        if session is not None:
            self._ended[key] = why
            if len(self._ended) > _MAX_ENDED:
                self._ended.popitem(last=False)
            await session.end(why)

    def of(self, request: Request) -> Session:
        """Return the session that a request's key opens.

        Raises ApiError for one that has ended, or is none.
        """
        given = request.headers.get("x-session") or request.headers.get("authorization", "")
        key = given[7:].strip() if given[:7].lower() == "bearer " else given.strip()
        if (session := self._open.get(key)) is not None:
            return session
        if (why := self._ended.get(key)) is not None:
            raise ended(why)
        raise unknown_key()
