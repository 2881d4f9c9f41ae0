"""The bubblewrap provider: namespaces without privileges, one process tree a command.

A sandbox is a work folder on the host, mounted at /work; each command runs over it in fresh namespaces and
takes every process it started down with it. Creating one costs nothing until the first command or file.
Files of /work last as long as the sandbox; /tmp is empty again at each command.

Folders lie at `<directory>/<run id>/<sandbox id>`, so that `reap` finds what a killed run left. Processes
need no reaping: they die with the worker, killed or not.

Not promised: a memory limit over all processes, system-call filters, hidden host paths in
/proc/self/mountinfo. The guarantees that hold are what `preflight` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.protocols import Cause, ExecLimits, ExecResult, Guarantee, SandboxStats
from headway.sandbox import files
from headway.sandbox.doors import Doors, begin_later
from headway.sandbox.hosted import Host, HostedSandbox
from headway.sandbox.images import Image, image_of
from headway.sandbox.layout import SANDBOX_ENV, VIEW_TOOLS, Layout, find_bwrap
from headway.sandbox.members import members
from headway.sandbox.preflight import guarantees, unavailable
from headway.sandbox.process import Limits, LongLived, Tree, run_contained
from headway.sandbox.roster import RosterProvider
from headway.sandbox.serving import Service, Services
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.words import unrunnable


def folder_name(text: str) -> str:
    """Return a name for a folder, another one for every text; never that of another folder, as ".." is."""
    if not text.strip("."):
        return "%" + text.replace(".", "%2E")
    return quote(text, safe="")


if TYPE_CHECKING:
    from headway.core.protocols import ConnectionHandler


class BubblewrapProvider(RosterProvider["BubblewrapSandbox"]):
    """Makes sandboxes with bubblewrap."""

    spawns = True
    pauses = True

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        super().__init__(settings or SandboxSettings())
        self._layout: Layout | None = None
        self._image: Image | None = None

    async def preflight(self) -> list[Guarantee]:
        """Run one command and say what holds.

        Raises SandboxUnavailableError with the remedy when no command can run.
        """
        layout, image = self.layout(), await self.image()
        probe = self.new(*self.probe)
        try:
            result = await probe.exec(["python3", "-I", "-S", "-c", "print('ok')"])
        except SandboxError as error:
            raise unavailable(error.rule) from error
        finally:
            await probe.terminate()
        if result.stdout != "ok\n":
            raise unavailable(result.stderr or f"python3 ended with {result.rc}")
        copied = None if image is None else image.kind == "work"
        return guarantees(pids=layout.drop_uid or os.geteuid() != 0, copied=copied)

    def new(self, sandbox_id: str, labels: Mapping[str, str]) -> BubblewrapSandbox:
        """Return a sandbox that nothing was made for yet."""
        return BubblewrapSandbox(sandbox_id, labels, self)

    async def end(self, sandbox_id: str, labels: Mapping[str, str]) -> bool:
        """End one of this process's sandboxes, or remove the folder that a dead process left."""
        if await self.end_own(sandbox_id):
            return True
        folder = self.place(sandbox_id, labels)
        found = folder.exists()
        if found:
            await asyncio.to_thread(files.remove_tree, folder)
        with contextlib.suppress(OSError):  # the run's other sandboxes are still in it, or it is gone
            folder.parent.rmdir()
        return found

    def place(self, sandbox_id: str, labels: Mapping[str, str]) -> Path:
        """Return where a sandbox's work folder is to be."""
        return self.root() / folder_name(labels.get("run", "none")) / folder_name(sandbox_id)

    async def reap(self, run_id: str) -> int:
        """End this process's sandboxes of a run and remove folders that dead processes left.

        For whoever owns the run, before its workers start or after they ended: folders that another live
        process uses are removed too.
        """
        ended = await self.reap_own(run_id)
        folder = self.root() / folder_name(run_id)
        if folder.is_dir():
            for orphan in os.listdir(folder):
                await asyncio.to_thread(files.remove_tree, folder / orphan)
                ended += 1
            files.remove_tree(folder)
        return ended

    def layout(self) -> Layout:
        """Return how command lines are built on this machine."""
        if self._layout is None:
            if not hasattr(os, "pidfd_open"):
                raise SandboxUnavailableError(
                    "the bubblewrap sandbox needs Linux >= 5.3", remedy="Run on Linux, or in a Linux VM"
                )
            drop_uid = os.geteuid() == 0 and all(map(shutil.which, VIEW_TOOLS))
            self._layout = Layout(find_bwrap(), self._settings, drop_uid)
        return self._layout

    async def image(self) -> Image | None:
        """Return what every sandbox begins with, built at first use."""
        if self._settings.image and self._image is None:
            owner = self.layout().owner
            self._image = await asyncio.to_thread(image_of, self._settings.image, owner)
            if self._image is not None and self._image.kind == "python":
                self._layout = replace(self.layout(), venv=str(self._image.path))
        return self._image

    def root(self) -> Path:
        """Return the folder of all work folders, made and checked to be the caller's own."""
        if self._settings.directory:
            root = Path(self._settings.directory).expanduser()
        else:
            root = Path(tempfile.gettempdir()) / f"headway-sandboxes-{os.geteuid()}"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = root.lstat()
        except OSError as error:
            raise SandboxError(f"the sandboxes' folder cannot be made: {error}", value=str(root)) from error
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            raise SandboxError("the sandboxes' folder must be a folder of your own", value=str(root))
        return root

    @property
    def settings(self) -> SandboxSettings:
        """The limits of every sandbox."""
        return self._settings


class BubblewrapSandbox(HostedSandbox):
    """One work folder and the commands that run over it, one at a time."""

    def __init__(self, sandbox_id: str, labels: Mapping[str, str], provider: Host) -> None:
        super().__init__(sandbox_id, labels, provider)
        self._pausing = asyncio.Lock()
        self._tree: Tree | None = None  # of the command that runs
        self._services = Services()

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        limits: ExecLimits | None = None,
        cwd: str = "",
    ) -> ExecResult:
        """Run a command over the work folder; every process that it started ends with it.

        Limits that are not given come from the settings. Raises SandboxError when it could not start.
        """
        settings = self._provider.settings
        async with self._turn:
            wanted = limits or ExecLimits(settings.wall_s, settings.output_bytes)
            if (no := unrunnable(argv, env or {}, cwd)) is not None:
                return no
            make, over_quota = await self._plan(argv, env, cwd, wanted.output_bytes)

            def tree(stack: contextlib.AsyncExitStack) -> Tree:
                self._tree = make(stack)
                return self._tree

            try:
                return await run_contained(tree, stdin, wanted.wall_s, over_quota)
            finally:
                self._tree = None

    async def spawn(
        self,
        name: str,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        output_bytes: int = 65536,
    ) -> None:
        """Start a long-lived process in a process tree of its own over the work folder; see `Sandbox`.

        It shares no /tmp, no processes and no network with the commands.
        """

        async def make() -> LongLived:
            tree, over_quota = await self._plan(argv, env, cwd, output_bytes)
            return LongLived(tree, stdin, over_quota)

        await self._begin(name, make)

    def serve(
        self, port: int, handler: ConnectionHandler, *, max_connections: int = 64
    ) -> AbstractAsyncContextManager[int]:
        """Let commands and long-lived processes connect to a port; see `Sandbox`.

        Each has a network of its own, so `max_connections` holds for each.
        """
        return self._services.serve(port, handler, max_connections, self._begin_to_serve)

    async def _begin_to_serve(self, service: Service) -> None:
        await self._work()
        begin_later(service, self._services)

    async def pause(self) -> None:
        """Stop every process; idempotent. Memory stays with them."""
        async with self._pausing:
            await self._work()
            self._paused = True
            for tree in self._trees():
                await tree.pause()

    async def resume(self) -> None:
        """Let every process go on; idempotent. Raises SandboxError when the work folder was lost."""
        async with self._pausing:
            await self._work()
            if not await self.intact():
                raise SandboxError("the sandbox's work folder is gone", value=self._id)
            self._paused = False
            for tree in self._trees():
                await tree.resume()

    async def terminate(self) -> None:
        """End everything and remove the files; idempotent."""
        self._services.close()
        await super().terminate()

    async def stats(self) -> SandboxStats:
        """Say what it holds and what the processes that run have used."""
        folder, settings = await self._work(), self._provider.settings
        alive = [member for tree in self._trees() if tree.init for member in members(tree.init)]
        num_bytes, num_files = files.usage(folder, settings.work_mb << 20, settings.max_files)
        return SandboxStats(
            cpu_s=sum(member.cpu_s for member in alive),
            memory_bytes=sum(member.memory_bytes for member in alive),
            disk_bytes=num_bytes,
            num_files=num_files,
            num_processes=len(alive),
        )

    async def _plan(
        self, argv: Sequence[str], env: Mapping[str, str] | None, cwd: str, output_bytes: int
    ) -> tuple[Callable[[contextlib.AsyncExitStack], Tree], Callable[[], Cause | None]]:
        """Return how a program's process tree is made, and what looks at its limits."""
        if self._paused:
            raise SandboxError("a paused sandbox runs nothing until it is resumed", value=self._id)
        folder, layout = await self._work(), self._provider.layout()
        self._index.programs_run()
        limits = Limits(output_bytes, self._provider.settings.start_timeout_s)

        def tree(stack: contextlib.AsyncExitStack) -> Tree:
            doors = Doors(self._services, stack) if any(self._services) else None
            prefix = [] if doors is None else doors.prefix()

            def command(info_fd: int, life_fd: int) -> list[str]:
                return layout.argv(list(argv), str(folder), info_fd, life_fd, cwd, prefix)

            return Tree(command, SANDBOX_ENV | dict(env or {}), limits, stack, doors)

        return tree, lambda: self._over_quota(folder)

    def _trees(self) -> list[Tree]:
        """Return the process trees that run."""
        own = [] if self._tree is None else [self._tree]
        return own + [process.tree for process in self._spawned.values() if process.running]
