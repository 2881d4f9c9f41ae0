"""Starts sandboxes in their turn, and writes each one down before it is made.

Consumes requests to start; each waits for its turn in the line (starts.py), which comes when another start
has ended or the rate allows, and then for the provider, which has its own limit (`start_timeout_s`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headway.core.errors import SandboxError
from headway.sandbox.leases import RENEW_EVERY_S

if TYPE_CHECKING:
    from headway.core.protocols import Sandbox
    from headway.sandbox.leases import LeaseBook
    from headway.sandbox.starts import StartLine


@runtime_checkable
class _Lazy(Protocol):
    async def prepare(self) -> None: ...


class Bell:
    """Tells everybody who waits that something has changed."""

    def __init__(self) -> None:
        self.next = asyncio.Event()  # set at the next ring; take it before looking at what may change

    def ring(self) -> None:
        """Something has changed."""
        self.next.set()
        self.next = asyncio.Event()


class Starter:
    """Drives a line of starts.

    Args:
        line: whose turn it is.
        clock: seconds, never falling.
        book: where sandboxes are written down; None for nowhere.
    """

    def __init__(self, line: StartLine, clock: Callable[[], float], book: LeaseBook | None) -> None:
        self._line = line
        self._clock = clock
        self._book = book
        self._renewed_s = clock()
        self._tickets = itertools.count()
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def num_waiting(self) -> int:
        """Starts whose turn has not come."""
        return self._line.num_waiting

    async def start(
        self,
        inner_id: str,
        labels: Mapping[str, str],
        priority: int,
        make: Callable[[], Awaitable[Sandbox]],
    ) -> Sandbox:
        """Make a sandbox when it is its turn, and see it started; nothing is left when that fails.

        Raises SandboxError when it does.
        """
        async with self._turn(priority):
            if self._book is not None:
                self._book.begin(inner_id, labels)
            try:
                inner = await make()
                if isinstance(inner, _Lazy):
                    try:
                        await inner.prepare()
                    except BaseException:
                        await surely_ended(inner)
                        raise
            except BaseException:
                self.ended(inner_id)
                raise
            return inner

    def handed(self, inner_id: str, name: str) -> None:
        """Write down that somebody has a sandbox, under this name; "" for one that is ready for somebody."""
        if self._book is not None:
            self._book.started(inner_id, name)

    def ended(self, inner_id: str) -> None:
        """Write down that a sandbox is gone."""
        if self._book is not None:
            self._book.end(inner_id)

    def renew(self) -> None:
        """Renew the leases when that is due."""
        if self._book is not None and self._clock() - self._renewed_s >= RENEW_EVERY_S:
            self._renewed_s = self._clock()
            self._book.renew()

    @contextlib.asynccontextmanager
    async def _turn(self, priority: int) -> AsyncGenerator[None]:
        ticket = next(self._tickets)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns[ticket] = turn
        self._line.ask(ticket, priority)
        self._begin()
        try:
            await turn
            yield
        finally:
            del self._turns[ticket]
            self._line.leave(ticket)
            self._begin()

    def _begin(self) -> None:
        """Let those start whose turn it is, and come back when the rate allows the next."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        for ticket in self._line.begin(now):
            if not self._turns[ticket].done():  # else it was cancelled, and is about to leave
                self._turns[ticket].set_result(None)
        due_s = self._line.due_s(now)
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(due_s, self._begin)


async def surely_ended(sandbox: Sandbox) -> None:
    """End a sandbox even if the caller is cancelled meanwhile: ending is idempotent, so it begins again."""
    try:
        await sandbox.terminate()
    except asyncio.CancelledError:
        with contextlib.suppress(SandboxError, OSError):  # being cancelled is what the caller is to know
            await surely_ended(sandbox)
        raise
