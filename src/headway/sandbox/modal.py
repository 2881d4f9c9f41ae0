"""The provider `modal`: one machine of Modal's service a sandbox, through its official SDK (extra `modal`).

A machine is made at the first use, from `container_image`, without a network and with limits on memory and
CPU; it ends by itself after `modal_lifetime_s`. Its first process is inside.py; commands run as a user that
is not root, and inside.py, as root, watches the size of the work folder. (remote.py says how commands run
and end.) A machine's name is chosen before it is made, so that asking again finds what was made, and what was
begun can be undone by it. Tags tell its run, its id and its owner; `reap` finds machines by the run's.

Snapshots are those of every provider, in a store on the host. The service's own are not used: their ids do
not tell the state, and they cannot be read here.

Not run against the real service by us: the tests speak with the real SDK to a stand-in of its wire.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.protocols import Guarantee
from headway.sandbox.machine import MODEL_UID, Output, program
from headway.sandbox.modal_service import Service
from headway.sandbox.remote_provider import USAGE_OF_MACHINES, RemoteProvider
from headway.sandbox.whole import whole

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings

_BUILD_S = 1200.0  # for the service to fetch an image that it does not have yet
_BESIDE_MB = 64  # memory of the first process and of inside.py
_DRAIN_S = 2.0
_PIECE_BYTES = 1 << 18


class ModalProvider(RemoteProvider):
    """Makes sandboxes with Modal."""

    def __init__(self, settings: SandboxSettings) -> None:
        super().__init__(settings)
        self.service = Service(settings)

    async def preflight(self) -> list[Guarantee]:
        """Connect, have the image fetched, run one command, and say what holds.

        Raises SandboxUnavailableError with the remedy for what only a person can put right, SandboxError when
        the service fails.
        """
        service = self.service
        await service.open()
        await self.image()
        await service.again(
            "fetch the image", lambda: service.image.build.aio(service.app), timeout_s=_BUILD_S
        )
        probe = self.new(*self.probe)
        try:
            result = await probe.exec(["python3", "-I", "-S", "-c", "print('ok')"])
        finally:
            await whole(probe.terminate())
        if result.stdout != "ok\n":
            raise SandboxUnavailableError(
                f"a machine must run python3: {result.stderr.strip() or result.cause}",
                value=self._settings.container_image,
                remedy="Name an image with Python 3.8 or later by sandbox.container_image",
            )
        return _guarantees()

    async def reap(self, run_id: str) -> int:
        """End every machine of a run, whoever made it, and what of it was never made."""
        return await self.reap_own(run_id) + await self._end_all({"headway-run": tag_value(run_id)})

    async def end(self, sandbox_id: str, labels: Mapping[str, str]) -> bool:
        """End one sandbox, or the machine that a dead process left of it."""
        if await self.end_own(sandbox_id):
            return True
        run = tag_value(labels.get("run", "none"))
        return await self._end_all({"headway-run": run, "headway-id": tag_value(sandbox_id)}) > 0

    async def _end_all(self, tags: dict[str, str]) -> int:
        """End every machine that has all of these tags; return how many."""
        await self.service.open()
        machines = await self.service.again("list machines", lambda: self._having(tags))
        for machine in machines:
            await self.service.again("end a machine", machine.terminate.aio)
        return len(machines)

    async def _having(self, tags: dict[str, str]) -> list[Any]:
        service = self.service
        found = service.sdk.Sandbox.list.aio(app_id=service.app.app_id, tags=tags, client=service.client)
        return [machine async for machine in found]

    def machine(self, sandbox_id: str, labels: Mapping[str, str]) -> _Machine:
        """Return a machine that is not made yet."""
        return _Machine(self.service, self._settings, sandbox_id, labels)


class _Machine:
    """One machine of the service."""

    drop_uid = MODEL_UID
    watched = True
    pauses = False

    def __init__(
        self, service: Service, settings: SandboxSettings, sandbox_id: str, labels: Mapping[str, str]
    ) -> None:
        self._service = service
        self._settings = settings
        self._tags = {
            "headway-run": tag_value(labels.get("run", "none")),
            "headway-id": tag_value(sandbox_id),
            "headway-owner": tag_value(f"{socket.gethostname()}:{os.getpid()}"),
        }
        self._name = ""
        self._sandbox: Any = None

    async def make(self) -> None:
        """Make it, as often as may help: the name finds what an earlier attempt made."""
        service, settings = self._service, self._settings
        await service.open()
        self._name = f"headway-{uuid.uuid4().hex}"
        memory = settings.memory_mb + settings.work_mb + settings.tmpfs_mb + _BESIDE_MB

        async def create() -> Any:
            try:
                return await service.sdk.Sandbox.create.aio(
                    *program("hold"),
                    app=service.app,
                    client=service.client,
                    image=service.image,
                    name=self._name,
                    tags=self._tags,
                    timeout=settings.modal_lifetime_s,
                    block_network=True,
                    cpu=(min(settings.cpus, 0.125), settings.cpus),
                    memory=(min(memory, 128), memory),
                )
            except service.sdk.exception.AlreadyExistsError:
                return await self._find()

        self._sandbox = await service.again("make a machine", create, within_s=settings.start_timeout_s)

    async def _find(self) -> Any:
        service = self._service
        return await service.sdk.Sandbox.from_name.aio(
            self._settings.modal_app, self._name, client=service.client
        )

    async def call(
        self,
        argv: Sequence[str],
        feed: AsyncIterator[bytes],
        out: Output,
        err: Output,
        *,
        own: bool = False,
    ) -> int:
        """Run a program in it as root; inside.py gives root up, but for what is our own."""
        if self._sandbox is None:
            raise SandboxError("there is no machine")
        service = self._service
        process = await service.once("start a program", lambda: self._sandbox.exec.aio(*argv, text=False))

        async def work() -> int:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_pump(process.stdout, out)),
                    group.create_task(_pump(process.stderr, err)),
                ]
                feeding = group.create_task(_feed(process.stdin, feed))
                code = int(await process.wait.aio())
                feeding.cancel()
                await asyncio.wait(tasks, timeout=_DRAIN_S)
                for task in tasks:
                    task.cancel()
            return code

        async def unwrapped() -> int:
            try:
                return await work()
            except BaseExceptionGroup as group:
                raise group.exceptions[0] from group

        return await service.once(
            "follow a program", unwrapped, timeout_s=float(self._settings.modal_lifetime_s)
        )

    async def make_room(self) -> None:
        """Nothing to do: its processes are not counted."""

    async def hold(self, still: bool) -> None:
        """Raise SandboxError: the service's machines cannot stand still."""
        raise SandboxError("sandboxes of this provider cannot stand still", value=still)

    async def there(self) -> bool:
        """Say whether it runs."""
        return await self._service.again("look at a machine", self._sandbox.poll.aio) is None

    async def end(self) -> None:
        """End it, or what was begun of it; idempotent."""
        service, self._name, name = self._service, "", self._name
        if self._sandbox is not None:
            await service.again("end a machine", self._sandbox.terminate.aio)
            self._sandbox = None
        elif name:  # it was begun, and nobody knows how far it got
            self._name = name

            async def undo() -> None:
                try:
                    machine = await self._find()
                except service.sdk.exception.NotFoundError:
                    return
                await machine.terminate.aio()

            await service.again("end a machine", undo)
            self._name = ""


