"""The provider `unsafe-local`: plain subprocesses in a work folder. It contains nothing.

For machines without namespaces, macOS among them, and for code that is trusted as one's own. A command runs
as the user, sees the user's files, network and processes, and can change them. What holds against accidents:
a wall limit, limits on output, on the size of files and on CPU, a watch over the number of processes and over
the work folder, and the end of a command's processes with it. What does not is said by `preflight`.

It refuses to be made without `sandbox.allow_unsafe`, and warns at every start.

Folders lie at `<directory>/<run id>/<sandbox id>`, so that `reap` finds what a killed run left. Processes end
with the worker, killed or not: each command has a keeper that reads a pipe of the worker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.protocols import Cause, ExecLimits, ExecResult, Guarantee, SandboxStats
from headway.sandbox import files
from headway.sandbox.copies import copy_tree
from headway.sandbox.kept import run_kept
from headway.sandbox.limited import WithoutPauses, WithoutSpawns
from headway.sandbox.roster import Roster
from headway.sandbox.whole import to_its_end

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings

WARNING = (
    'sandbox.provider = "unsafe-local" contains nothing: what the model writes runs as you, with your files, '
    "your network and your processes"
)
_ELSEWHERE = 'Use sandbox.provider = "local" or "bubblewrap" on Linux, "podman" or "docker" elsewhere'


class UnsafeProvider:
    """Makes work folders and runs commands in them.

    Raises SandboxUnavailableError without `sandbox.allow_unsafe`.
    """

    snapshots = True
    spawns = False
    pauses = False

    def __init__(self, settings: SandboxSettings) -> None:
        if not settings.allow_unsafe:
            raise SandboxUnavailableError(
                "the provider unsafe-local contains nothing and must be allowed",
                key="sandbox.allow_unsafe",
                remedy="Choose another provider, or set sandbox.allow_unsafe = true on a machine that holds "
                "nothing of value",
            )
        self._settings = settings
        self._roster: Roster[UnsafeSandbox] = Roster(settings.max_live)

    async def preflight(self) -> list[Guarantee]:
        """Warn, run one command and say what holds.

        Raises SandboxUnavailableError with the remedy when no command can run.
        """
        warnings.warn(WARNING, stacklevel=2)
        probe = UnsafeSandbox("preflight", {"run": f"preflight-{os.getpid()}"}, self)
        try:
            result = await probe.exec(["python3", "-I", "-S", "-c", "print('ok')"])
        finally:
            await probe.terminate()
        if result.stdout != "ok\n":
            raise SandboxUnavailableError(
                f"the sandbox must run python3: {result.stderr or result.cause}",
                remedy="Install Python 3 where programs are looked for, /usr/local/bin or /usr/bin",
            )
        return _guarantees()

    async def create(self, sandbox_id: str, labels: Mapping[str, str]) -> UnsafeSandbox:
        """Make a sandbox; label `run` names the run that `reap` would end it with."""
        sandbox = UnsafeSandbox(sandbox_id, labels, self)
        self._roster.add(sandbox)
        return sandbox

    async def alive(self, sandbox_id: str) -> bool:
        """Say whether a sandbox's work folder is the one that was made; it has nothing else that lasts."""
        sandbox = self._roster.get(sandbox_id)
        return sandbox is not None and sandbox.intact

    async def snapshot(self, sandbox_id: str, path: Path) -> None:
        """Copy the work folder to `path` (copies.py says what is kept of it).

        Raises SandboxError when there is no such sandbox, or it cannot be copied.
        """
        await self._roster.wanted(sandbox_id).copy_to(path)

    async def restore(self, sandbox_id: str, labels: Mapping[str, str], path: Path) -> UnsafeSandbox:
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
        return [sandbox.id for sandbox in self._roster.having(labels)]

    async def reap(self, run_id: str) -> int:
        """End this process's sandboxes of a run and remove folders that dead processes left.

        For whoever owns the run, before its workers start or after they ended: folders that another live
        process uses are removed too.
        """
        ended = 0
        for sandbox in self._roster.having({"run": run_id}):
            await sandbox.terminate()
            ended += 1
        folder = self.root() / quote(run_id, safe="")
        if folder.is_dir():
            for orphan in os.listdir(folder):
                await asyncio.to_thread(files.remove_tree, folder / orphan)
                ended += 1
            files.remove_tree(folder)
        return ended

    def forget(self, sandbox_id: str) -> None:
        """Called by a sandbox that has ended."""
        self._roster.forget(sandbox_id)

    def root(self) -> Path:
        """Return the folder of all work folders, made and checked to be the caller's own."""
        if self._settings.directory:
            root = Path(self._settings.directory).expanduser()
        else:
            root = Path(tempfile.gettempdir()) / f"headway-unsafe-{os.geteuid()}"
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            info = root.lstat()
        except OSError as error:
            raise SandboxError(f"the sandboxes' folder cannot be made: {error}", value=str(root)) from error
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            raise SandboxError("the sandboxes' folder must be a folder of your own", value=str(root))
        return root.resolve()

    @property
    def settings(self) -> SandboxSettings:
        """The limits of every sandbox."""
        return self._settings


