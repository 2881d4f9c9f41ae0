"""Sandboxes whose work folder lies on the host's disk: what is done with the folder.

One command runs over a folder at a time, and whoever reads or fills it takes a turn like a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headway.core.errors import SandboxError
from headway.sandbox import files
from headway.sandbox.process import LongLived
from headway.sandbox.spawning import SpawningSandbox
from headway.sandbox.store import Index, Store
from headway.sandbox.tars import Allowance, pack, unpack
from headway.sandbox.trees import copy_tree
from headway.sandbox.whole import to_its_end

if TYPE_CHECKING:
    from headway.core.protocols import Cause
    from headway.sandbox.images import Image
    from headway.sandbox.layout import Layout
    from headway.sandbox.settings import SandboxSettings


_TRIES = 1000  # to put a folder into one that others remove


class Host(Protocol):
    """A provider, as its sandboxes know it."""

    @property
    def settings(self) -> SandboxSettings:
        """The limits of every sandbox."""
        ...

    def layout(self) -> Layout:
        """Return whose the folders are, and how command lines are built."""
        ...

    async def image(self) -> Image | None:
        """Return what every sandbox begins with."""
        ...

    def place(self, sandbox_id: str, labels: Mapping[str, str]) -> Path:
        """Return where a sandbox's work folder is to be."""
        ...

    def forget(self, sandbox_id: str) -> None:
        """Called by a sandbox that has ended."""
        ...


def make_folder(folder: Path) -> None:
    """Make a work folder, and that of its run.

    The latter goes with the last sandbox in it: another worker of the run may remove it at any moment.
    """
    for left in reversed(range(_TRIES)):
        with contextlib.suppress(FileExistsError):  # it is there, or has just been removed
            folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
            return
        except FileNotFoundError:
            if not left:
                raise


