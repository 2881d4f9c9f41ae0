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
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.protocols import ExecLimits, ExecResult, Guarantee, Polled, SandboxStats
from headway.sandbox import files
from headway.sandbox.copies import copy_into, copy_tree
from headway.sandbox.memory import give_back
from headway.sandbox.preflight import local_guarantees, unavailable
from headway.sandbox.programs import Command, LongLived
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.zygote import MAX_SPAWNED, MODEL_UID, Cell, Zygote, unpack_stats


class LocalProvider:
    """Makes sandboxes with the helper in native/."""

    snapshots = True
    spawns = True
    pauses = True

    def __init__(self, settings: SandboxSettings | None = None) -> None:
        self._settings = settings or SandboxSettings()
        self._live: dict[str, LocalSandbox] = {}
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()

    async def preflight(self) -> list[Guarantee]:
        """Run one command and say what holds.

        Raises SandboxUnavailableError with the remedy when no command can run.
        """
        probe = LocalSandbox("preflight", {"run": f"preflight-{os.getpid()}"}, self)
        try:
            result = await probe.exec(["python3", "-I", "-S", "-c", "print('ok')"])
        except SandboxError as error:
            raise unavailable(error.rule) from error
        finally:
            await probe.terminate()
        if result.stdout != "ok\n":
            raise unavailable(result.stderr or f"python3 ended with {result.rc}")
        zygote = await self.zygote()
        held = {name for group in zygote.groups for name in group.controllers}
        return local_guarantees(pids=not zygote.single_uid or os.geteuid() != 0, cgroups=held)

    async def create(self, sandbox_id: str, labels: Mapping[str, str]) -> LocalSandbox:
        """Make a sandbox; label `run` names the run that `reap` would end it with."""
        if sandbox_id in self._live:
            raise SandboxError("a sandbox id must be new", value=sandbox_id)
        if len(self._live) >= self._settings.max_live:
            raise SandboxError(
                "sandboxes that live at once must not exceed sandbox.max_live",
                value=len(self._live) + 1,
                remedy=f"max_live is {self._settings.max_live}; whoever grants sandboxes must keep to it",
            )
        sandbox = LocalSandbox(sandbox_id, labels, self)
        self._live[sandbox_id] = sandbox
        return sandbox

    async def alive(self, sandbox_id: str) -> bool:
        """Say whether a sandbox still has what was done in it: whether its first process runs."""
        sandbox = self._live.get(sandbox_id)
        return sandbox is not None and sandbox.intact

    async def snapshot(self, sandbox_id: str, path: Path) -> None:
        """Copy the work folder to `path` (copies.py says what is kept of it).

        Raises SandboxError when there is no such sandbox, or it cannot be copied.
        """
        sandbox = self._live.get(sandbox_id)
        if sandbox is None:
            raise SandboxError("only a live sandbox can be copied", value=sandbox_id)
        await sandbox.copy_to(path)

    async def restore(self, sandbox_id: str, labels: Mapping[str, str], path: Path) -> LocalSandbox:
        """Make a sandbox whose work folder is a copy of a snapshot.

        Raises SandboxError when the snapshot is not there; nothing is left behind then.
        """
        sandbox = await self.create(sandbox_id, labels)
        try:
            await sandbox.copy_from(path)
        except BaseException:
            await sandbox.terminate()
            raise
        return sandbox

    async def discard(self, path: Path) -> None:
        """Remove a snapshot; idempotent."""
        await asyncio.to_thread(files.remove_tree, path)

    async def list(self, labels: Mapping[str, str]) -> list[str]:
        """Return ids of this provider's live sandboxes whose labels include these."""
        return [
            sandbox_id
            for sandbox_id, sandbox in self._live.items()
            if all(sandbox.labels.get(key) == value for key, value in labels.items())
        ]

    async def reap(self, run_id: str) -> int:
        """End this process's sandboxes of a run; those of dead processes ended with them."""
        wanted = await self.list({"run": run_id})
        for sandbox_id in wanted:
            await self._live[sandbox_id].terminate()
        return len(wanted)

    def forget(self, sandbox_id: str) -> None:
        """Called by a sandbox that has ended."""
        self._live.pop(sandbox_id, None)

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
                self._zygote = await Zygote.start(self._settings)
            return self._zygote

    def close(self) -> None:
        """End the helper and with it every sandbox; idempotent. Happens by itself at the process's end."""
        if self._zygote is not None:
            self._zygote.close()

    @property
    def settings(self) -> SandboxSettings:
        """The limits of every sandbox."""
        return self._settings


