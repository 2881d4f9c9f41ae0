"""What sandboxes with long-lived processes have in common: those by name, and how they stand still."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from headway.core.errors import SandboxError
from headway.sandbox.store import Index
from headway.sandbox.whole import whole

if TYPE_CHECKING:
    from headway.core.protocols import Polled


class LongLivedProcess(Protocol):
    """One long-lived process; a start that fails has ended it."""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        ...

    async def start(self) -> None:
        """Start it. Raises SandboxError when it could not be started."""
        ...

    async def poll(self) -> Polled:
        """Say how it is, and what it wrote since the last call."""
        ...

    async def kill(self) -> None:
        """End it and what it started; idempotent."""
        ...


P = TypeVar("P", bound=LongLivedProcess)


class SpawningSandbox(Generic[P]):
    """Keeps a sandbox's long-lived processes; a subclass starts, pauses and resumes them."""

    def __init__(self) -> None:
        self._index = Index()
        self._stillness = asyncio.Lock()  # while it is held, no long-lived process begins
        self._terminated = False
        self._paused = False
        self._spawned: dict[str, P] = {}

    async def pause(self) -> None:
        """Stop every process; idempotent."""
        raise NotImplementedError

    async def resume(self) -> None:
        """Let every process go on; idempotent."""
        raise NotImplementedError

    async def poll(self, name: str) -> Polled:
        """Say how a long-lived process is, and what it wrote since the last poll."""
        return await self._process(name).poll()

    async def kill(self, name: str) -> None:
        """End a long-lived process and what it started; idempotent."""
        await self._process(name).kill()

    async def _begin(self, name: str, make: Callable[[], Awaitable[P]]) -> None:
        """Start what `make` makes; its name is free again when it has ended, or could not be started."""
        async with self._stillness:
            known = self._spawned.get(name)
            if known is not None and known.running:
                raise SandboxError("a long-lived process needs a name that no running one has", value=name)
            if known is not None:
                await known.kill()
            self._spawned[name] = process = await make()
            try:
                await process.start()
            except BaseException:
                self._spawned.pop(name, None)
                raise

    @contextlib.asynccontextmanager
    async def _still(self) -> AsyncGenerator[None]:
        """Let long-lived processes stand still, and nothing of an index be trusted that they may write to."""
        async with self._stillness:
            if self._spawned:
                self._index = Index()
            still = not self._paused and any(process.running for process in self._spawned.values())
            try:
                if still:
                    await whole(self.pause())
                yield
            finally:
                if still and not self._terminated:
                    await whole(self.resume())

    def _process(self, name: str) -> P:
        if name not in self._spawned:
            raise SandboxError("a long-lived process must have been spawned", value=name)
        return self._spawned[name]
