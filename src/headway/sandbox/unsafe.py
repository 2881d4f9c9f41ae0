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

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import SandboxUnavailableError
from headway.core.protocols import ExecLimits, ExecResult, Guarantee, SandboxStats
from headway.sandbox.bubblewrap import BubblewrapProvider, BubblewrapSandbox
from headway.sandbox.files import usage
from headway.sandbox.kept import run_kept
from headway.sandbox.layout import SANDBOX_ENV, Bwrap, Layout
from headway.sandbox.limited import WithoutPauses, WithoutSpawns
from headway.sandbox.serving import listen

if TYPE_CHECKING:
    from headway.sandbox.images import Image
    from headway.sandbox.serving import Service
    from headway.sandbox.settings import SandboxSettings

WARNING = (
    'sandbox.provider = "unsafe-local" contains nothing: what the model writes runs as you, with your files, '
    "your network and your processes"
)
_ELSEWHERE = 'Use sandbox.provider = "local" or "bubblewrap" on Linux, "podman" or "docker" elsewhere'


class UnsafeProvider(BubblewrapProvider):
    """Makes work folders, as the bubblewrap provider does, and runs commands in them, as nobody should.

    Raises SandboxUnavailableError without `sandbox.allow_unsafe`.
    """

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
        super().__init__(settings)

    async def preflight(self) -> list[Guarantee]:
        """Warn, run one command and say what holds.

        Raises SandboxUnavailableError with the remedy when no command can run.
        """
        warnings.warn(WARNING, stacklevel=2)
        await self.image()
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

    def layout(self) -> Layout:
        """Return that folders are the caller's own; no command line is built from it."""
        return Layout(Bwrap("", ()), self.settings, drop_uid=False)

    async def image(self) -> Image | None:
        """Return what every work folder begins with.

        Raises SandboxUnavailableError for an image that is a Python environment.
        """
        image = await super().image()
        if image is not None and image.kind == "python":
            raise SandboxUnavailableError(
                "the provider unsafe-local has no Python environments of its own",
                value=self.settings.image,
                key="sandbox.image",
                remedy="Install the packages into the Python that runs Headway, or choose another provider",
            )
        return image

    def new(self, sandbox_id: str, labels: Mapping[str, str]) -> UnsafeSandbox:
        """Return a sandbox that nothing was made for yet."""
        return UnsafeSandbox(sandbox_id, labels, self)


class UnsafeSandbox(WithoutSpawns, WithoutPauses, BubblewrapSandbox):
    """One work folder and the commands that run in it, one at a time."""

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
            folder = await self._work()
            self._index.programs_run()
            return await run_kept(
                list(argv),
                folder,
                cwd or ".",
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

    async def _begin_to_serve(self, service: Service) -> None:
        """Listen in the host's own network, where every program of the machine can connect."""
        await self._work()
        service.open(listen(service.port))

    async def stats(self) -> SandboxStats:
        """Say what the work folder holds; processes are not asked."""
        settings = self._provider.settings
        if self._folder is None:
            return SandboxStats()
        num_bytes, num_files = usage(self._folder, settings.work_mb << 20, settings.max_files)
        return SandboxStats(disk_bytes=num_bytes, num_files=num_files)


def _environment(folder: Path) -> dict[str, str]:
    """Return what a command's environment holds: nothing of the user's."""
    places = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"
    return SANDBOX_ENV | {"PATH": places, "HOME": str(folder)}


def _guarantees() -> list[Guarantee]:
    """Say what holds: little."""
    linux = sys.platform == "linux"
    absent = ("network", "host_files", "processes", "nested_namespaces", "privileges", "syscalls")
    memory = "the limit holds for each process, not for all together"
    end = "a program can end or escape its keeper on purpose"
    return [
        *(Guarantee(name, "absent", _ELSEWHERE) for name in absent),
        Guarantee("served", "absent", "every program of the machine can connect to what a sandbox is served"),
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