class LocalSandbox:
    """One set of namespaces and the programs in it: commands one at a time, long-lived ones beside."""

    def __init__(self, sandbox_id: str, labels: Mapping[str, str], provider: LocalProvider) -> None:
        self._id = sandbox_id
        self.labels = dict(labels)
        self._provider = provider
        self._cell: Cell | None = None
        self._owner: int | None = None
        self._turn = asyncio.Lock()  # of whoever uses the work folder
        self._birth = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._terminated = False
        self._paused = False
        self._command: Command | None = None
        self._spawned: dict[str, LongLived] = {}

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
            wanted = limits or ExecLimits(settings.wall_s, settings.output_bytes)
            self._command = Command(cell, settings, lambda: self._terminated)
            try:
                return await self._command.run(argv, env or {}, stdin, cwd, wanted)
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
        cell = await self._made()
        self._must_go_on()
        known = self._spawned.get(name)
        if known is not None and known.number is not None:
            raise SandboxError("a long-lived process needs a name that no running one has", value=name)
        taken = {process.number for process in self._spawned.values()}
        free = next((number for number in range(1, MAX_SPAWNED + 1) if number not in taken), None)
        if free is None:
            raise SandboxError("a sandbox can run no more long-lived processes at once", value=MAX_SPAWNED)
        self._spawned[name] = process = LongLived(cell, free, output_bytes)
        await process.start(argv, env or {}, stdin, cwd, self._provider.settings.start_timeout_s)

    async def poll(self, name: str) -> Polled:
        """Say how a long-lived process is, and what it wrote since the last poll."""
        return self._process(name).poll()

    async def kill(self, name: str) -> None:
        """End a long-lived process and what it started; idempotent."""
        await self._process(name).kill()

    async def pause(self) -> None:
        """Stop every process; idempotent. Memory is given back as far as memory.py says."""
        async with self._asking:
            if self._paused:
                return
            cell = await self._made()
            await cell.ask(b"Z", self._provider.settings.start_timeout_s)
            self._paused = True
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
            files.write_file((await self._made()).work_fd, path, data, self._owner)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Return at most the first `max_bytes` of a file below /work; links are never followed."""
        async with self._turn:
            return files.read_file((await self._made()).work_fd, path, max_bytes)

    async def prepare(self) -> None:
        """Make the namespaces now, so that the first command does not wait for them."""
        await (await self._made()).ready(self._provider.settings.start_timeout_s)

    @property
    def intact(self) -> bool:
        """Whether the first process runs, or was never started."""
        return not self._terminated if self._cell is None else self._cell.alive

    async def copy_to(self, path: Path) -> None:
        """Copy the work folder to a new `path`; a command ends first, long-lived processes stand still."""
        async with self._turn:
            cell = await self._made()
            still = not self._paused and any(process.number for process in self._spawned.values())
            if still:
                await self.pause()
            try:
                await _to_its_end(lambda: copy_tree(cell.work_fd, path))
            finally:
                if still and not self._terminated:
                    await self.resume()

    async def copy_from(self, path: Path) -> None:
        """Begin with a copy of `path` as the work folder."""
        async with self._turn:
            cell = await self._made()
            await _to_its_end(lambda: copy_into(path, cell.work_fd))

    async def terminate(self) -> None:
        """End every process and with them every file; idempotent."""
        self._terminated = True
        if self._cell is not None:
            await _whole(self._cell.end())
        async with self._turn, self._birth:
            if self._cell is not None:  # made while this call came in
                await _whole(self._cell.end())
        self._provider.forget(self._id)

    def _process(self, name: str) -> LongLived:
        if name not in self._spawned:
            raise SandboxError("a long-lived process must have been spawned", value=name)
        return self._spawned[name]

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
                    zygote = await self._provider.zygote()
                    self._owner = None if zygote.single_uid else MODEL_UID
                    self._cell = await zygote.make()
                if self._terminated:
                    raise SandboxError("a terminated sandbox cannot be used", value=self._id)
        elif not self._cell.alive:
            raise SandboxError("the sandbox's first process is gone, and its files with it", value=self._id)
        return self._cell


async def _whole(work: Coroutine[Any, Any, None]) -> None:
    """Await `work` to its end even when the caller is cancelled."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work)
        await asyncio.wait([asyncio.shield(task)])


async def _to_its_end(work: Callable[[], None]) -> None:
    """Do blocking work in a thread; a cancelled caller waits for its end, for nobody else may touch both."""
    done = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise
