"""A sandbox over a machine that is reached only by running programs in it: a container, a service's machine.

Consumes the output of one program in the machine at a time (inside.py, with the model's command below it).
Waits for READY (until `start_timeout_s`), then for the first of: the program's end, the wall limit, a flood
of output, `terminate`, cancellation of the caller. Whatever comes first, the program's client is let go, and
a sweep in the machine kills every process of the model's user, empties the temporary folders and says so;
that is bounded by `_CALL_S`, and a machine that cannot be swept is ended. So a client that hangs or dies
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
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeAlias, cast

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError
from headway.core.protocols import Cause, ExecLimits, ExecResult, SandboxStats
from headway.sandbox import files, inside
from headway.sandbox.causes import exit_cause, signal_cause
from headway.sandbox.limited import WithoutSpawns
from headway.sandbox.sink import Sink
from headway.sandbox.whole import to_its_end, whole

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings

MODEL_UID = 65534
WORK = "/work"
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": WORK, "LANG": "C.UTF-8"}
TEMPORARY = ("/tmp", "/dev/shm")
_INSIDE = Path(inside.__file__).read_text(encoding="utf-8")
_CALL_S = 60.0  # for a call that is not the model's
_PIECE_BYTES = 1 << 16
_RECORD_BYTES = 4096  # of a stream, for each file, at most on average


Events: TypeAlias = Mapping[str, int]  # how often limits were met so far (oom, pids), and whether full now


def program(verb: str, job: Mapping[str, object] | None = None) -> list[str]:
    """Return the command line of inside.py with a verb."""
    return ["python3", "-I", "-S", "-B", "-c", _INSIDE, verb, json.dumps(dict(job or {}))]


class Output(Protocol):
    """What takes up a stream."""

    def feed(self, data: bytes) -> None:
        """Take up a piece."""
        ...


class Machine(Protocol):
    """One machine; a provider knows how to make it. Every failure is a SandboxError."""

    drop_uid: int  # inside.py gives up root for this uid; 0 where its programs start as the model's user
    watched: bool  # whether inside.py watches the size of the work folder, which nothing else bounds
    pauses: bool

    async def make(self) -> None:
        """Make it, or leave nothing behind."""
        ...

    async def call(self, argv: Sequence[str], feed: AsyncIterator[bytes], out: Output, err: Output) -> int:
        """Run a program to its end and return its exit code, 128 + n for signal n.

        Cancelling lets go of it; the program may run on.
        """
        ...

    async def make_room(self) -> None:
        """Let one more program start where the machine is full of processes."""
        ...

    async def hold(self, still: bool) -> None:
        """Freeze every process, or let them go on."""
        ...

    async def there(self) -> bool:
        """Say whether it still exists and runs; cheap."""
        ...

    async def end(self) -> None:
        """End it and everything in it; idempotent."""
        ...


class RemoteSandbox(WithoutSpawns):
    """One machine, made at the first use, and the commands that run in it, one at a time."""

    def __init__(
        self,
        sandbox_id: str,
        labels: Mapping[str, str],
        machine: Machine,
        settings: SandboxSettings,
        *,
        on_end: Callable[[], None],
    ) -> None:
        self._id = sandbox_id
        self._on_end = on_end
        self.labels = dict(labels)
        self.machine = machine
        self._settings = settings
        self._turn = asyncio.Lock()
        self._made = self._lost = self._terminated = False
        self._events: Mapping[str, int] = {}
        self._running: asyncio.Future[Cause] | None = None

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
            "cwd": "/".join(files.parts_of(cwd)) if cwd else "",
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": WORK, "LANG": "C.UTF-8"}
            | dict(env or {}),
            "limits": _resources(settings),
            "work_bytes": settings.work_mb << 20 if self.machine.watched else 0,
            "max_files": settings.max_files,
        }
        async with self._turn:
            await self._use()
            if self._terminated:  # while it was made
                return ExecResult(None, None, "", "", False, "killed", 0.0)
            return await self._run(program("run", job), stdin, wanted)

    async def write(self, path: str, data: bytes) -> None:
        """Write a file below /work; no link is followed."""
        job = self._job() | {"parts": files.parts_of(path)}
        async with self._turn:
            await self._use()
            await self._file_call("write", job, _once(data), Sink(0), path)

    async def read(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Return at most the first `max_bytes` of a file below /work; no link is followed."""
        job = self._job() | {"parts": files.parts_of(path), "max_bytes": max_bytes}
        out = Sink(max_bytes)
        async with self._turn:
            await self._use()
            await self._file_call("read", job, _once(b""), out, path)
        return out.data

    async def prepare(self) -> None:
        """Make the machine now, so that the first command does not wait for it."""
        async with self._turn:
            await self._use()

    async def pause(self) -> None:
        """Freeze every process; idempotent. Raises SandboxError where the machine cannot stand still."""
        await self._hold(still=True)

    async def resume(self) -> None:
        """Go on; idempotent. Raises SandboxError when the machine was lost meanwhile."""
        await self._hold(still=False)

    async def stats(self) -> SandboxStats:
        """Return zeros: this provider does not ask its machines."""
        return SandboxStats()

    async def intact(self) -> bool:
        """Say whether what was done in it is still there."""
        if self._terminated or self._lost:
            return False
        return not self._made or await self.machine.there()

    async def copy_to(self, path: Path) -> None:
        """Copy the work folder to a new `path` of the host, whole or not at all."""
        most = self._settings.work_mb << 20
        async with self._turn:
            await self._use()
            with tempfile.TemporaryFile() as stream:
                out = _File(stream, most + (self._settings.max_files + 1) * _RECORD_BYTES)
                await self._file_call("pack", self._job(), _once(b""), out, str(path))
                if out.is_over:
                    raise SandboxError(
                        "a work folder that is copied must keep to sandbox.work_mb", value=most
                    )
                stream.seek(0)
                await to_its_end(lambda: _unpack(stream, path, most, self._settings.max_files))

    async def copy_from(self, path: Path) -> None:
        """Begin with a copy of folder `path` as the work folder."""
        limits = {"max_bytes": self._settings.work_mb << 20, "max_entries": self._settings.max_files}
        async with self._turn:
            with tempfile.TemporaryFile() as stream:
                await to_its_end(lambda: _pack(path, stream))
                stream.seek(0)
                await self._use()
                await self._file_call("unpack", self._job() | limits, _pieces(stream), Sink(0), str(path))

    async def terminate(self) -> None:
        """End every process and remove every file; idempotent."""
        self._terminated = True
        if self._running is not None and not self._running.done():
            self._running.set_result("killed")
        async with self._turn:
            if self._made:
                await whole(self.machine.end())
        self._on_end()

    # --- parts

    def _job(self) -> dict[str, object]:
        """Return what every verb wants to know."""
        outside = os.readlink("/proc/self/ns/pid") if sys.platform == "linux" else ""
        uid = self.machine.drop_uid
        return {"work": WORK, "uid": uid, "outside": outside, "temporary": TEMPORARY}

    async def _use(self) -> None:
        """Make the machine at first use. Raises SandboxError when there is none to use."""
        if self._terminated:
            raise SandboxError("a terminated sandbox cannot be used", value=self._id)
        if self._lost:
            raise SandboxError("the sandbox's machine is lost, and its files with it", value=self._id)
        if not self._made:
            try:
                await whole(self.machine.make())  # what was begun can be undone only when it has ended
                await self._file_call("prepare", self._job(), _once(b""), Sink(0), WORK)
            except BaseException:
                await whole(self.machine.end())
                raise
            self._made = True

    async def _hold(self, *, still: bool) -> None:
        async with self._turn:
            if self._made or self._terminated or self._lost:
                if self._terminated or self._lost or not await self.machine.there():
                    raise SandboxError("the sandbox was lost", value=self._id)
                await self.machine.hold(still)
            elif not self.machine.pauses:
                await self.machine.hold(still)

    async def _run(self, argv: Sequence[str], stdin: bytes, limits: ExecLimits) -> ExecResult:
        loop = asyncio.get_running_loop()
        over: asyncio.Future[Cause] = loop.create_future()
        self._running = over

        def settle(cause: Cause) -> None:
            if not over.done():
                over.set_result(cause)

        out = Sink(limits.output_bytes, lambda: settle("output"), inside.READY)
        err = Sink(limits.output_bytes, lambda: settle("output"))

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

        began = stopwatch()
        swept: Events | None = None
        try:
            async with asyncio.TaskGroup() as group:
                running = group.create_task(call())
                try:
                    failure = await self._start_failure(out, err, running)
                    began = stopwatch()
                    wall = loop.call_later(limits.wall_s, settle, "wall")
                    try:
                        ended_by = await over if failure is None else "killed"
                    finally:
                        wall.cancel()
                    wall_s = stopwatch() - began
                finally:
                    running.cancel()
        finally:
            self._running = None
            if not self._terminated:  # its end takes everything along
                swept = await whole(self._sweep())
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
        return self._result(ended_by, code if isinstance(code, int) else None, swept, out, err, wall_s)

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

    async def _sweep(self) -> Events | None:
        """Kill whatever is left in the machine; None when that cannot be had."""
        for attempt in range(2):
            out = Sink(_PIECE_BYTES)
            try:
                if attempt:
                    await self.machine.make_room()
                code = await self._bounded(program("sweep", self._job()), _once(b""), out, Sink(_PIECE_BYTES))
                told = cast("dict[str, Any]", json.loads(out.data) if code == 0 else {"gone": False})
                if told["gone"] is True:
                    return {str(name): int(count) for name, count in told["events"].items()}
            except (SandboxError, ValueError, KeyError, TypeError, AttributeError):
                continue
        return None

    async def _bounded(
        self, argv: Sequence[str], feed: AsyncIterator[bytes], out: Output, err: Output
    ) -> int:
        try:
            async with asyncio.timeout(_CALL_S):
                return await self.machine.call(argv, feed, out, err)
        except TimeoutError:
            raise SandboxError(
                f"a sandbox's machine must answer within {_CALL_S} s", value=self._id
            ) from None

    async def _file_call(
        self, verb: str, job: Mapping[str, object], feed: AsyncIterator[bytes], out: Output, value: str
    ) -> None:
        err = Sink(_PIECE_BYTES)
        code = await self._bounded(program(verb, job), feed, out, err)
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
        self._events = events or self._events
        return ExecResult(
            rc=rc,
            signal=signum,
            stdout=out.text(),
            stderr=err.text(),
            truncated=out.truncated or err.truncated,
            cause=cause,
            wall_s=wall_s,
        )


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