class HostedSandbox(SpawningSandbox[LongLived]):
    """One work folder on the host's disk, made at first use; a subclass runs programs over it."""

    def __init__(self, sandbox_id: str, labels: Mapping[str, str], provider: Host) -> None:
        super().__init__()
        self._id = sandbox_id
        self.labels = dict(labels)
        self._provider = provider
        self._folder: Path | None = None
        self._inode = 0  # of the folder, which somebody might replace
        self._turn = asyncio.Lock()  # of whoever uses the folder

    @property
    def id(self) -> str:
        """The id that was chosen before creation."""
        return self._id

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below /work."""
        async with self._turn:
            self._index.changed = True
            files.write_file(await self._work(), path, data, self._provider.layout().owner)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Return at most the first `max_bytes` of a file below /work; links are never followed."""
        async with self._turn:
            return files.read_file(await self._work(), path, max_bytes)

    async def intact(self) -> bool:
        """Say whether the work folder is there, or was never made."""
        if self._folder is None:
            return not self._terminated
        try:
            return self._folder.lstat().st_ino == self._inode
        except OSError:
            return False

    async def take(self, store: Store, labels: Mapping[str, str]) -> str:
        """Store what is in the work folder; a command that runs ends first."""
        async with self._turn:
            folder = await self._whole_work()
            async with self._still():
                return await to_its_end(lambda: store.take(folder, labels, self._index))

    async def put(self, store: Store, digest: str) -> None:
        """Hold what a snapshot does, and nothing else; a command that runs ends first."""
        owner = self._provider.layout().owner
        async with self._turn:
            await self._refill(lambda draft: store.put(digest, draft, owner))
            self._paused = False

    async def copy_to(self, other: HostedSandbox) -> None:
        """Give a new sandbox a copy of the work folder; a command that runs ends first."""
        owner = self._provider.layout().owner
        async with self._turn, other._turn:
            folder = await self._whole_work()
            async with self._still():
                await other._refill(lambda draft: copy_tree(folder, draft, owner))

    async def _refill(self, fill: Callable[[Path], None]) -> None:
        """Put a folder that `fill` has filled in the place of the work folder, whole or not at all."""
        folder = self._place()
        for process in self._spawned.values():
            await process.kill()
        self._spawned.clear()
        # Names that no quoted id has; `reap` finds what a killed process left of them.
        draft, old = (folder.with_name(f"{folder.name}%{what}") for what in ("draft", "old"))

        def work() -> None:
            try:
                for path in (draft, old):
                    files.remove_tree(path)
                make_folder(draft)
                fill(draft)
                if self._folder is not None:
                    folder.rename(old)
                draft.rename(folder)
                self._folder, self._inode, self._index = folder, folder.lstat().st_ino, Index()
            except OSError as error:
                raise SandboxError(f"a work folder cannot be made: {error}", value=str(folder)) from error
            finally:
                for path in (draft, old):
                    files.remove_tree(path)

        await to_its_end(work)

    async def upload(self, path: str, archive: bytes) -> None:
        """Put what a tar archive holds below a folder of /work; see `Sandbox`."""
        settings, owner = self._provider.settings, self._provider.layout().owner
        limits = Allowance(settings.work_mb << 20, settings.max_files)
        async with self._turn:
            folder = await self._work()

            def work() -> None:
                held, num_files = files.usage(folder, limits.max_bytes, limits.max_files)
                limits.max_bytes, limits.max_files = limits.max_bytes - held, limits.max_files - num_files
                unpack(archive, folder, path, owner, limits)

            async with self._still():
                self._index.changed = True
                await to_its_end(work)

    async def download(self, path: str, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        """Return a file or folder of /work as a tar archive; see `Sandbox`."""
        async with self._turn:
            folder = await self._work()
            async with self._still():
                return await to_its_end(lambda: pack(folder, path, Allowance(max_bytes, max_files)))

    async def terminate(self) -> None:
        """End the running command within a tenth of a second and remove the files; idempotent."""
        self._terminated = True
        try:
            async with self._turn:
                for process in self._spawned.values():
                    await process.kill()
                if self._folder is not None:
                    await asyncio.to_thread(files.remove_tree, self._folder)
                    with contextlib.suppress(OSError):  # the run's other sandboxes are still in it
                        self._folder.parent.rmdir()
                    self._folder = None
        finally:
            self._provider.forget(self._id)

    async def _work(self) -> Path:
        """Return the work folder, made at first use."""
        image = await self._provider.image()
        if self._folder is None and image is not None and image.kind == "work":
            owner = self._provider.layout().owner
            await self._refill(lambda draft: copy_tree(image.path, draft, owner))
            assert self._folder is not None
        elif self._folder is None:
            folder = self._place()
            owner = self._provider.layout().owner
            try:
                make_folder(folder)
                if owner is not None:
                    os.chown(folder, owner, owner)
                self._inode = folder.lstat().st_ino
            except OSError as error:
                raise SandboxError(f"a work folder cannot be made: {error}", value=str(folder)) from error
            self._folder = folder
        elif self._terminated:
            raise SandboxError("a terminated sandbox cannot be used", value=self._id)
        with contextlib.suppress(FileNotFoundError):  # `intact` tells
            files.keep_open(self._folder)
        return self._folder

    async def _whole_work(self) -> Path:
        """Return the work folder, and make sure that it is the one that was made."""
        folder = await self._work()
        if not await self.intact():
            raise SandboxError("what was done in the sandbox is gone", value=self._id)
        return folder

    def _place(self) -> Path:
        """Return where the work folder is to be."""
        if self._terminated:
            raise SandboxError("a terminated sandbox cannot be used", value=self._id)
        return self._provider.place(self._id, self.labels)

    def _over_quota(self, folder: Path) -> Cause | None:
        if self._terminated:
            return "killed"
        settings = self._provider.settings
        max_bytes = settings.work_mb << 20
        num_bytes, num_files = files.usage(folder, max_bytes, settings.max_files)
        if num_bytes > max_bytes:
            return "disk"
        return "inodes" if num_files > settings.max_files else None
