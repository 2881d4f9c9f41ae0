"""A pool over any provider: sandboxes made ahead, and a line of starts with priorities and a rate.

It is a SandboxProvider itself. `create` hands out one that is ready, or starts one; either way the sandbox
that it returns has started, so that its start is known and no command waits for it. `run` keeps some ready.

Consumes creations and endings as calls. A creation waits for its turn in the line of starts (starter.py),
and, where every place is taken by what is being made ahead (stock.py), for that.

Invariants: what is handed out and what is ready never exceed `max_live` together; a sandbox is handed out
once; one that died while it was ready is not; a creation that fails or is cancelled leaves nothing.
Who may have a sandbox at all is the scheduler's to decide, and so is when to ask again after a refusal: the
pool passes SandboxRefusedError on, but for places that its own ready sandboxes take.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError, SandboxRefusedError, SandboxUnavailableError
from headway.sandbox.starter import Bell, Starter
from headway.sandbox.starts import ROLLOUT, VERIFY, StartLine
from headway.sandbox.stock import Ready, Stock
from headway.sandbox.whole import whole

if TYPE_CHECKING:
    from headway.core.protocols import Guarantee, Sandbox, SandboxProvider
    from headway.sandbox.leases import LeaseBook


@runtime_checkable
class _Probing(Protocol):
    """A provider whose preflight makes one sandbox."""

    @property
    def probe(self) -> tuple[str, dict[str, str]]:
        """Its id and labels."""
        ...


@dataclass(frozen=True, slots=True)
class PoolStats:
    """A pool at one moment, and its totals."""

    num_out: int  # handed out, or being made for somebody
    num_ready: int
    num_filling: int  # being made ahead
    num_waiting: int  # in the line of starts
    num_warm: int  # creations served by one that was ready
    num_cold: int  # creations that started one
    num_dead: int  # found dead before they were handed out
    num_unsure: int  # whose end failed, and that may still live
    refill_error: str  # why the last refill failed, "" when it did not


class PooledProvider:
    """A provider whose sandboxes start in line, some of them ahead.

    Args:
        inner: what makes the sandboxes.
        max_live: sandboxes that may exist at once, ready ones included.
        max_starting: starts at once.
        max_starts_per_s: starts a second, 0 for no limit.
        warm: most that are kept ready, of all images; 0 keeps none.
        run_id: label of what is made ahead.
        book: where its sandboxes are written down for whoever comes after this process.
        clock: seconds, never falling.
    """

    def __init__(
        self,
        inner: SandboxProvider,
        *,
        max_live: int,
        max_starting: int = 16,
        max_starts_per_s: float = 0.0,
        warm: int = 0,
        run_id: str = "none",
        book: LeaseBook | None = None,
        clock: Callable[[], float] = stopwatch,
    ) -> None:
        self.inner = inner
        self.snapshots = inner.snapshots
        self.spawns: bool = inner.spawns
        self.pauses: bool = inner.pauses
        self._max_live = max_live
        self.run_id = run_id
        self._out: dict[str, PooledSandbox | None] = {}  # None while it is being made
        self._bell = Bell()
        self._book = book
        self._starter = Starter(inner, StartLine(max_starting, max_starts_per_s), clock, book)
        self.stock = Stock(
            inner, self._starter, self._bell, warm=warm, run_id=run_id, room=lambda: self._room, clock=clock
        )
        self._num_warm = self._num_cold = 0
        self._probing = asyncio.Lock()

    async def preflight(self) -> list[Guarantee]:
        """Say what the provider promises here; see `SandboxProvider`. Its probe has a lease as well."""
        if self._book is None or not isinstance(self.inner, _Probing):
            return await self.inner.preflight()
        async with self._probing:  # all of one provider have one id
            probe_id, labels = self.inner.probe
            self._book.begin(probe_id, labels)
            try:
                found = await self.inner.preflight()
            except SandboxUnavailableError:  # there is nothing that could have made one
                self._book.end(probe_id)
                raise
            except BaseException:
                await whole(self._starter.undo(probe_id, labels))
                raise
            self._book.end(probe_id)
            return found

    async def create(self, sandbox_id: str, labels: Mapping[str, str]) -> Sandbox:
        """Hand out a sandbox that has started. Labels `purpose`, `image` and `run` are read.

        Raises SandboxError when its start fails, SandboxRefusedError when the provider makes no further one.
        """
        image = labels.get("image", "")
        with self._claimed(sandbox_id):
            self.stock.asked(image)
            while (ready := await self.stock.take(image)) is None and self._room < 0:
                if not await self.stock.give_place():
                    break
            if ready is not None:
                return self._warm(sandbox_id, labels, ready)
            return await self._cold(sandbox_id, labels, lambda inner_id: self.inner.create(inner_id, labels))

    async def restore(self, sandbox_id: str, labels: Mapping[str, str], store: Path, digest: str) -> Sandbox:
        """Hand out a sandbox in the state of a snapshot, a ready one brought to it; see `SandboxProvider`."""
        with self._claimed(sandbox_id):
            ready = await self.stock.take(labels.get("image", ""))
            if ready is not None:
                try:
                    await self.inner.reset(ready.inner_id, store, digest)
                except BaseException:
                    await self.stock.drop(ready)
                    raise
                return self._warm(sandbox_id, labels, ready)
            return await self._cold(
                sandbox_id, labels, lambda inner_id: self.inner.restore(inner_id, labels, store, digest)
            )

    async def fork(self, sandbox_id: str, new_id: str, labels: Mapping[str, str]) -> Sandbox:
        """Start a sandbox in the state of a live one, in line with the others; see `SandboxProvider`."""
        source = self._inner_id(sandbox_id)
        with self._claimed(new_id):
            return await self._cold(
                new_id, labels, lambda inner_id: self.inner.fork(source, inner_id, labels)
            )

    async def alive(self, sandbox_id: str) -> bool:
        """Say whether a sandbox still has what was done in it."""
        return await self.inner.alive(self._inner_id(sandbox_id))

    async def snapshot(self, sandbox_id: str, store: Path, labels: Mapping[str, str]) -> str:
        """Put a sandbox's state into a store; see `SandboxProvider`."""
        return await self.inner.snapshot(self._inner_id(sandbox_id), store, labels)

    async def reset(self, sandbox_id: str, store: Path, digest: str) -> None:
        """Bring a live sandbox to the state of a snapshot; see `SandboxProvider`."""
        await self.inner.reset(self._inner_id(sandbox_id), store, digest)

    async def discard(self, store: Path, digest: str) -> None:
        """Remove a snapshot; idempotent."""
        await self.inner.discard(store, digest)

    async def list(self, labels: Mapping[str, str]) -> list[str]:
        """Return ids of the sandboxes that are handed out and whose labels include these."""
        return [
            sandbox_id
            for sandbox_id, sandbox in self._out.items()
            if sandbox is not None and sandbox.has(labels)
        ]

    async def end(self, sandbox_id: str, labels: Mapping[str, str]) -> bool:
        """End one sandbox, this process's or a dead one's; see `SandboxProvider`."""
        sandbox = self._out.get(sandbox_id)
        if sandbox is None:
            return await self.inner.end(sandbox_id, labels)
        await sandbox.terminate()
        return True

    async def reap(self, run_id: str) -> int:
        """End every sandbox of a run, this process's or a dead one's; return how many."""
        mine = [sandbox for sandbox in self._out.values() if sandbox is not None]
        mine = [sandbox for sandbox in mine if sandbox.has({"run": run_id})]
        failures: list[Exception] = []
        for sandbox in mine:
            try:
                await sandbox.terminate()
            except (SandboxError, OSError) as error:  # the others are to go all the same
                failures.append(error)
        if run_id == self.run_id:
            await self.stock.end_all()
        num_others = await self.inner.reap(run_id)
        if failures:
            raise failures[0]
        return len(mine) + num_others

    def stats(self) -> PoolStats:
        """Return the counts now."""
        stock = self.stock
        return PoolStats(
            num_out=len(self._out),
            num_ready=stock.num_ready,
            num_filling=stock.num_filling,
            num_waiting=self._starter.num_waiting,
            num_warm=self._num_warm,
            num_cold=self._num_cold,
            num_dead=stock.num_dead,
            num_unsure=self._starter.num_unsure,
            refill_error=stock.refill_error,
        )

    async def run(self) -> None:
        """Keep sandboxes ready until `close`; then end those that nobody got, and those that did not end."""
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(self._starter.keep_ending())
            await self.stock.run()
            ending.cancel()
        await self._starter.end_unsure()

    def close(self) -> None:
        """Let `run` end. Sandboxes can still be created and ended."""
        self.stock.close()

    async def give_back(self, sandbox: PooledSandbox, inner: Sandbox) -> None:
        """Called by a sandbox that is to end; its place is free even when that fails."""
        try:
            await self._starter.end(sandbox.inner_id, sandbox.inner_labels, inner)
        finally:
            if self._out.get(sandbox.id) is sandbox:
                del self._out[sandbox.id]
                self._bell.ring()

    @property
    def _room(self) -> int:
        """How many more sandboxes may exist; below 0, somebody waits for a place."""
        return self._max_live - len(self._out) - self.stock.num_held

    @contextlib.contextmanager
    def _claimed(self, sandbox_id: str) -> Generator[None]:
        """Hold a place under a new id, and give it back when no sandbox takes it."""
        if sandbox_id in self._out:
            raise SandboxError("a sandbox id must be new", value=sandbox_id)
        self._out[sandbox_id] = None
        try:
            yield
        finally:
            if self._out[sandbox_id] is None:
                del self._out[sandbox_id]
            self._bell.ring()

    def _warm(self, sandbox_id: str, labels: Mapping[str, str], ready: Ready) -> Sandbox:
        self._num_warm += 1
        of = (ready.inner, ready.inner_id, ready.labels)
        return self._handed(PooledSandbox(sandbox_id, labels, *of, self, warm=True))

    async def _cold(
        self, sandbox_id: str, labels: Mapping[str, str], make: Callable[[str], Awaitable[Sandbox]]
    ) -> Sandbox:
        """Start a sandbox and hand it out; what is ready gives way where there is no place for it."""
        priority = VERIFY if labels.get("purpose") == "verify" else ROLLOUT
        while self._room < 0 and await self.stock.give_place():
            pass
        while True:
            try:
                inner_id = self._starter.free_id(sandbox_id)
                inner = await self._starter.start(
                    inner_id, labels, priority, functools.partial(make, inner_id)
                )
                break
            except SandboxRefusedError:
                if not self.stock.num_ready:
                    raise
                await self.stock.give_place()
        self._num_cold += 1
        return self._handed(PooledSandbox(sandbox_id, labels, inner, inner_id, labels, self, warm=False))

    def _handed(self, sandbox: PooledSandbox) -> Sandbox:
        self._out[sandbox.id] = sandbox
        self._starter.handed(sandbox.inner_id, sandbox.id)
        return cast("Sandbox", sandbox)  # what it lacks, __getattr__ has

    def _inner_id(self, sandbox_id: str) -> str:
        sandbox = self._out.get(sandbox_id)
        return sandbox_id if sandbox is None else sandbox.inner_id


class PooledSandbox:
    """A sandbox of a pool, under the id that it was asked for with; all else is its provider's."""

    def __init__(
        self,
        sandbox_id: str,
        labels: Mapping[str, str],
        inner: Sandbox,
        inner_id: str,
        inner_labels: Mapping[str, str],
        pool: PooledProvider,
        *,
        warm: bool,
    ) -> None:
        self._id = sandbox_id
        self._labels = dict(labels)
        self._inner = inner
        self._pool = pool
        self.inner_id = inner_id
        self.inner_labels = inner_labels  # that its provider made it with
        self.warm = warm  # whether it was ready before it was asked for

    @property
    def id(self) -> str:
        """The id that was chosen before creation."""
        return self._id

    def has(self, labels: Mapping[str, str]) -> bool:
        """Say whether its labels include these."""
        return all(self._labels.get(key) == value for key, value in labels.items())

    async def terminate(self) -> None:
        """End it and give its place back; idempotent."""
        await self._pool.give_back(self, self._inner)

    def __getattr__(self, name: str) -> Any:
        """Return what its provider's sandboxes have under this name."""
        if name == "_inner":  # it is being made
            raise AttributeError(name)
        return getattr(self._inner, name)
