"""A sandbox over a machine that is reached only by running programs in it: a container, a service's machine.

Consumes the output of one program in the machine at a time (inside.py, with the model's command below it).
Waits for READY (until `start_timeout_s`), then for the first of: the program's end, the wall limit, a flood
of output, `terminate`, cancellation of the caller. Whatever comes first, the program's client is let go, and
a sweep in the machine kills every process of the model's user, empties the temporary folders and says so;
that is bounded by `ANSWER_S`, and a machine that cannot be swept is ended. So a client that hangs or dies
holds nothing, and a time-out never leaves a program running.

Files pass as the output and input of inside.py too. What comes out of a machine is not believed: names are
single components, no link is followed on the host, bytes and entries are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from headway.core.errors import SandboxError
from headway.core.protocols import Cause, ExecLimits, ExecResult, SandboxStats, Usage
from headway.sandbox import files, inside, tars
from headway.sandbox.causes import exit_cause, signal_cause
from headway.sandbox.countdown import Countdown
from headway.sandbox.layout import WORK
from headway.sandbox.limited import WithoutSpawns
from headway.sandbox.machine import ENVIRONMENT, TEMPORARY, Machine, Output, program
from headway.sandbox.serving import Service, Services
from headway.sandbox.settings import ANSWER_S
from headway.sandbox.sink import Sink
from headway.sandbox.streams import Spool, once, packed, pieces, scratch, unpacked
from headway.sandbox.tars import Allowance
from headway.sandbox.whole import to_its_end, whole
from headway.sandbox.wire import Wire
from headway.sandbox.words import MAX_WORD_BYTES, could_not_run

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from headway.core.protocols import ConnectionHandler
    from headway.sandbox.images import Image
    from headway.sandbox.settings import SandboxSettings
    from headway.sandbox.store import Store

_TOLD_BYTES = 1 << 16
Events: TypeAlias = Mapping[str, int]  # how often limits were met so far (oom, pids), and whether full now


class RemoteSandbox(WithoutSpawns):
    """One machine, made at the first use, and the commands that run in it, one at a time."""

    def __init__(
        self,
        sandbox_id: str,
        labels: Mapping[str, str],
        machine: Machine,
        settings: SandboxSettings,
        *,
        image: Callable[[], Awaitable[Image | None]],
        on_end: Callable[[], None],
    ) -> None:
        self._id = sandbox_id
        self._image = image
        self._on_end = on_end
        self.labels = dict(labels)
        self.machine = machine
        self._settings = settings
        self._turn = asyncio.Lock()
        self._pausing = asyncio.Lock()
        self._paused = False
        self._going_on = asyncio.Event()  # clear while it is paused
        self._going_on.set()
        self._wall: Countdown | None = None  # of the command that runs
        self._made = self._lost = self._terminated = False
        self._begun = False  # whether there may be a machine
        self._events: Mapping[str, int] = {}
        self._running: asyncio.Future[Cause] | None = None
        self._starting: asyncio.Future[bool] | None = None  # until the command that is started begins
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
        """Run a command; every process that it started ends with it.

        Limits that are not given come from the settings. Raises SandboxError when it could not start, or the
        machine failed under it.
        """
        if not argv:
            raise SandboxError("a command must have at least one word")
        settings = self._settings
        wanted = limits or ExecLimits(settings.wall_s, settings.output_bytes)
        job: dict[str, object] = self._job() | {
            "argv": list(argv),
            "cwd": cwd or ".",
            "env": ENVIRONMENT | dict(env or {}),
            "limits": _resources(settings),
            "work_bytes": settings.work_mb << 20 if self.machine.watched else 0,
            "max_files": settings.max_files,
        }
        async with self._turn:
            if self._paused:
                raise SandboxError("a paused sandbox runs nothing until it is resumed", value=self._id)
            await self._use()
            await self._going_on.wait()  # it may have been paused while it was made
            if self._terminated:
                return ExecResult(None, None, "", "", False, "killed", 0.0)
            words = program("run", job)
            if max(map(len, words)) > MAX_WORD_BYTES:  # all of it passes as one
                return could_not_run("it is too long for a machine; write it to a file")
            return await self._run(words, stdin, wanted)

    def serve(
        self, port: int, handler: ConnectionHandler, *, max_connections: int = 64
    ) -> AbstractAsyncContextManager[int]:
        """Let programs of the machine connect to a port, through a relay in it; see `Sandbox`."""
        return self._services.serve(port, handler, max_connections, self._relay)

    async def _relay(self, service: Service) -> None:
        self._usable()
        if not self._made:
            async with self._turn:
                await self._use()
        if self._paused:
            raise SandboxError("a paused sandbox runs nothing until it is resumed", value=self._id)
        await Wire(service, self.machine).begin(self._settings.start_timeout_s)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below /work; no link is followed."""
        job = self._job() | {"parts": files.parts_of(path)}
        async with self._turn:
            await self._use()
            await self._file_call("write", job, once(data), Sink(0), path)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Return at most the first `max_bytes` of a file below /work; no link is followed."""
        job = self._job() | {"parts": files.parts_of(path), "max_bytes": max_bytes}
        out = Sink(max_bytes)
        async with self._turn:
            await self._use()
            await self._file_call("read", job, once(b""), out, path)
        return out.data

    async def prepare(self) -> None:
        """Make the machine now, so that the first command does not wait for it."""
        async with self._turn:
            await self._use()

    async def pause(self) -> None:
        """Freeze every process; idempotent. Raises SandboxError where the machine cannot stand still."""
        if not self.machine.pauses:
            raise SandboxError("sandboxes of this provider cannot stand still", value=self._id)
        async with self._pausing:
            self._usable()
            if self._made:
                if self._starting is not None:  # an engine starts nothing in what stands still
                    await asyncio.wait([self._starting], timeout=self._settings.start_timeout_s)
                await self.machine.hold(still=True)
            self._paused = True
            self._going_on.clear()
            if self._wall is not None:
                self._wall.pause()

    async def resume(self) -> None:
        """Go on; idempotent. Raises SandboxError when the machine was lost meanwhile."""
        if not self.machine.pauses:
            raise SandboxError("sandboxes of this provider cannot stand still", value=self._id)
        async with self._pausing:
            self._usable()
            if self._made:
                if not await self.machine.there():
                    self._lost = True
                    raise SandboxError("the sandbox was lost while it was paused", value=self._id)
                await self.machine.hold(still=False)
            self._paused = False
            self._going_on.set()
            if self._wall is not None:
                self._wall.resume()

    async def stats(self) -> SandboxStats:
        """Say what the machine holds, as inside.py finds it there; CPU and memory where its cgroup tells."""
        self._usable()
        if not self._made:
            return SandboxStats()
        out = Sink(_TOLD_BYTES)
        await self._file_call("stats", self._job(), once(b""), out, WORK)
        try:
            told = {str(name): int(value) for name, value in json.loads(out.data).items()}
        except (ValueError, TypeError, AttributeError):
            raise SandboxError("a machine must say what it holds", value=out.text()[:200]) from None
        return SandboxStats(
            told.get("cpu_us", 0) / 1e6,
            told.get("memory_bytes", 0),
            told.get("disk_bytes", 0),
            told.get("num_files", 0),
            told.get("num_processes", 0),
        )

    async def intact(self) -> bool:
        """Say whether what was done in it is still there."""
        if self._terminated or self._lost:
            return False
        return not self._made or await self.machine.there()

    async def take(self, store: Store, labels: Mapping[str, str]) -> str:
        """Store what is in the work folder; a command that runs ends first."""
        async with self._turn:
            await self._use()
            async with self._fetched() as folder:
                return await to_its_end(lambda: store.take(folder, labels))

    async def put(self, store: Store, digest: str) -> None:
        """Hold what a snapshot does, and nothing else; a command that runs ends first."""
        async with self._turn, scratch() as folder:
            await to_its_end(lambda: store.put(digest, folder, None))
            await self._use()
            await self._send(folder)

    async def copy_to(self, other: RemoteSandbox) -> None:
        """Give a new sandbox a copy of the work folder; a command that runs ends first."""
        async with self._turn, other._turn:
            await self._use()
            async with self._fetched() as folder:
                await other._use()
                await other._send(folder)

    async def upload(self, path: str, archive: bytes) -> None:
        """Put what a tar archive holds below a folder of /work; see `Sandbox`.

        The work folder passes twice: what the archive does is done on the host, and checked there.
        """
        settings = self._settings
        limits = Allowance(settings.work_mb << 20, settings.max_files)
        async with self._turn:
            await self._use()
            async with self._fetched() as folder:

                def work() -> None:
                    held, num_files = files.usage(folder, limits.max_bytes, limits.max_files)
                    limits.max_bytes, limits.max_files = limits.max_bytes - held, limits.max_files - num_files
                    tars.unpack(archive, folder, path, None, limits)

                try:
                    await to_its_end(work)
                finally:
                    await self._send(folder)

    async def download(self, path: str, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
        """Return a file or folder of /work as a tar archive; see `Sandbox`."""
        async with self._turn:
            await self._use()
            async with self._fetched() as folder:
                return await to_its_end(lambda: tars.pack(folder, path, Allowance(max_bytes, max_files)))

    @contextlib.asynccontextmanager
    async def _fetched(self) -> AsyncGenerator[Path]:
        """Lend a copy of the work folder on the host."""
        most, max_files = self._settings.work_mb << 20, self._settings.max_files
        async with scratch() as folder:
            with tempfile.TemporaryFile() as stream:
                out = Spool(stream, most, max_files)
                await self._file_call("pack", self._job(), once(b""), out, WORK)
                if out.is_over:
                    raise SandboxError("a copied work folder must keep to sandbox.work_mb", value=most)
                await to_its_end(lambda: unpacked(stream, folder, most, max_files))
            yield folder

    async def _send(self, folder: Path) -> None:
        """Make the work folder hold what a folder of the host does; a machine where that fails is lost."""
        limits = {"max_bytes": self._settings.work_mb << 20, "max_entries": self._settings.max_files}
        with tempfile.TemporaryFile() as stream:
            await to_its_end(lambda: packed(folder, stream))
            try:
                await self._file_call("unpack", self._job() | limits, pieces(stream), Sink(0), WORK)
            except BaseException:
                self._lost = True
                await whole(self.machine.end())
                raise

    async def terminate(self) -> None:
        """End every process and remove every file; idempotent."""
        self._terminated = True
        self._services.close()
        self._going_on.set()
        if self._running is not None and not self._running.done():
            self._running.set_result("killed")
        try:
            async with self._turn:
                if self._begun:
                    await whole(self._ended())
        finally:
            self._on_end()

    async def _ended(self) -> None:
        await self.machine.end()
        self._begun = False

    # --- parts

    def _job(self) -> dict[str, object]:
        """Return what every verb wants to know."""
        outside = os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""
        uid = self.machine.drop_uid
        return {"work": WORK, "uid": uid, "outside": outside, "temporary": TEMPORARY}

    def _usable(self) -> None:
        if self._terminated:
            raise SandboxError("a terminated sandbox cannot be used", value=self._id)
        if self._lost:
            raise SandboxError("the sandbox's machine is lost, and its files with it", value=self._id)

    @contextlib.asynccontextmanager
    async def _awake(self) -> AsyncGenerator[None]:
        """Let a paused machine answer for the length of a block: no program of the model's runs then."""
        async with self._pausing:
            if not self._paused:
                yield
                return
            await self.machine.hold(still=False)
            try:
                yield
            finally:
                await whole(self.machine.hold(still=True))

    async def _use(self) -> None:
        """Make the machine at first use. Raises SandboxError when there is none to use."""
        self._usable()
        if not self._made:
            image = await self._image()
            self._begun = True
            try:
                await whole(self.machine.make())  # what was begun can be undone only when it has ended
                within_s = self._settings.start_timeout_s
                await self._file_call("prepare", self._job(), once(b""), Sink(0), WORK, within_s)
                if image is not None:
                    await self._send(image.path)
            except BaseException:
                try:
                    await whole(self._ended())
                except SandboxError:  # `terminate` tries again, and tells
                    self._lost = True
                raise
            async with self._pausing:  # whoever paused or resumed it meanwhile found nothing to hold
                if self.machine.pauses:
                    await self.machine.hold(still=self._paused)
                self._made = True

    async def _run(self, argv: Sequence[str], stdin: bytes, limits: ExecLimits) -> ExecResult:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Cause] = loop.create_future()
        self._running = over

        def settle(cause: Cause) -> None:
            if not over.done():
                over.set_result(cause)

        out = Sink(limits.output_bytes, lambda: settle("output"), inside.READY)
        err = Sink(limits.output_bytes, lambda: settle("output"))
        self._starting = out.ready

        async def feed() -> AsyncIterator[bytes]:
            if await asyncio.shield(out.ready):
                yield b"go\n" + stdin

        async def call() -> int | SandboxError:
            try:
                return await self.machine.call(argv, feed(), out, err)
            except SandboxError as error:
                return error
            finally:
                out.close()
                settle("exit")

        swept: Events | None = None
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(call())
                try:
                    failure = await self._start_failure(out, err, running)
                    wall = self._wall = Countdown(lambda: settle("wall"))
                    wall.start(limits.wall_s)
                    if self._paused:
                        wall.pause()
                    try:
                        ended_by = await over if failure is None else "killed"
                    finally:
                        wall.pause()
                        self._wall = None
                finally:
                    running.cancel()
        finally:
            self._running = self._starting = None
            if not self._terminated:  # its end takes everything along
                swept = await whole(self._sweep_awake())
        code: int | SandboxError | None = None if running.cancelled() else running.result()
        if self._terminated:
            ended_by = "killed"
        elif failure is not None:
            raise failure
        elif ended_by == "exit" and isinstance(code, SandboxError):
            raise code
        elif swept is None:
            self._lost = True
            await whole(self.machine.end())
            if ended_by == "exit":
                raise SandboxError("the sandbox's machine was lost under a command", value=self._id)
        return self._result(
            ended_by, code if isinstance(code, int) else None, swept, out, err, wall.elapsed_s
        )

    async def _start_failure(
        self, out: Sink, err: Sink, running: asyncio.Task[int | SandboxError]
    ) -> SandboxError | None:
        """Wait until the limits are set and the command could begin; say why it could not."""
        await asyncio.wait([out.ready], timeout=self._settings.start_timeout_s)
        if not out.ready.done():
            return SandboxError(
                "a sandbox must start a command within sandbox.start_timeout_s",
                value=self._settings.start_timeout_s,
                remedy="The machine may be overloaded; lower sandbox.max_live",
            )
        if not out.ready.result() and not self._terminated:
            await asyncio.wait([running], timeout=1.0)
            error = running.result() if running.done() else None
            if isinstance(error, SandboxError):
                return error
            said = (err.text() + out.text()).strip() or "it said nothing"
            return SandboxError(f"the sandbox did not start a command: {said}")
        return None

    async def _sweep_awake(self) -> Events | None:
        async with self._awake():
            return await self._sweep()

    async def _sweep(self) -> Events | None:
        """Kill whatever is left in the machine; None when that cannot be had."""
        for attempt in range(2):
            out = Sink(_TOLD_BYTES)
            try:
                if attempt:
                    await self.machine.make_room()
                code = await self._bounded(program("sweep", self._job()), once(b""), out, Sink(_TOLD_BYTES))
                told = cast("dict[str, Any]", json.loads(out.data) if code == 0 else {"gone": False})
                if told["gone"] is True:
                    return {str(name): int(count) for name, count in told["events"].items()}
            except (SandboxError, ValueError, KeyError, TypeError, AttributeError):
                continue
        return None

    async def _bounded(
        self,
        argv: Sequence[str],
        feed: AsyncIterator[bytes],
        out: Output,
        err: Output,
        within_s: float = ANSWER_S,
    ) -> int:
        try:
            async with asyncio.timeout(within_s):
                return await self.machine.call(argv, feed, out, err)
        except TimeoutError:
            raise SandboxError(
                f"a sandbox's machine must answer within {within_s:g} s", value=self._id
            ) from None

    async def _file_call(
        self,
        verb: str,
        job: Mapping[str, object],
        feed: AsyncIterator[bytes],
        out: Output,
        value: str,
        within_s: float = ANSWER_S,
    ) -> None:
        err = Sink(_TOLD_BYTES)
        async with self._awake():
            code = await self._bounded(program(verb, job), feed, out, err, within_s)
        if code:
            said = err.text().strip() or f"exit code {code}"
            raise SandboxError(f"a sandbox file could not be had: {said}", value=value)

    def _result(
        self, ended_by: Cause, code: int | None, swept: Events | None, out: Sink, err: Sink, wall_s: float
    ) -> ExecResult:
        """Say how the command ended; only an exit has an exit code."""
        rc = signum = None
        cause = ended_by
        events = swept or {}
        met = {name: events.get(name, 0) > self._events.get(name, 0) for name in ("oom", "pids")}
        if ended_by == "exit" and code is not None:
            if code in (inside.OVER_BYTES, inside.OVER_FILES):
                cause = "disk" if code == inside.OVER_BYTES else "inodes"
            elif 128 < code <= 192:
                signum = code - 128
                cause = "oom" if met["oom"] and signum == 9 else signal_cause(signum)
            else:
                rc = code
                cause = exit_cause(rc, err.text())
                if cause == "disk" and events.get("full"):
                    cause = "inodes"
                elif cause == "exit" and rc and met["pids"]:
                    cause = "pids"
        elif ended_by == "exit":
            cause = "killed"
        used = self._used(events)
        self._events = events or self._events
        return ExecResult(
            rc=rc,
            signal=signum,
            stdout=out.text(),
            stderr=err.text(),
            truncated=out.truncated or err.truncated,
            cause=cause,
            wall_s=wall_s,
            usage=used,
        )

    def _used(self, events: Events) -> Usage:
        """Say what the command used, as the machine's cgroup tells: no peak below an earlier one."""
        cpu_us = events.get("cpu_us", 0) - self._events.get("cpu_us", 0)
        peak = events.get("peak", 0)
        return Usage(max(0, cpu_us) / 1e6, peak if peak > self._events.get("peak", 0) else 0)


def _resources(settings: SandboxSettings) -> dict[str, tuple[int, int]]:
    """Return (soft, hard) resource limits of the model's programs."""
    size, memory = settings.work_mb << 20, settings.memory_mb << 20
    return {
        "AS": (memory, memory),
        "FSIZE": (size, size),
        "NOFILE": (settings.max_open_files, settings.max_open_files),
        "CORE": (0, 0),
        "CPU": (settings.cpu_s, settings.cpu_s + 1),
    }