def tag_value(text: str) -> str:
    """Return a text as a tag's value: what a tag may not hold is replaced."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63]


async def _pump(stream: Any, output: Output) -> None:
    async for data in stream:
        output.feed(data)


async def _feed(stdin: Any, feed: AsyncIterator[bytes]) -> None:
    async for data in feed:
        for start in range(0, len(data), _PIECE_BYTES):
            stdin.write(data[start : start + _PIECE_BYTES])
            await stdin.drain.aio()
    stdin.write_eof()
    await stdin.drain.aio()


def _guarantees() -> list[Guarantee]:
    enforced = (
        "network", "served", "host_files", "environment", "wall", "output", "file_size", "syscalls",
        "snapshot",
    )  # fmt: skip
    watched = "the work folder is looked at ten times a second; the machine's own disk has no limit"
    return [
        *(Guarantee(name, "enforced") for name in enforced),
        USAGE_OF_MACHINES,
        Guarantee("memory", "enforced"),
        Guarantee("cpu", "best-effort", "each process has a limit, and all together a share (sandbox.cpus)"),
        Guarantee("disk", "best-effort", watched),
        Guarantee("files", "best-effort", watched),
        Guarantee("pids", "best-effort", "the service counts none; memory and the wall limit bound them"),
        Guarantee(
            "controller_death",
            "best-effort",
            "machines of a killed controller last until `reap`, or their time",
        ),
    ]
