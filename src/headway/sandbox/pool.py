"""A pool over any provider: sandboxes made ahead, and a line of starts with priorities and a rate.

It is a SandboxProvider itself. `create` hands out one that is ready, or starts one; either way the sandbox
that it returns has started, so that its start is known and no command waits for it. `run` keeps some ready.

Consumes creations and endings as calls. A creation waits for its turn in the line of starts (starts.py),
each of which ends within its own limit (`start_timeout_s`), and, where every place is taken by what is being
made ahead, for that. `run` waits for any of these changes, or a second, until `close`.

Invariants: what is handed out and what is ready never exceed `max_live` together; a sandbox is handed out
once; one that died while it was ready is not; a creation that fails or is cancelled leaves nothing.
Who may have a sandbox at all is the scheduler's to decide, and so is when to ask again after a refusal: the
pool passes SandboxRefusedError on, but for places that its own ready sandboxes take.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError, SandboxRefusedError
from headway.core.protocols import Sandbox
from headway.sandbox.leases import RENEW_EVERY_S
from headway.sandbox.starts import REFILL, ROLLOUT, VERIFY, StartLine
from headway.sandbox.warmth import Warmth

if TYPE_CHECKING:
    from headway.core.protocols import Guarantee, SandboxProvider
    from headway.sandbox.leases import LeaseBook

IMAGE, PURPOSE, RUN = "image", "purpose", "run"  # labels that the pool reads
_LOOK_EVERY_S = 1.0  # demand falls with time alone
_MAX_BACKOFF_S = 30.0  # of refills that fail
_numbers = itertools.count()  # of sandboxes made ahead in this process


@runtime_checkable
class _Lazy(Protocol):
    async def prepare(self) -> None: ...


@dataclass(slots=True)
class _Ready:
    """A sandbox that nobody has used."""

    inner_id: str
    inner: Sandbox


@dataclass(slots=True)
class PoolStats:
    """A pool at one moment, and its totals."""

    num_out: int = 0  # handed out, or being made for somebody
    num_ready: int = 0
    num_filling: int = 0  # being made ahead
    num_waiting: int = 0  # in the line of starts
    num_warm: int = 0  # creations served by one that was ready
    num_cold: int = 0  # creations that started one
    num_dead: int = 0  # found dead before they were handed out
    refill_error: str = ""  # why the last refill failed, "" when it did not


@dataclass(slots=True)
class _Image:
    """What is kept of one image."""

    warmth: Warmth
    ready: list[_Ready] = field(default_factory=list[_Ready])
    num_filling: int = 0


class PooledProvider:
    """A provider whose sandboxes start in line, some of them ahead.

    Args:
        inner: what makes the sandboxes.
        max_live: sandboxes that may exist at once, ready ones included.
        max_starting: starts at once.
        max_starts_per_s: starts a second, 0 for no limit.
        warm: most that are kept ready, of all images; 0 keeps none, and `run` has nothing to do.
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
        self._inner = inner
        self.snapshots = inner.snapshots
        self._max_live = max_live
        self._warm = warm
        self._run_id = run_id
        self._book = book
        self._renewed_s = clock()
        self._clock = clock
        self._out: dict[str, PooledSandbox | None] = {}  # None while it is being made
        self._images: dict[str, _Image] = {}
        self._image("")  # what a run begins with is of no image of its own
        self._line = StartLine(max_starting, max_starts_per_s)
        self._tickets = itertools.count()
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._bell = asyncio.Event()
        self._closing = False
        self._num_ending = 0  # of those that were ready
        self._backoff_s = 0.0
        self._refill_at = float("-inf")
        self._stats = PoolStats()

    # --- SandboxProvider

    async def preflight(self) -> list[Guarantee]:
        """Say what the provider promises here; see `SandboxProvider`."""
        return await self._inner.preflight()

    async def create(self, sandbox_id: str, labels: Mapping[str, str]) -> Sandbox:
        """Hand out a sandbox that has started. Labels `purpose`, `image` and `run` are read.

        Raises SandboxError when its start fails, SandboxRefusedError when the provider makes no further one.
        """
        image = self._image(labels.get(IMAGE, ""))
        with self._claimed(sandbox_id):
            image.warmth.asked(self._clock())
            while (ready := await self._take(image)) is None and self._total > self._max_live:
                if not await self._give_place():
                    break
            if ready is not None:
                self._stats.num_warm += 1
                inner, inner_id = ready.inner, ready.inner_id
            else:
                self._stats.num_cold += 1
                inner, inner_id = await self._made(sandbox_id, labels), sandbox_id
            made = self._handed(PooledSandbox(sandbox_id, labels, inner, inner_id, self, ready is not None))
        self._ring()
        return made

    async def restore(self, sandbox_id: str, labels: Mapping[str, str], path: Path) -> Sandbox:
        """Start a sandbox from a snapshot, in line with the others; see `SandboxProvider`."""
        with self._claimed(sandbox_id):
            while self._total > self._max_live and await self._give_place():
                pass
            inner = await self._start(
                sandbox_id, labels, _priority(labels), lambda: self._inner.restore(sandbox_id, labels, path)
            )
            return self._handed(PooledSandbox(sandbox_id, labels, inner, sandbox_id, self, warm=False))

    async def alive(self, sandbox_id: str) -> bool:
        """Say whether a sandbox still has what was done in it."""
        return await self._inner.alive(self._inner_id(sandbox_id))

    async def snapshot(self, sandbox_id: str, path: Path) -> None:
        """Copy a sandbox's state; see `SandboxProvider`."""
        await self._inner.snapshot(self._inner_id(sandbox_id), path)

    async def discard(self, path: Path) -> None:
        """Remove a snapshot; idempotent."""
        await self._inner.discard(path)

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
            return await self._inner.end(sandbox_id, labels)
        await sandbox.terminate()
        return True

    async def reap(self, run_id: str) -> int:
        """End every sandbox of a run, this process's or a dead one's; return how many."""
        mine = [sandbox for sandbox in self._out.values() if sandbox is not None]
        mine = [sandbox for sandbox in mine if sandbox.has({RUN: run_id})]
        for sandbox in mine:
            await sandbox.terminate()
        if run_id == self._run_id:
            await self._end_ready()
        return len(mine) + await self._inner.reap(run_id)

    # --- the pool

    @property
    def inner(self) -> SandboxProvider:
        """What makes the sandboxes."""
        return self._inner

    def stats(self) -> PoolStats:
        """Return a copy of the counts."""
        stats, images = self._stats, self._images.values()
        stats.num_out, stats.num_waiting = len(self._out), self._line.num_waiting
        stats.num_ready = sum(len(image.ready) for image in images)
        stats.num_filling = sum(image.num_filling for image in images)
        return PoolStats(**{name: getattr(stats, name) for name in PoolStats.__slots__})

    async def run(self) -> None:
        """Keep sandboxes ready until `close`; then end those that nobody got."""
        try:
            async with asyncio.TaskGroup() as group:
                fills: set[asyncio.Task[None]] = set()
                while not self._closing:
                    bell = self._bell
                    for name in self._wanted():
                        self._images[name].num_filling += 1
                        fill = group.create_task(self._fill(name))
                        fills.add(fill)
                        fill.add_done_callback(fills.discard)
                    await self._end_surplus()
                    self._renew()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_EVERY_S):
                            await bell.wait()
                for fill in fills:
                    fill.cancel()
        finally:
            await self._end_ready()

    def close(self) -> None:
        """Let `run` end. Sandboxes can still be created and ended."""
        self._closing = True
        self._ring()

    async def give_back(self, sandbox: PooledSandbox, inner: Sandbox) -> None:
        """Called by a sandbox that is to end."""
        await inner.terminate()
        self._ended(sandbox.inner_id)
        if self._out.get(sandbox.id) is sandbox:
            del self._out[sandbox.id]
            self._ring()

    # --- places

    @property
    def _total(self) -> int:
        images = self._images.values()
        return (
            len(self._out) + self._num_ending + sum(len(image.ready) + image.num_filling for image in images)
        )

    @contextlib.contextmanager
    def _claimed(self, sandbox_id: str) -> Any:
        """Hold a place under a new id, and give it back when no sandbox takes it."""
        if sandbox_id in self._out:
            raise SandboxError("a sandbox id must be new", value=sandbox_id)
        self._out[sandbox_id] = None
        try:
            yield
        finally:
            if self._out[sandbox_id] is None:
                del self._out[sandbox_id]
                self._ring()

    async def _give_place(self) -> bool:
        """End a sandbox that is ready, or wait for one that will be or that ends; False without any."""
        bell = self._bell
        for image in self._images.values():
            if image.ready:
                await self._discard(image.ready.pop(0))
                return True
        if self._num_ending or any(image.num_filling for image in self._images.values()):
            await bell.wait()
            return True
        return False

    def _handed(self, sandbox: PooledSandbox) -> Sandbox:
        self._out[sandbox.id] = sandbox
        if self._book is not None:
            self._book.started(sandbox.inner_id, sandbox.id)
        return cast("Sandbox", sandbox)  # what it lacks, __getattr__ has

    def _ended(self, inner_id: str) -> None:
        if self._book is not None:
            self._book.end(inner_id)

    def _inner_id(self, sandbox_id: str) -> str:
        sandbox = self._out.get(sandbox_id)
        return sandbox_id if sandbox is None else sandbox.inner_id

    def _image(self, name: str) -> _Image:
        if name not in self._images:
            self._images[name] = _Image(Warmth(self._warm))
        return self._images[name]

    def _ring(self) -> None:
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    # --- starts

    async def _made(self, sandbox_id: str, labels: Mapping[str, str]) -> Sandbox:
        """Start a sandbox for somebody; what is ready gives way where the provider has no place for it."""
        while True:
            try:
                return await self._start(
                    sandbox_id, labels, _priority(labels), lambda: self._inner.create(sandbox_id, labels)
                )
            except SandboxRefusedError:
                if not any(image.ready for image in self._images.values()):
                    raise
                await self._give_place()

    async def _start(
        self,
        inner_id: str,
        labels: Mapping[str, str],
        priority: int,
        make: Callable[[], Awaitable[Sandbox]],
    ) -> Sandbox:
        """Make a sandbox when it is its turn, and see it started; its lease is written before."""
        async with self._turn(priority):
            if self._book is not None:
                self._book.begin(inner_id, labels)
            try:
                return await self._started(make)
            except BaseException:
                self._ended(inner_id)
                raise

    async def _started(self, make: Callable[[], Awaitable[Sandbox]]) -> Sandbox:
        inner = await make()
        if isinstance(inner, _Lazy):
            try:
                await inner.prepare()
            except BaseException:
                await _surely_ended(inner)
                raise
        return inner

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
            if not self._turns[ticket].done():  # cancelled, and about to leave
                self._turns[ticket].set_result(None)
        due_s = self._line.due_s(now)
        if due_s is not None:
            self._timer = asyncio.get_running_loop().call_later(due_s, self._begin)

    # --- what is made ahead

    async def _take(self, image: _Image) -> _Ready | None:
        """Return the newest of those that are ready and live."""
        while image.ready:
            ready = image.ready.pop()
            try:
                alive = await self._inner.alive(ready.inner_id)
            except SandboxError:
                alive = False
            except BaseException:
                image.ready.append(ready)
                raise
            if alive:
                return ready
            self._stats.num_dead += 1
            await self._discard(ready)
        return None

    def _wanted(self) -> list[str]:
        """Return the images of which one more is to be made now, each as often as one is missing."""
        now = self._clock()
        if self._closing or now < self._refill_at:
            return []
        num_ahead = sum(len(image.ready) + image.num_filling for image in self._images.values())
        room = min(self._max_live - self._total, self._warm - num_ahead)
        wanted: list[str] = []
        for name, image in self._images.items():
            missing = image.warmth.target(now) - len(image.ready) - image.num_filling
            num = max(0, min(missing, room - len(wanted)))
            wanted += [name] * num
        return wanted

    async def _fill(self, name: str) -> None:
        inner_id = f"warm-{os.getpid()}-{next(_numbers)}"
        labels = {RUN: self._run_id, PURPOSE: "warm"} | ({IMAGE: name} if name else {})
        image = self._images[name]
        try:
            inner = await self._start(inner_id, labels, REFILL, lambda: self._inner.create(inner_id, labels))
        except (SandboxError, OSError) as error:
            self._stats.refill_error = str(error)
            asked_s = error.retry_after_s if isinstance(error, SandboxRefusedError) else 0.0
            self._backoff_s = max(asked_s, min(_MAX_BACKOFF_S, 2 * self._backoff_s or 1.0))
            self._refill_at = self._clock() + self._backoff_s
        else:
            image.ready.append(_Ready(inner_id, inner))
            if self._book is not None:
                self._book.started(inner_id)
            self._stats.refill_error, self._backoff_s = "", 0.0
        finally:
            image.num_filling -= 1
            self._ring()

    def _renew(self) -> None:
        if self._book is not None and self._clock() - self._renewed_s >= RENEW_EVERY_S:
            self._renewed_s = self._clock()
            self._book.renew()

    async def _end_surplus(self) -> None:
        """End what the demand of late does not ask for, the oldest first."""
        now = self._clock()
        for image in list(self._images.values()):
            while len(image.ready) > image.warmth.target(now):
                await self._discard(image.ready.pop(0))

    async def _end_ready(self) -> None:
        for image in list(self._images.values()):
            while image.ready:
                await self._discard(image.ready.pop(0))

    async def _discard(self, ready: _Ready) -> None:
        """End a sandbox that nobody has; that it cannot be ended is for `reap`, and harms no rollout."""
        self._num_ending += 1
        try:
            with contextlib.suppress(SandboxError, OSError):
                await _surely_ended(ready.inner)
                self._ended(ready.inner_id)
        finally:
            self._num_ending -= 1
            self._ring()


class PooledSandbox:
    """A sandbox of a pool, under the id that it was asked for with; all else is its provider's."""

    def __init__(
        self,
        sandbox_id: str,
        labels: Mapping[str, str],
        inner: Sandbox,
        inner_id: str,
        pool: PooledProvider,
        warm: bool,
    ) -> None:
        self._id = sandbox_id
        self._labels = dict(labels)
        self._inner = inner
        self._pool = pool
        self.inner_id = inner_id
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


def _priority(labels: Mapping[str, str]) -> int:
    return VERIFY if labels.get(PURPOSE) == "verify" else ROLLOUT


async def _surely_ended(sandbox: Sandbox) -> None:
    """End a sandbox even if the caller is cancelled meanwhile: ending is idempotent, so it begins again."""
    try:
        await sandbox.terminate()
    except asyncio.CancelledError:
        with contextlib.suppress(SandboxError, OSError):  # being cancelled is what the caller is to know
            await _surely_ended(sandbox)
        raise
