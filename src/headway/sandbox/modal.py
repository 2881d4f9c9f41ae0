"""The provider `modal`: one machine of Modal's service a sandbox, through its official SDK (extra `modal`).

A machine is made at the first use, from `container_image`, without a network and with limits on memory and
CPU; it ends by itself after `modal_lifetime_s`. Its first process is inside.py; commands run as a user that
is not root, and inside.py, as root, watches the size of the work folder. (remote.py says how commands run
and end.) A machine's name is chosen before it is made, so that asking again finds what was made, and what was
begun can be undone by it. Tags tell its run, its id and its owner; `reap` finds machines by the run's.

A snapshot is an image of the service; what lies on the host is its id. The service drops it after
`_SNAPSHOT_S`; the SDK has no call that drops one before.

Calls that may be repeated without harm are, with growing pauses, when the service is out of reach, out of
room or asks for patience, and by nobody above; what then still fails is a SandboxError, never an outcome.

Not run against the real service by us: the tests speak with the real SDK to a stand-in of its wire.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import shutil
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.protocols import Guarantee
from headway.sandbox.remote import MODEL_UID, Output, RemoteSandbox, program
from headway.sandbox.roster import Roster
from headway.sandbox.whole import whole

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings

T = TypeVar("T")

_TRIES = 5
_ANSWER_S = 120.0  # for one answer of the service
_BUILD_S = 1200.0  # for the service to fetch an image that it does not have yet
_SNAPSHOT_S = 7 * 24 * 3600
_BESIDE_MB = 64  # memory of the first process and of inside.py
_DRAIN_S = 2.0
_PIECE_BYTES = 1 << 18
_TRANSIENT = ("ResourceExhaustedError", "ServiceError", "InternalError", "ConnectionError", "TimeoutError")


class Service:
    """The SDK, its client, the app and the image, had at the first use; and who repeats its calls."""

    first_pause_s = 0.5  # before the first repetition; each further one waits twice as long

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._lock = asyncio.Lock()
        self.sdk: Any = None
        self.client: Any = None
        self.app: Any = None
        self.image: Any = None

    async def open(self) -> None:
        """Connect once. Raises SandboxUnavailableError for what only a person can put right."""
        async with self._lock:
            if self.app is not None:
                return
            try:
                self.sdk = importlib.import_module("modal")
            except ImportError as error:
                raise SandboxUnavailableError(
                    f"the provider modal needs Modal's SDK, which cannot be imported: {error}",
                    key="sandbox.provider",
                    remedy="Run `pip install 'headway[modal]'`, or choose another sandbox.provider",
                ) from error
            try:
                self.client = await self.sdk.Client.from_env.aio()
            except self.sdk.exception.AuthError as error:
                raise SandboxUnavailableError(
                    f"the provider modal needs credentials that the service takes: {_said(error)}",
                    key="sandbox.provider",
                    remedy="Run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET",
                ) from error
            except self.sdk.exception.Error as error:
                raise SandboxError(f"Modal's service cannot be reached: {_said(error)}") from error
            self.image = self.sdk.Image.from_registry(self._settings.container_image)
            name = self._settings.modal_app
            look = self.sdk.App.lookup.aio
            self.app = await self.again(
                "find its app", lambda: look(name, client=self.client, create_if_missing=True)
            )

    async def once(self, what: str, call: Callable[[], Awaitable[T]], timeout_s: float = _ANSWER_S) -> T:
        """Make one call of the SDK. Every failure is a SandboxError; credentials are the user's to mend."""
        errors = self.sdk.exception
        try:
            async with asyncio.timeout(timeout_s):
                return await call()
        except errors.AuthError as error:
            raise SandboxUnavailableError(
                f"Modal's service does not take the credentials: {_said(error)}",
                key="sandbox.provider",
                remedy="Run `modal token new`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET",
            ) from error
        except errors.Error as error:
            raise _Failed(f"Modal could not {what}: {_said(error)}", type(error).__name__) from error
        except TimeoutError as error:
            raise _Failed(f"Modal must {what} within {timeout_s:g} s", "TimeoutError") from error
        except OSError as error:
            raise _Failed(f"Modal could not {what}: {error}", "ConnectionError") from error

    async def again(self, what: str, call: Callable[[], Awaitable[T]], timeout_s: float = _ANSWER_S) -> T:
        """Make a call that may be repeated without harm, and repeat it while that may help."""
        pause_s = self.first_pause_s
        for left in reversed(range(_TRIES)):
            try:
                return await self.once(what, call, timeout_s)
            except _Failed as error:
                if not left or error.kind not in _TRANSIENT:
                    raise
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise AssertionError("unreachable")


class _Failed(SandboxError):
    """A call that failed, and the SDK's name for how."""

    def __init__(self, rule: str, kind: str) -> None:
        super().__init__(rule)
        self.kind = kind