class UnsafeSandbox(WithoutSpawns, WithoutPauses):
    """One work folder and the commands that run in it, one at a time."""

    def __init__(self, sandbox_id: str, labels: Mapping[str, str], provider: UnsafeProvider) -> None:
        self._id = sandbox_id
        self.labels = dict(labels)
        self._provider = provider
        self._folder: Path | None = None
        self._inode = 0  # of the folder, which somebody might replace
        self._turn = asyncio.Lock()
        self._terminated = False

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
        """Run a command in the work folder; the processes that it started end with it.

        Limits that are not given come from the settings. Raises SandboxError when it could not start.
        """
        settings = self._provider.settings
        async with self._turn:
            folder = self._work()
            return await run_kept(
                list(argv),
                folder,
                "/".join(files.parts_of(cwd)) if cwd else ".",
                _environment(folder) | dict(env or {}),
                stdin,
                limits or ExecLimits(settings.wall_s, settings.output_bytes),
                {
                    "AS": settings.memory_mb << 20,
                    "FSIZE": settings.work_mb << 20,
                    "NOFILE": settings.max_open_files,
                    "CORE": 0,
                    "CPU": settings.cpu_s,
                    "processes": settings.max_processes,
                },
                settings.start_timeout_s,
                lambda: self._over_quota(folder),
            )

    async def stats(self) -> SandboxStats:
        """Say what the work folder holds; processes are not asked."""
        settings = self._provider.settings
        if self._folder is None:
            return SandboxStats()
        num_bytes, num_files = files.usage(self._folder, settings.work_mb << 20, settings.max_files)
        return SandboxStats(disk_bytes=num_bytes, num_files=num_files)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below the work folder."""
        async with self._turn:
            files.write_file(self._work(), path, data, None)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Return at most the first `max_bytes` of a file below the work folder; no link is followed."""
        async with self._turn:
            return files.read_file(self._work(), path, max_bytes)

    @property
    def intact(self) -> bool:
        """Whether the work folder is there, or was never made."""
        if self._folder is None:
            return not self._terminated
        try:
            return self._folder.lstat().st_ino == self._inode
        except OSError:
            return False

    async def copy_to(self, path: Path) -> None:
        """Copy the work folder to a new `path`; a command that runs ends first."""
        async with self._turn:
            folder = self._work()
            await to_its_end(lambda: copy_tree(folder, path))

    async def copy_from(self, path: Path) -> None:
        """Begin with a copy of `path` as the work folder."""
        async with self._turn:
            folder = self._place()
            await to_its_end(lambda: copy_tree(path, folder))
            self._folder, self._inode = folder, folder.lstat().st_ino

    async def terminate(self) -> None:
        """End the running command within a tenth of a second and remove the files; idempotent."""
        self._terminated = True
        async with self._turn:
            if self._folder is not None:
                await asyncio.to_thread(files.remove_tree, self._folder)
                with contextlib.suppress(OSError):  # the run's other sandboxes are still in it
                    self._folder.parent.rmdir()
                self._folder = None
        self._provider.forget(self._id)

    def _work(self) -> Path:
        """Return the work folder, made at first use."""
        if self._folder is None:
            folder = self._place()
            try:
                folder.mkdir(mode=0o700, parents=True)
                self._inode = folder.lstat().st_ino
            except OSError as error:
                raise SandboxError(f"a work folder cannot be made: {error}", value=str(folder)) from error
            self._folder = folder
        elif self._terminated:
            raise SandboxError("a terminated sandbox cannot be used", value=self._id)
        return self._folder

    def _place(self) -> Path:
        """Return where the work folder is to be."""
        if self._terminated:
            raise SandboxError("a terminated sandbox cannot be used", value=self._id)
        run = quote(self.labels.get("run", "none"), safe="")
        return self._provider.root() / run / quote(self._id, safe="")

    def _over_quota(self, folder: Path) -> Cause | None:
        if self._terminated:
            return "killed"
        settings = self._provider.settings
        max_bytes = settings.work_mb << 20
        num_bytes, num_files = files.usage(folder, max_bytes, settings.max_files)
        if num_bytes > max_bytes:
            return "disk"
        return "inodes" if num_files > settings.max_files else None


def _environment(folder: Path) -> dict[str, str]:
    """Return what a command's environment holds: nothing of the user's."""
    places = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    return {"PATH": places, "HOME": str(folder), "LANG": "C.UTF-8"}


def _guarantees() -> list[Guarantee]:
    """Say what holds: little."""
    linux = sys.platform == "linux"
    absent = ("network", "host_files", "processes", "nested_namespaces", "privileges", "syscalls")
    memory = "the limit holds for each process, not for all together"
    end = "a program can end or escape its keeper on purpose"
    return [
        *(Guarantee(name, "absent", _ELSEWHERE) for name in absent),
        Guarantee("environment", "best-effort", "a program starts with an empty one, and can read others'"),
        Guarantee("wall", "best-effort", end),
        Guarantee("output", "enforced"),
        Guarantee("file_size", "enforced"),
        Guarantee("snapshot", "enforced"),
        Guarantee("cpu", "best-effort", "the limit holds for each process; the wall limit bounds the sum"),
        Guarantee("disk", "best-effort", "only the work folder counts, looked at ten times a second"),
        Guarantee("pids", "best-effort", "processes are counted ten times a second"),
        Guarantee("daemons", "best-effort", end if linux else f"{end}; here daemons are found by looking"),
        Guarantee("memory", "best-effort", memory) if linux else Guarantee("memory", "absent", _ELSEWHERE),
    ]
