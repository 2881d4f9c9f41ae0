"""The local provider: Headway's own helper makes sandboxes, quickly and with limits that the kernel holds.

A sandbox is a set of namespaces with a first process of ours, which lasts from the first use to `terminate`.
Its work folder is a tmpfs, capped in bytes and files, that this process holds open, so that files pass
without a program in the sandbox. Commands run one at a time; every process of a command ends with it.
Long-lived processes (`spawn`) run beside them. Files of /work last as long as the sandbox; /tmp is empty
again at each command, unless long-lived processes run.

Nothing of a sandbox lies on the host's disk, and nothing outlives this process: sandboxes end with the
sockets that it holds (zygote.py). So `reap` finds only this process's own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.protocols import ExecLimits, ExecResult, Guarantee, SandboxStats
from headway.sandbox import files
from headway.sandbox.cell import MAX_SPAWNED, Cell, Program, unpack_stats
from headway.sandbox.images import Image, image_of
from headway.sandbox.memory import give_back
from headway.sandbox.preflight import local_guarantees, unavailable
from headway.sandbox.programs import Command, LongLived
from headway.sandbox.roster import RosterProvider
from headway.sandbox.serving import Service, Services
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.spawning import SpawningSandbox
from headway.sandbox.store import Index, Store
from headway.sandbox.tars import Allowance, pack, unpack
from headway.sandbox.trees import copy_tree
from headway.sandbox.whole import to_its_end, whole
from headway.sandbox.zygote import MODEL_UID, Zygote

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from headway.core.protocols import ConnectionHandler


class LocalProvider(RosterProvider["LocalSandbox"]):
    """Makes sandboxes with the helper in native/."""

    spawns = True
    pauses = True

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        super().__init__(settings or SandboxSettings())
        self._zygote: Zygote | None = None
        self._image: Image | None = None  # of the zygote
        self._starting = asyncio.Lock()

    async def preflight(self) -> list[Guarantee]:
        """Run one command and say what holds.

        Raises SandboxUnavailableError with the remedy when no command can run.
        """
        probe = LocalSandbox("preflight", {"run": f"preflight-{os.getpid()}"}, self)
        try:
            result = await probe.exec(["python3", "-I", "-S", "-c", "print('ok')"])
        except SandboxUnavailableError:
            raise
        except SandboxError as error:
            raise unavailable(error.rule) from error
        finally:
            await probe.terminate()
        if result.stdout != "ok\n":
            raise unavailable(result.stderr or f"python3 ended with {result.rc}")
        zygote = await self.zygote()
        copied = self._image is not None and self._image.kind == "work" and not zygote.overlays
        return local_guarantees(
            pids=not zygote.single_uid or os.geteuid() != 0,
            cgroups={name for group in zygote.groups for name in group.controllers},
            image=None if self._image is None else not copied,
        )

    def new(self, sandbox_id: str, labels: Mapping[str, str]) -> LocalSandbox:
        """Return a sandbox that nothing was made for yet."""
        return LocalSandbox(sandbox_id, labels, self)

    async def end(self, sandbox_id: str, labels: Mapping[str, str]) -> bool:
        """End one of this process's sandboxes; those of dead processes ended with them."""
        return await self.end_own(sandbox_id)

    async def reap(self, run_id: str) -> int:
        """End this process's sandboxes of a run; those of dead processes ended with them."""
        return await self.reap_own(run_id)

    async def zygote(self) -> Zygote:
        """Return the helper, started at first use, and again when it has ended or the event loop is new."""
        async with self._starting:
            running = asyncio.get_running_loop()
            if self._zygote is None or self._zygote.ended or self._zygote.loop is not running:
                if not hasattr(os, "pidfd_open"):
                    raise SandboxUnavailableError(
                        "the local sandbox needs Linux >= 5.12",
                        remedy="Run on Linux, or in a Linux VM",
                    )
                if self._zygote is not None:
                    self._zygote.close()
                owner = MODEL_UID if os.geteuid() == 0 else None
                self._image = await asyncio.to_thread(image_of, self._settings.image, owner)
                self._zygote = await Zygote.start(self._settings, self._image)
            return self._zygote

    def close(self) -> None:
        """End the helper and with it every sandbox; idempotent. Happens by itself at the process's end."""
        if self._zygote is not None:
            self._zygote.close()

    @property
    def image(self) -> Image | None:
        """What every sandbox begins with; known since the helper was started."""
        return self._image


class LocalSandbox(SpawningSandbox[LongLived]):
    """One set of namespaces and the programs in it: commands one at a time, long-lived ones beside."""

    def __init__(self, sandbox_id: str, labels: Mapping[str, str], provider: LocalProvider) -> None:
        super().__init__()
        self._id = sandbox_id
        self.labels = dict(labels)
        self._provider = provider
        self._cell: Cell | None = None
        self._owner: int | None = None
        self._turn = asyncio.Lock()  # of whoever uses the work folder
        self._birth = asyncio.Lock()
        self._asking = asyncio.Lock()  # of whoever asks the first process
        self._command: Command | None = None
        self._services = Services()

    @property
    def id(self) -> str:
        """The id that was chosen before creation."""
        return self._id

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
            cell = await self._made()
            self._must_go_on()
            self._index.programs_run()
            wanted = limits or ExecLimits(settings.wall_s, settings.output_bytes)
            self._command = Command(cell, settings, lambda: self._terminated)
            try:
                return await self._command.run(Program(argv, env or {}, stdin, cwd), wanted)
            finally:
                self._command = None

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
        """Start a long-lived process; see `Sandbox`. At most 32 run at once."""

        async def make() -> LongLived:
            cell = await self._made()
            self._must_go_on()
            taken = {process.number for process in self._spawned.values()}
            free = next((number for number in range(1, MAX_SPAWNED + 1) if number not in taken), None)
            if free is None:
                raise SandboxError(
                    "a sandbox can run no more long-lived processes at once", value=MAX_SPAWNED
                )
            program = Program(argv, env or {}, stdin, cwd)
            return LongLived(cell, free, program, output_bytes, self._provider.settings.start_timeout_s)

        await self._begin(name, make)

    def serve(
        self, port: int, handler: ConnectionHandler, *, max_connections: int = 64
    ) -> AbstractAsyncContextManager[int]:
        """Let programs connect to 127.0.0.1 at a port, also those that began before; see `Sandbox`."""
        return self._services.serve(port, handler, max_connections, self._open)

    async def _open(self, service: Service) -> None:
        async with self._asking:
            cell = await self._made()
            service.open(await cell.listen(service.port, self._provider.settings.start_timeout_s))

    async def pause(self) -> None:
        """Stop every process; idempotent. Memory is given back as far as memory.py says."""
        async with self._asking:
            if self._paused:
                return
            cell = await self._made()
            self._paused = True  # before it is, so that whoever is cut off meanwhile can still resume
            await cell.ask(b"Z", self._provider.settings.start_timeout_s)
            if self._command is not None:
                self._command.wall.pause()
        if cell.groups:
            await asyncio.to_thread(give_back, cell.groups)

    async def resume(self) -> None:
        """Let every process go on; idempotent. Raises SandboxError when the sandbox was lost meanwhile."""
        async with self._asking:
            cell = await self._made()
            if not self._paused:
                return
            await cell.ask(b"W", self._provider.settings.start_timeout_s)
            self._paused = False
            if self._command is not None:
                self._command.wall.resume()

    async def stats(self) -> SandboxStats:
        """Say what it holds and has used."""
        async with self._asking:
            cell = await self._made()
            said = await cell.ask(b"Q", self._provider.settings.start_timeout_s)
            num_processes, cpu_s, memory_bytes = unpack_stats(said)
            disk = os.fstatvfs(cell.work_fd)
            return SandboxStats(
                cpu_s=cpu_s,
                memory_bytes=memory_bytes,
                disk_bytes=(disk.f_blocks - disk.f_bfree) * disk.f_frsize,
                num_files=max(0, disk.f_files - disk.f_ffree - 1),
                num_processes=num_processes,
            )

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below /work."""
        async with self._turn:
            self._index.changed = True
            files.write_file((await self._made()).work_fd, path, data, self._owner)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Return at most the first `max_bytes` of a file below /work; links are never followed."""
        async with self._turn:
            return files.read_file((await self._made()).work_fd, path, max_bytes)

    async def prepare(self) -> None:
        """Make the namespaces now, so that the first command does not wait for them."""
        await (await self._made()).ready(self._provider.settings.start_timeout_s)

    async def intact(self) -> bool:
        """Say whether the first process runs, or was never started."""
        return not self._terminated if self._cell is None else self._cell.alive

    async def take(self, store: Store, labels: Mapping[str, str]) -> str:
        """Store what is in the work folder; a command ends first, long-lived processes stand still."""
        async with self._turn:
            cell = await self._made()
            base = self._base(cell)
            async with self._still():
                return await to_its_end(lambda: store.take(cell.state_fd, labels, self._index, base))

    async def put(self, store: Store, digest: str) -> None:
        """Hold what a snapshot does, and nothing else; a command that runs ends first."""
        async with self._turn:
            await self._refill(lambda cell: store.put(digest, cell.state_fd, self._owner, self._base(cell)))

    async def copy_to(self, other: LocalSandbox) -> None:
        """Give a new sandbox a copy of the work folder; a command that runs ends first."""
        async with self._turn, other._turn:
            source = await self._made()
            overlay = source.upper_fd is not None
            async with self._still():
                await other._refill(
                    lambda cell: copy_tree(source.state_fd, cell.state_fd, other._owner, overlay=overlay)
                )

    async def _refill(self, fill: Callable[[Cell], None]) -> None:
        """Go on with new namespaces whose empty work folder `fill` has filled, or as before when it fails."""
        if self._terminated:
            raise SandboxError("a terminated sandbox cannot be used", value=self._id)
        cell = await self._new_cell()
        try:
            await to_its_end(lambda: fill(cell))
            cell.refresh()
            for service in self._services:
                listener = await cell.listen(service.port, self._provider.settings.start_timeout_s)
                service.shut()
                service.open(listener)
        except BaseException:
            await whole(_let_go(cell))
            raise
        old, self._cell, self._index = self._cell, cell, Index()
        self._paused = False
        self._spawned.clear()
        if old is not None:
            await whole(self._part_with(old))

    async def terminate(self) -> None:
        """End every process and with them every file; idempotent."""
        self._terminated = True
        self._services.close()
        await whole(self._end())

    async def _end(self) -> None:
        try:
            if self._cell is not None:
                await self._cell.end()  # and with it whatever has the turn
        finally:
            try:
                async with self._turn, self._birth:
                    if self._cell is not None:  # it may have been made while this call came in
                        await self._part_with(self._cell)
            finally:
                self._provider.forget(self._id)

    async def _part_with(self, cell: Cell) -> None:
        """End it and close its folders; whoever has the turn does, so that nobody uses them."""
        async with self._asking:  # statistics look at them too
            await _let_go(cell)

    def _must_go_on(self) -> None:
        if self._paused:
            raise SandboxError("a paused sandbox runs nothing until it is resumed", value=self._id)

    async def _made(self) -> Cell:
        """Return the sandbox's first process, started at first use."""
        if self._terminated:
            raise SandboxError("a terminated sandbox cannot be used", value=self._id)
        if self._cell is None:
            async with self._birth:
                if self._cell is None:
                    self._cell = await self._begun()
                if self._terminated:
                    raise SandboxError("a terminated sandbox cannot be used", value=self._id)
        elif not self._cell.alive:
            raise SandboxError("the sandbox's first process is gone, and its files with it", value=self._id)
        return self._cell

    def _base(self, cell: Cell) -> str:
        """Return the digest of the image that the work folder lies over, "" when it holds everything."""
        image = self._provider.image
        return image.digest if image is not None and cell.upper_fd is not None else ""

    async def upload(self, path: str, archive: bytes) -> None:
        """Put what a tar archive holds below a folder of /work; see `Sandbox`."""
        settings = self._provider.settings
        limits = Allowance(settings.work_mb << 20, settings.max_files)
        async with self._turn:
            cell = await self._made()
            async with self._still():
                self._index.changed = True
                await to_its_end(lambda: unpack(archive, cell.work_fd, path, self._owner, limits))

    async def download(self, path: str, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        """Return a file or folder of /work as a tar archive; see `Sandbox`."""
        async with self._turn:
            cell = await self._made()
            # On a tmpfs nothing has to be opened for root; through an overlay that would copy it up.
            async with self._still():
                return await to_its_end(lambda: pack(cell.work_fd, path, Allowance(max_bytes, max_files)))

    async def _begun(self) -> Cell:
        """Return new namespaces that begin with the image."""
        cell, image = await self._new_cell(), self._provider.image
        if image is not None and image.kind == "work" and cell.upper_fd is None:
            try:
                await to_its_end(lambda: copy_tree(image.path, cell.work_fd, self._owner))
            except BaseException:
                await whole(_let_go(cell))
                raise
        return cell

    async def _new_cell(self) -> Cell:
        zygote = await self._provider.zygote()
        self._owner = None if zygote.single_uid else MODEL_UID
        return await zygote.make()


async def _let_go(cell: Cell) -> None:
    try:
        await cell.end()
    finally:
        cell.close()