class _File:
    """Takes a stream up into a file, and no more than a limit of it."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._left = limit

    def feed(self, data: bytes) -> None:
        """Take up a piece, or forget it where it is too much."""
        self._left -= len(data)
        if self._left >= 0:
            self._file.write(data)

    @property
    def is_over(self) -> bool:
        """Whether more came than may."""
        return self._left < 0


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    while data := file.read(_PIECE_BYTES):
        yield data


def _unpack(stream: BinaryIO, path: Path, max_bytes: int, max_entries: int) -> None:
    """Make a folder from a stream; it appears complete or not at all."""
    draft = path.with_name(path.name + ".draft")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.remove_tree(draft)
        draft.mkdir(mode=0o700)
        with _opened(draft) as folder:
            inside.unpack(stream, folder, max_bytes, max_entries)
        if os.path.lexists(path):
            raise SandboxError("a copy must not replace anything", value=str(path))
        draft.rename(path)
    except (OSError, ValueError, inside.RefusedError) as error:
        raise SandboxError(f"a work folder cannot be copied: {error}", value=str(path)) from error
    finally:
        files.remove_tree(draft)


def _pack(path: Path, stream: BinaryIO) -> None:
    try:
        with _opened(path) as folder:
            inside.pack(folder, stream)
    except OSError as error:
        raise SandboxError(f"a snapshot cannot be read: {error}", value=str(path)) from error


@contextlib.contextmanager
def _opened(path: Path) -> Generator[int]:
    fd = files.open_root(path)
    try:
        yield fd
    finally:
        os.close(fd)
