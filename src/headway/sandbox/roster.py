"""What every provider has in common: its live sandboxes by id, and what is done with a sandbox's state."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from headway.core.errors import SandboxError
from headway.sandbox.store import Store
from headway.sandbox.whole import whole

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings


class Kept(Protocol):
    """A sandbox as a roster knows it, beside what `Sandbox` asks for."""

    labels: dict[str, str]

    @property
    def id(self) -> str:
        """The id that was chosen before creation."""
        ...

    async def intact(self) -> bool:
        """Say whether it still has what was done in it; true where nothing was."""
        ...

    async def take(self, store: Store, labels: Mapping[str, str]) -> str:
        """Put its state into a store; return the digest."""
        ...

    async def put(self, store: Store, digest: str) -> None:
        """Hold what a snapshot does, and nothing else."""
        ...

    async def copy_to(self, other: Self) -> None:
        """Give a new sandbox a copy of its state."""
        ...

    async def terminate(self) -> None:
        """End it; idempotent."""
        ...


S = TypeVar("S", bound=Kept)


class RosterProvider(Generic[S]):
    """Keeps live sandboxes, no more than `sandbox.max_live`; a subclass says what a new one is."""

    snapshots = True
    images = False  # whether a sandbox may be made of the container image that its label names

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._live: dict[str, S] = {}
        self._stores: dict[Path, Store] = {}
        self._probe_id = f"preflight-{uuid.uuid4().hex[:8]}"  # of this provider alone, on whatever machine

    @property
    def probe(self) -> tuple[str, dict[str, str]]:
        """Id and labels of the sandbox that `preflight` makes, one at a time."""
        return self._probe_id, {"run": f"preflight-{os.getpid()}"}

    def new(self, sandbox_id: str, labels: Mapping[str, str]) -> S:
        """Return a sandbox that nothing was made for yet, and that is not live."""
        raise NotImplementedError

    async def create(self, sandbox_id: str, labels: Mapping[str, str]) -> S:
        """Make a sandbox, lazily; label `run` names the run that `reap` would end it with."""
        if sandbox_id in self._live:
            raise SandboxError("a sandbox id must be new", value=sandbox_id)
        if labels.get("image") and not self.images:
            raise SandboxError(
                "a task that has a container image of its own needs containers",
                value=labels["image"],
                remedy='Set sandbox.provider to "podman" or "docker"',
            )
        if len(self._live) >= self._settings.max_live:
            raise SandboxError(
                "sandboxes that live at once must not exceed sandbox.max_live",
                value=len(self._live) + 1,
                remedy=f"max_live is {self._settings.max_live}; whoever grants sandboxes must keep to it",
            )
        sandbox = self.new(sandbox_id, labels)
        self._live[sandbox_id] = sandbox
        return sandbox

    async def alive(self, sandbox_id: str) -> bool:
        """Say whether a sandbox still has what was done in it."""
        sandbox = self._live.get(sandbox_id)
        return sandbox is not None and await sandbox.intact()

    async def snapshot(self, sandbox_id: str, store: Path, labels: Mapping[str, str]) -> str:
        """Store what is in the work folder (trees.py says what is kept of it); see `SandboxProvider`."""
        return await self._of(sandbox_id).take(self._store(store), labels)

    async def restore(self, sandbox_id: str, labels: Mapping[str, str], store: Path, digest: str) -> S:
        """Make a sandbox whose work folder holds what a snapshot does; see `SandboxProvider`."""
        sandbox = await self.create(sandbox_id, labels)
        try:
            await sandbox.put(self._store(store), digest)
        except BaseException:
            await whole(sandbox.terminate())
            raise
        return sandbox

    async def fork(self, sandbox_id: str, new_id: str, labels: Mapping[str, str]) -> S:
        """Make a sandbox whose work folder is a copy of a live one's; see `SandboxProvider`."""
        source, sandbox = self._of(sandbox_id), await self.create(new_id, labels)
        try:
            await source.copy_to(sandbox)
        except BaseException:
            await whole(sandbox.terminate())
            raise
        return sandbox

    async def reset(self, sandbox_id: str, store: Path, digest: str) -> None:
        """Give a sandbox what a snapshot holds for all that it has; see `SandboxProvider`."""
        await self._of(sandbox_id).put(self._store(store), digest)

    async def discard(self, store: Path, digest: str) -> None:
        """Remove a snapshot, and what no other one needs; idempotent."""
        await asyncio.to_thread(self._store(store).discard, digest)

    async def list(self, labels: Mapping[str, str]) -> list[str]:
        """Return ids of this provider's live sandboxes whose labels include these."""
        return [
            sandbox_id
            for sandbox_id, sandbox in self._live.items()
            if all(sandbox.labels.get(key) == value for key, value in labels.items())
        ]

    async def end_own(self, sandbox_id: str) -> bool:
        """End one of this process's sandboxes; return whether it was live."""
        sandbox = self._live.get(sandbox_id)
        if sandbox is not None:
            await sandbox.terminate()
        return sandbox is not None

    async def reap_own(self, run_id: str) -> int:
        """End this process's sandboxes of a run; return how many."""
        wanted = [sandbox for sandbox in self._live.values() if sandbox.labels.get("run") == run_id]
        failures: list[Exception] = []
        for sandbox in wanted:
            try:
                await sandbox.terminate()
            except (SandboxError, OSError) as error:  # the others are to go all the same
                failures.append(error)
        if failures:
            raise failures[0]
        return len(wanted)

    def forget(self, sandbox_id: str) -> None:
        """Called by a sandbox that has ended."""
        self._live.pop(sandbox_id, None)

    @property
    def settings(self) -> SandboxSettings:
        """The limits of every sandbox."""
        return self._settings

    def _of(self, sandbox_id: str) -> S:
        sandbox = self._live.get(sandbox_id)
        if sandbox is None:
            raise SandboxError("there must be a live sandbox of this id", value=sandbox_id)
        return sandbox

    def _store(self, path: Path) -> Store:
        return self._stores.setdefault(path, Store(path))
