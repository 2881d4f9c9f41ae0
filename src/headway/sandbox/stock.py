"""Sandboxes made ahead, by image: as many as the demand of late, none that died, none too many.

Consumes what is asked for. `run` makes what is missing and ends what is too many; it waits for the bell, or a
second, until `close`. What it makes stands at the end of the line of starts, and a provider that refuses or
fails is left alone for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.errors import SandboxError, SandboxRefusedError
from headway.core.protocols import Sandbox
from headway.sandbox.starts import REFILL
from headway.sandbox.warmth import Warmth
from headway.sandbox.whole import whole

if TYPE_CHECKING:
    from headway.core.protocols import SandboxProvider
    from headway.sandbox.starter import Bell, Starter

_LOOK_EVERY_S = 1.0  # demand falls with time alone
_MAX_BACKOFF_S = 30.0  # of refills that fail
_numbers = itertools.count()  # of sandboxes made ahead in this process


@dataclass(slots=True)
class Ready:
    """A sandbox that nobody has used."""

    inner_id: str
    inner: Sandbox
    labels: dict[str, str]


@dataclass(slots=True)
class Shelf:
    """What is kept of one image."""

    warmth: Warmth
    ready: list[Ready] = field(default_factory=list[Ready])
    num_filling: int = 0


class Stock:
    """What is ready.

    Args:
        inner: what makes the sandboxes.
        starter: starts them in their turn.
        bell: rung at every change.
        warm: most that are kept ready, of all images together.
        run_id: their label.
        room: returns how many more sandboxes may exist now.
        clock: seconds, never falling.
    """

    def __init__(
        self,
        inner: SandboxProvider,
        starter: Starter,
        bell: Bell,
        *,
        warm: int,
        run_id: str,
        room: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        self._inner = inner
        self._starter = starter
        self._bell = bell
        self._warm = warm
        self._run_id = run_id
        self._room = room
        self._clock = clock
        self._closing = False
        self._backoff_s = 0.0
        self._refill_at = float("-inf")
        self._num_ending = 0
        self.num_dead = 0  # found dead before somebody got them
        self.refill_error = ""  # why the last refill failed, "" when it did not
        self.shelves: dict[str, Shelf] = {}
        self._shelf("")  # what a run begins with is of no image of its own

    @property
    def num_ready(self) -> int:
        """Sandboxes that can be had at once."""
        return sum(len(shelf.ready) for shelf in self.shelves.values())

    @property
    def num_filling(self) -> int:
        """Sandboxes that are being made ahead."""
        return sum(shelf.num_filling for shelf in self.shelves.values())

    @property
    def num_held(self) -> int:
        """Sandboxes that exist, or are about to, and that nobody has."""
        return self.num_ready + self.num_filling + self._num_ending

    def asked(self, image: str) -> None:
        """Somebody wants one."""
        self._shelf(image).warmth.asked(self._clock())

    async def take(self, image: str) -> Ready | None:
        """Return the newest of those that are ready and live; None without any."""
        ready_ones = self._shelf(image).ready
        while ready_ones:
            ready = ready_ones.pop()
            try:
                alive = await self._inner.alive(ready.inner_id)
            except SandboxError:
                alive = False
            except BaseException:
                ready_ones.append(ready)
                raise
            if alive:
                return ready
            self.num_dead += 1
            await self.drop(ready)
        return None

    async def give_place(self) -> bool:
        """End one that is ready, or wait for one that will be or that ends; False without any."""
        change = self._bell.next
        for shelf in self.shelves.values():
            if shelf.ready:
                await self.drop(shelf.ready.pop(0))
                return True
        if self.num_held:
            await change.wait()
            return True
        return False

    async def run(self) -> None:
        """Keep sandboxes ready until `close`; then end those that nobody got."""
        try:
            async with asyncio.TaskGroup() as group:
                fills: set[asyncio.Task[None]] = set()
                while not self._closing:
                    change = self._bell.next
                    for name in self._missing():
                        self.shelves[name].num_filling += 1
                        fill = group.create_task(self._fill(name))
                        fills.add(fill)
                        fill.add_done_callback(fills.discard)
                    await self._end_surplus()
                    self._starter.renew()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_EVERY_S):
                            await change.wait()
                for fill in fills:
                    fill.cancel()
        finally:
            await self.end_all()

    def close(self) -> None:
        """Let `run` end."""
        self._closing = True
        self._bell.ring()

    async def end_all(self) -> None:
        """End everything that is ready."""
        for shelf in list(self.shelves.values()):
            while shelf.ready:
                await self.drop(shelf.ready.pop(0))

    async def drop(self, ready: Ready) -> None:
        """End one that nobody has; the starter tries again where that fails, and no rollout waits for it."""
        self._num_ending += 1
        try:
            with contextlib.suppress(SandboxError, OSError):
                await whole(self._starter.end(ready.inner_id, ready.labels, ready.inner))
        finally:
            self._num_ending -= 1
            self._bell.ring()

    def _shelf(self, image: str) -> Shelf:
        if image not in self.shelves:
            self.shelves[image] = Shelf(Warmth(self._warm))
        return self.shelves[image]

    def _missing(self) -> list[str]:
        """Return the images of which one more is to be made now, each as often as one is missing."""
        now = self._clock()
        if self._closing or now < self._refill_at:
            return []
        room = min(self._room(), self._warm - self.num_ready - self.num_filling)
        names: list[str] = []
        for name, shelf in self.shelves.items():
            missing = shelf.warmth.target(now) - len(shelf.ready) - shelf.num_filling
            names += [name] * max(0, min(missing, room - len(names)))
        return names

    async def _fill(self, name: str) -> None:
        inner_id = f"warm-{os.getpid()}-{next(_numbers)}"
        labels = {"run": self._run_id, "purpose": "warm"} | ({"image": name} if name else {})
        shelf = self.shelves[name]
        try:
            inner = await self._starter.start(
                inner_id, labels, REFILL, lambda: self._inner.create(inner_id, labels)
            )
        except (SandboxError, OSError) as error:
            self.refill_error = str(error)
            asked_s = error.retry_after_s if isinstance(error, SandboxRefusedError) else 0.0
            self._backoff_s = max(asked_s, min(_MAX_BACKOFF_S, 2 * self._backoff_s or 1.0))
            self._refill_at = self._clock() + self._backoff_s
        else:
            shelf.ready.append(Ready(inner_id, inner, labels))
            self._starter.handed(inner_id, "")
            self.refill_error, self._backoff_s = "", 0.0
        finally:
            shelf.num_filling -= 1
            self._bell.ring()

    async def _end_surplus(self) -> None:
        """End what the demand of late does not ask for, the oldest first."""
        now = self._clock()
        for shelf in list(self.shelves.values()):
            while len(shelf.ready) > shelf.warmth.target(now):
                await self.drop(shelf.ready.pop(0))
