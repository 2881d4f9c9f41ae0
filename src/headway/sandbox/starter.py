"""Starts sandboxes in their turn, and writes each one down before it is made.

Consumes requests to start; each waits for its turn in the line (starts.py), which comes when another start
has ended or the rate allows, and then for the provider, which has its own limit (`start_timeout_s`).

A lease lasts until its sandbox is known to be gone. One whose end fails keeps no place, for nobody waits for
it, but it keeps its lease, and `end_unsure` tries again; what is left then is for a sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headway.core.errors import SandboxError
from headway.sandbox.leases import RENEW_EVERY_S
from headway.sandbox.whole import whole

if TYPE_CHECKING:
    from headway.core.protocols import Sandbox, SandboxProvider
    from headway.sandbox.leases import LeaseBook
    from headway.sandbox.starts import StartLine


_AGAIN_S = 15.0  # between two tries to end what may still live


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
        inner: the provider of what is started.
        line: whose turn it is.
        clock: seconds, never falling.
        book: where sandboxes are written down; None for nowhere.
    """

    def __init__(
        self, inner: SandboxProvider, line: StartLine, clock: Callable[[], float], book: LeaseBook | None
    ) -> None:
        self._inner = inner
        self._unsure: dict[str, Mapping[str, str]] = {}  # what may still live, by id: its labels
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
            self._begin_lease(inner_id, labels)
            try:
                inner = await make()
            except BaseException:
                await whole(self.undo(inner_id, labels))
                raise
            if isinstance(inner, _Lazy):
                try:
                    await inner.prepare()
                except BaseException:
                    await whole(self.undo(inner_id, labels, inner))
                    raise
            return inner

    async def end(self, inner_id: str, labels: Mapping[str, str], sandbox: Sandbox) -> None:
        """End a sandbox, and its lease when it is gone; idempotent.

        Raises what its provider does; it is tried again later.
        """
        try:
            await sandbox.terminate()
        except BaseException:
            self._doubt(inner_id, labels)
            raise
        self.ended(inner_id)

    async def undo(self, inner_id: str, labels: Mapping[str, str], sandbox: Sandbox | None = None) -> None:
        """Remove what a start that failed may have left; why it failed is what its caller is to know."""
        with contextlib.suppress(SandboxError, OSError):
            if sandbox is not None:
                await self.end(inner_id, labels, sandbox)
                return
            self._doubt(inner_id, labels)
            await self._inner.end(inner_id, labels)
            self.ended(inner_id)

    def free_id(self, sandbox_id: str) -> str:
        """Return an id for a new sandbox: this one, unless one that may still live has it."""
        number = 0
        inner_id = sandbox_id
        while inner_id in self._unsure:
            number += 1
            inner_id = f"{sandbox_id}~{number}"
        return inner_id

    @property
    def num_unsure(self) -> int:
        """Sandboxes whose end failed, and that may still live."""
        return len(self._unsure)

    async def end_unsure(self) -> None:
        """Try again to end what may still live."""
        for inner_id, labels in list(self._unsure.items()):
            with contextlib.suppress(SandboxError, OSError):  # there is another time
                await self._inner.end(inner_id, labels)
                self.ended(inner_id)

    async def keep_ending(self) -> None:
        """Try that at times, until it is cancelled."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            await self.end_unsure()

    def _doubt(self, inner_id: str, labels: Mapping[str, str]) -> None:
        self._unsure[inner_id] = labels
        if self._book is not None:
            self._book.ending(inner_id)

    def _begin_lease(self, inner_id: str, labels: Mapping[str, str]) -> None:
        if self._book is not None:
            self._book.begin(inner_id, labels)

    def handed(self, inner_id: str, name: str) -> None:
        """Write down that somebody has a sandbox, under this name; "" for one that is ready for somebody."""
        if self._book is not None:
            self._book.started(inner_id, name)

    def ended(self, inner_id: str) -> None:
        """Write down that a sandbox is gone."""
        self._unsure.pop(inner_id, None)
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
