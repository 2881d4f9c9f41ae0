"""What the providers of machines have in common: the roster, snapshots and images of the work folder."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import SandboxUnavailableError
from headway.sandbox.images import Image, image_of
from headway.sandbox.remote import RemoteSandbox
from headway.sandbox.roster import Roster
from headway.sandbox.store import Store
from headway.sandbox.whole import whole

if TYPE_CHECKING:
    from headway.sandbox.machine import Machine
    from headway.sandbox.settings import SandboxSettings


class RemoteProvider:
    """Makes sandboxes over machines; a subclass knows how a machine is made."""

    snapshots = True
    spawns = False
    pauses = False

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._roster: Roster[RemoteSandbox] = Roster(settings.max_live)
        self._stores: dict[Path, Store] = {}
        self._image: Image | None = None

    def machine(self, sandbox_id: str, labels: Mapping[str, str]) -> Machine:
        """Return a machine that is not made yet."""
        raise NotImplementedError

    async def create(self, sandbox_id: str, labels: Mapping[str, str]) -> RemoteSandbox:
        """Make a sandbox, its machine at the first use; label `run` is what `reap` would end it by."""
        sandbox = self.new(sandbox_id, labels)
        self._roster.add(sandbox)
        return sandbox

    def new(self, sandbox_id: str, labels: Mapping[str, str]) -> RemoteSandbox:
        """Return a sandbox that is not in the roster."""
        return RemoteSandbox(
            sandbox_id,
            labels,
            self.machine(sandbox_id, labels),
            self._settings,
            image=self.image,
            on_end=lambda: self._roster.forget(sandbox_id),
        )

    async def image(self) -> Image | None:
        """Return what every work folder begins with, built at the first use.

        Raises SandboxUnavailableError for an image that is a Python environment.
        """
        if self._settings.image and self._image is None:
            image = await asyncio.to_thread(image_of, self._settings.image, None)
            if image is not None and image.kind == "python":
                raise SandboxUnavailableError(
                    "a Python environment of the host cannot be had in a container or a service's machine",
                    value=self._settings.image,
                    key="sandbox.image",
                    remedy="Install the packages into an image of your own, and name it by "
                    "sandbox.container_image",
                )
            self._image = image
        return self._image

    async def alive(self, sandbox_id: str) -> bool:
        """Say whether a sandbox's machine is there and runs."""
        sandbox = self._roster.get(sandbox_id)
        return sandbox is not None and await sandbox.intact()

    async def snapshot(self, sandbox_id: str, store: Path, labels: Mapping[str, str]) -> str:
        """Store what is in the work folder (inside.py says what is kept of it); see `SandboxProvider`."""
        return await self._roster.wanted(sandbox_id).take(self._store(store), labels)

    async def restore(
        self, sandbox_id: str, labels: Mapping[str, str], store: Path, digest: str
    ) -> RemoteSandbox:
        """Make a sandbox whose work folder holds what a snapshot does; see `SandboxProvider`."""
        sandbox = await self.create(sandbox_id, labels)
        try:
            await sandbox.put(self._store(store), digest)
        except BaseException:
            await whole(sandbox.terminate())
            raise
        return sandbox

    async def fork(self, sandbox_id: str, new_id: str, labels: Mapping[str, str]) -> RemoteSandbox:
        """Make a sandbox whose work folder is a copy of a live one's; see `SandboxProvider`."""
        source, sandbox = self._roster.wanted(sandbox_id), await self.create(new_id, labels)
        try:
            await source.copy_to(sandbox)
        except BaseException:
            await whole(sandbox.terminate())
            raise
        return sandbox

    async def reset(self, sandbox_id: str, store: Path, digest: str) -> None:
        """Give a sandbox what a snapshot holds for all that it has; see `SandboxProvider`."""
        await self._roster.wanted(sandbox_id).put(self._store(store), digest)

    async def discard(self, store: Path, digest: str) -> None:
        """Remove a snapshot, and what no other one needs; idempotent."""
        await asyncio.to_thread(self._store(store).discard, digest)

    async def list(self, labels: Mapping[str, str]) -> list[str]:
        """Return ids of this provider's live sandboxes whose labels include these."""
        return [sandbox.id for sandbox in self._roster.having(labels)]

    def _store(self, path: Path) -> Store:
        return self._stores.setdefault(path, Store(path))
