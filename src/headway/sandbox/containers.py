"""The providers `podman` and `docker`: one container a sandbox, through the engine's command-line program.

A container is made at the first use: no network, a read-only root, its work folder and its temporary folders
in memory with a size, no capabilities, no new privileges, limits on processes, memory and CPU. Its first
process is inside.py, as the container's root without capabilities; commands run as another user, so that a
program can neither read nor end it. (remote.py says how commands run and end.)

A container's name is chosen before it is made, so a start that fails, or is cancelled at any moment, is
undone by that name. Labels tell its run, its id and its owner; `reap` finds containers by the run's, whoever
made them. Containers outlive a controller that is killed, until the run is reaped.

Run against podman 4.3.1 with crun, as root (`make test-containers`). In `make test` a stand-in runs every
command, and refuses flags that the engines do not document.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import socket
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.protocols import Guarantee
from headway.sandbox import command_line
from headway.sandbox.layout import WORK
from headway.sandbox.machine import MODEL_UID, Output, program
from headway.sandbox.remote_provider import USAGE_OF_MACHINES, RemoteProvider

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings

Engine = Literal["podman", "docker"]

_ASKED = {"docker": ("version", "--format", "{{.Server.Version}}"), "podman": ("info", "--format", "json")}
_ANSWER_S = 60.0  # for an engine to answer a question, or to end a container
_TRIES = 3
_BESIDE_PROCESSES = 5  # first process, inside.py, relay.py, and the engine's own
_BESIDE_MB = 64  # memory of those
_OPEN_FILES = 4096  # of one process, the relay's connections among them


class ContainerProvider(RemoteProvider):
    """Makes sandboxes with a container engine."""

    pauses = True
    images = True

    def __init__(self, settings: SandboxSettings, engine: Engine) -> None:
        super().__init__(settings)
        self._engine: Engine = engine

    async def preflight(self) -> list[Guarantee]:
        """Ask the engine, look for the image, run one command, and say what holds.

        Raises SandboxUnavailableError with the remedy when one of them fails.
        """
        engine, image = self._engine, self._settings.container_image
        if shutil.which(engine) is None:
            raise SandboxUnavailableError(
                f"the provider {engine} needs the program {engine}, which is not on PATH",
                key="sandbox.provider",
                remedy=f"Install {engine}, or choose another sandbox.provider",
            )
        code, _, said = await command_line.ask([engine, *_ASKED[engine]], _ANSWER_S)
        if code:
            raise SandboxUnavailableError(
                f"{engine} does not answer: {said.strip()}",
                key="sandbox.provider",
                remedy="Start it (docker: `sudo systemctl start docker` or Docker Desktop, with your user in "
                "the group docker; podman on macOS: `podman machine start`), or choose another provider",
            )
        code, _, said = await command_line.ask(
            [engine, "image", "inspect", "--format", "{{.Id}}", image], _ANSWER_S
        )
        if code:
            raise SandboxUnavailableError(
                f"the image of the sandboxes is not here: {said.strip()}",
                value=image,
                key="sandbox.container_image",
                remedy=f"Run `{engine} pull {image}` (nothing is pulled during a run), or name another image",
            )
        await self.image()
        await self._probe()
        return _guarantees(engine)

    async def _probe(self) -> None:
        probe = self.new(*self.probe)
        try:
            result = await probe.exec(["python3", "-I", "-S", "-c", "print('ok')"])
        except SandboxUnavailableError:
            raise
        except SandboxError as error:
            raise SandboxUnavailableError(
                f"a container must start and run python3: {error.rule}",
                value=self._settings.container_image,
                remedy=f"See what `{self._engine} run --rm IMAGE python3 -V` says; name an image with Python "
                "3.8 or later by sandbox.container_image; rootless engines need cgroup v2 for limits",
            ) from error
        finally:
            await probe.terminate()
        if result.stdout != "ok\n":
            raise SandboxUnavailableError(
                f"a container must run python3: {result.stderr.strip() or result.cause}",
                value=self._settings.container_image,
                remedy="Name an image with Python 3.8 or later by sandbox.container_image",
            )

    async def reap(self, run_id: str) -> int:
        """End every container of a run, whoever made it, and what of it was never made."""
        return await self.reap_own(run_id) + await self._remove_all(f"headway.run={run_id}")

    async def end(self, sandbox_id: str, labels: Mapping[str, str]) -> bool:
        """End one sandbox, or the container that a dead process left of it."""
        if await self.end_own(sandbox_id):
            return True
        run = labels.get("run", "none")
        return await self._remove_all(f"headway.run={run}", f"headway.id={sandbox_id}") > 0

    async def _remove_all(self, *labels: str) -> int:
        """Take away every container that has all of these labels; return how many."""
        command = [self._engine, "ps", "--all", "--quiet", "--no-trunc"]
        for label in labels:
            command += ["--filter", f"label={label}"]
        code, told, said = await command_line.ask(command, _ANSWER_S)
        if code:
            raise SandboxError(f"{self._engine} could not list containers: {said.strip()}", value=labels)
        for container in told.split():
            await remove(self._engine, container)
        return len(told.split())

    def machine(self, sandbox_id: str, labels: Mapping[str, str]) -> _Container:
        """Return a container that is not made yet."""
        return _Container(self._engine, self._settings, sandbox_id, labels)


async def remove(engine: str, container: str) -> None:
    """Take a container away, running or not; idempotent. Raises SandboxError when the engine does not."""
    said = ""
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(0.2 * 2**attempt)
        try:
            code, _, said = await command_line.ask(
                [engine, "rm", "--force", "--volumes", container], _ANSWER_S
            )
        except SandboxError as error:
            said = error.rule
            continue
        if not code or "no such container" in said.lower() or "no container with" in said.lower():
            return
    raise SandboxError(
        f"a container could not be removed: {said.strip()}",
        value=container,
        remedy=f"Run `{engine} rm --force {container}`",
    )


class _Container:
    """One container."""

    drop_uid = 0
    pauses = True

    def __init__(
        self, engine: Engine, settings: SandboxSettings, sandbox_id: str, labels: Mapping[str, str]
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._labels = {
            "headway": "sandbox",
            "headway.run": labels.get("run", "none"),
            "headway.id": sandbox_id,
            "headway.owner": f"{socket.gethostname()}:{os.getpid()}",
        } | {f"headway.label.{key}": value for key, value in labels.items()}
        self._image = labels.get("image") or settings.container_image
        self.name = f"headway-{uuid.uuid4().hex}"
        self.watched = engine == "podman"  # whose tmpfs have no limit on files
        self._still = False

    async def make(self) -> None:
        """Start it, detached. What is there of it when this fails, `end` removes."""
        code, _, said = await command_line.ask(self.command(), self._settings.start_timeout_s)
        if code:
            raise SandboxError(f"a container did not start: {said.strip()}", value=self._image)

    def command(self) -> list[str]:
        """Return the command line that starts it."""
        settings = self._settings
        memory = memory_mb(settings)
        flags = "rw,exec,nosuid,nodev,mode=1777"
        if self._engine == "docker":
            flags += f",nr_inodes={settings.max_files + 1}"  # one is the folder's own
        words = ["run", "--detach", "--name", self.name, "--pull", "never", "--log-driver", "none"]
        for key, value in self._labels.items():
            words += ["--label", f"{key}={value}"]
        words += ["--network", "none", "--hostname", "sandbox", "--read-only", "--no-healthcheck"]
        if self._engine == "podman":
            words += ["--read-only-tmpfs=false"]  # or it would add writable folders of any size
        words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "0:0"]
        words += ["--pids-limit", str(settings.max_processes + _BESIDE_PROCESSES)]
        words += ["--memory", f"{memory}m", "--memory-swap", f"{memory}m", "--cpus", str(settings.cpus)]
        words += [word for limit in self._ulimits() for word in ("--ulimit", limit)]
        words += ["--shm-size", f"{settings.tmpfs_mb}m", "--workdir", WORK]
        words += ["--tmpfs", f"{WORK}:{flags},size={settings.work_mb}m"]
        words += ["--tmpfs", f"/tmp:{flags},size={settings.tmpfs_mb}m"]
        first, *rest = program("hold")
        return [self._engine, *words, "--entrypoint", first, self._image, *rest]

    def _ulimits(self) -> list[str]:
        """Return limits of the container's first process; inside.py sets the programs' own.

        podman asks for its own defaults otherwise, which a process with lower hard limits may not give.
        """
        files = max(_OPEN_FILES, self._settings.max_open_files)
        if self._engine == "docker":  # the daemon's hard limits are not this process's
            return [f"nofile={files}:{files}"]
        files = _at_most(files, resource.RLIMIT_NOFILE)
        limits = [f"nofile={files}:{files}"]
        with contextlib.suppress(OSError):  # of the model's user in all containers: as many as there may be
            most = int(Path("/proc/sys/kernel/pid_max").read_text())  # podman lowers its own to it
            processes = _at_most(most, resource.RLIMIT_NPROC)
            limits.append(f"nproc={processes}:{processes}")
        return limits

    async def call(
        self,
        argv: Sequence[str],
        feed: AsyncIterator[bytes],
        out: Output,
        err: Output,
        *,
        own: bool = False,
    ) -> int:
        """Run a program in it as the model's user, or as the container's root, which has no capabilities."""
        user = "0:0" if own else f"{MODEL_UID}:{MODEL_UID}"
        command = [self._engine, "exec", "--interactive", "--user", user, self.name]
        return await command_line.run([*command, *argv], feed, out, err)

    async def make_room(self) -> None:
        """Raise its limit on processes, so that what fills it can be killed; it stays raised."""
        limit = str(2 * (self._settings.max_processes + _BESIDE_PROCESSES))
        await self._ask("update", "--pids-limit", limit, self.name)

    async def hold(self, still: bool) -> None:
        """Freeze every process, or let them go on."""
        if still != self._still:
            await self._ask("pause" if still else "unpause", self.name)
            self._still = still

    async def there(self) -> bool:
        """Say whether it exists and runs, or stands still (which is not `.State.Running` to podman)."""
        words = ("inspect", "--type", "container", "--format", "{{.State.Status}}", self.name)
        code, told, _ = await command_line.ask([self._engine, *words], _ANSWER_S)
        return code == 0 and told.strip() in ("running", "paused")

    async def end(self) -> None:
        """Take it away; idempotent."""
        if self._still:  # what is frozen may not see that it is killed
            await command_line.ask([self._engine, "unpause", self.name], _ANSWER_S)
            self._still = False
        await remove(self._engine, self.name)

    async def _ask(self, *words: str) -> None:
        code, _, said = await command_line.ask([self._engine, *words], _ANSWER_S)
        if code:
            raise SandboxError(f"{self._engine} {words[0]} failed: {said.strip()}", value=self.name)


def _at_most(wanted: int, which: int) -> int:
    """Return as much of a resource as this process may hand on."""
    hard = resource.getrlimit(which)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def memory_mb(settings: SandboxSettings) -> int:
    """Return what all processes of a container may hold together, with what it keeps in memory, MiB."""
    return settings.memory_mb + settings.work_mb + 2 * settings.tmpfs_mb + _BESIDE_MB


def _guarantees(engine: Engine) -> list[Guarantee]:
    enforced = (
        "network", "served", "host_files", "environment", "wall", "output", "file_size", "disk", "memory",
        "pids", "privileges", "snapshot",
    )  # fmt: skip
    engines = f"{engine}'s own filter of system calls, whatever it is"
    return [
        *(Guarantee(name, "enforced") for name in enforced),
        USAGE_OF_MACHINES,
        Guarantee("files", "enforced")
        if engine == "docker"
        else Guarantee("files", "best-effort", "podman's tmpfs have no limit on files; they are counted"),
        Guarantee("cpu", "best-effort", "each process has a limit, and all together a share (sandbox.cpus)"),
        Guarantee("syscalls", "best-effort", engines),
        Guarantee("nested_namespaces", "best-effort", engines)
        if engine == "docker"
        else Guarantee("nested_namespaces", "absent", "podman lets programs make namespaces of their own"),
        Guarantee(
            "controller_death", "absent", "containers outlive a killed controller until the run is reaped"
        ),
    ]