def _said(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


class ModalProvider:
    """Makes sandboxes with Modal."""

    snapshots = True
    spawns = False
    pauses = False

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._roster: Roster[ModalSandbox] = Roster(settings.max_live)
        self.service = Service(settings)

    async def preflight(self) -> list[Guarantee]:
        """Connect, have the image fetched, run one command, and say what holds.

        Raises SandboxUnavailableError with the remedy for what only a person can put right, SandboxError when
        the service fails.
        """
        service = self.service
        await service.open()
        await service.again(
            "fetch the image", lambda: service.image.build.aio(service.app), timeout_s=_BUILD_S
        )
        probe = self._sandbox("preflight", {"run": f"preflight-{os.getpid()}"})
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

    async def create(self, sandbox_id: str, labels: Mapping[str, str]) -> ModalSandbox:
        """Make a sandbox, its machine at the first use; label `run` is what `reap` would end it by."""
        sandbox = self._sandbox(sandbox_id, labels)
        self._roster.add(sandbox)
        return sandbox

    async def alive(self, sandbox_id: str) -> bool:
        """Say whether a sandbox's machine still runs."""
        sandbox = self._roster.get(sandbox_id)
        return sandbox is not None and await sandbox.intact()

    async def snapshot(self, sandbox_id: str, path: Path) -> None:
        """Have the service keep the machine's files, and write what names them to a new folder `path`.

        Raises SandboxError when there is no such sandbox, or it cannot be kept.
        """
        await self._roster.wanted(sandbox_id).copy_to(path)

    async def restore(self, sandbox_id: str, labels: Mapping[str, str], path: Path) -> ModalSandbox:
        """Make a sandbox whose machine begins with the files of a snapshot.

        Raises SandboxError when the snapshot is not there; nothing is left behind then.
        """
        sandbox = await self.create(sandbox_id, labels)
        try:
            await sandbox.copy_from(path)
        except BaseException:
            await whole(sandbox.terminate())
            raise
        return sandbox

    async def discard(self, path: Path) -> None:
        """Forget a snapshot; idempotent. The service drops it when its time is over."""
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)

    async def list(self, labels: Mapping[str, str]) -> list[str]:
        """Return ids of this provider's live sandboxes whose labels include these."""
        return [sandbox.id for sandbox in self._roster.having(labels)]

    async def reap(self, run_id: str) -> int:
        """End every machine of a run, whoever made it, and what of it was never made."""
        ended = 0
        for sandbox in self._roster.having({"run": run_id}):
            await sandbox.terminate()
            ended += 1
        await self.service.open()
        for machine in await self.service.again("list machines", lambda: self._of_run(run_id)):
            await self.service.again("end a machine", machine.terminate.aio)
            ended += 1
        return ended

    async def _of_run(self, run_id: str) -> list[Any]:
        service = self.service
        tags = {"headway-run": tag_value(run_id)}
        found = service.sdk.Sandbox.list.aio(app_id=service.app.app_id, tags=tags, client=service.client)
        return [machine async for machine in found]

    def _sandbox(self, sandbox_id: str, labels: Mapping[str, str]) -> ModalSandbox:
        machine = _Machine(self.service, self._settings, sandbox_id, labels)
        return ModalSandbox(
            sandbox_id, labels, machine, self._settings, on_end=lambda: self._roster.forget(sandbox_id)
        )


class ModalSandbox(RemoteSandbox):
    """One machine of the service, made at the first use, and the commands that run in it, one at a time."""

    machine: _Machine

    async def copy_to(self, path: Path) -> None:
        """Have the service keep the files; `path` becomes a folder that names what it keeps."""
        async with self._turn:
            await self._use()
            image_id = await self.machine.keep()
            await asyncio.to_thread(_write_name, path, image_id)

    async def copy_from(self, path: Path) -> None:
        """Begin with the files that a snapshot names."""
        async with self._turn:
            self.machine.image_id = await asyncio.to_thread(_read_name, path)
            await self._use()


def _write_name(path: Path, image_id: str) -> None:
    draft = path.with_name(path.name + ".draft")
    try:
        if os.path.lexists(path):
            raise SandboxError("a copy must not replace anything", value=str(path))
        draft.mkdir(mode=0o700, parents=True, exist_ok=True)
        (draft / "modal.json").write_text(json.dumps({"image_id": image_id}), encoding="utf-8")
        draft.rename(path)
    except OSError as error:
        raise SandboxError(f"a snapshot cannot be written: {error}", value=str(path)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _read_name(path: Path) -> str:
    try:
        return str(json.loads((path / "modal.json").read_text(encoding="utf-8"))["image_id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SandboxError(f"a snapshot cannot be read: {error!r}", value=str(path)) from error


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
        self.image_id = ""  # of a snapshot to begin with
        self._name = ""
        self._sandbox: Any = None

    async def make(self) -> None:
        """Make it, as often as may help: the name finds what an earlier attempt made."""
        service, settings = self._service, self._settings
        await service.open()
        self._name = f"headway-{uuid.uuid4().hex}"
        image = service.image
        if self.image_id:
            image = service.sdk.Image.from_id(self.image_id, client=service.client)
        memory = settings.memory_mb + settings.work_mb + settings.tmpfs_mb + _BESIDE_MB

        async def create() -> Any:
            try:
                return await service.sdk.Sandbox.create.aio(
                    *program("hold"),
                    app=service.app,
                    client=service.client,
                    image=image,
                    name=self._name,
                    tags=self._tags,
                    timeout=settings.modal_lifetime_s,
                    block_network=True,
                    cpu=(min(settings.cpus, 0.125), settings.cpus),
                    memory=(min(memory, 128), memory),
                )
            except service.sdk.exception.AlreadyExistsError:
                return await self._find()

        self._sandbox = await service.again("make a machine", create, settings.start_timeout_s)

    async def _find(self) -> Any:
        service = self._service
        return await service.sdk.Sandbox.from_name.aio(
            self._settings.modal_app, self._name, client=service.client
        )

    async def call(self, argv: Sequence[str], feed: AsyncIterator[bytes], out: Output, err: Output) -> int:
        """Run a program in it as root; inside.py gives root up."""
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

    async def keep(self) -> str:
        """Have its files kept; return what names them."""
        image = await self._service.again(
            "keep a machine's files", lambda: self._sandbox.snapshot_filesystem.aio(ttl=_SNAPSHOT_S)
        )
        return str(image.object_id)

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
    enforced = ("network", "host_files", "environment", "wall", "output", "file_size", "syscalls", "snapshot")
    watched = "the work folder is looked at ten times a second; the machine's own disk has no limit"
    return [
        *(Guarantee(name, "enforced") for name in enforced),
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
