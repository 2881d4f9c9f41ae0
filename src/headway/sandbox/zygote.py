"""The controller's end of the helper: one zygote that makes sandboxes.

Consumes the zygote's messages as the event loop finds its socket readable. Waits for its READY (until
`start_timeout_s`), for room in its socket and for a sandbox (likewise). The socket's end unblocks every wait
on it with an error. The zygote and all sandboxes end when this process does, because their sockets do.

The messages are described in native/cell.c.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import subprocess
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import SandboxError
from headway.sandbox.cell import Cell, within
from headway.sandbox.cgroups import Group, find_groups
from headway.sandbox.layout import SANDBOX_ENV, SHIM, VENV, bound_paths, interpreter
from headway.sandbox.native.build import helper

if TYPE_CHECKING:
    from headway.sandbox.images import Image
    from headway.sandbox.settings import SandboxSettings

MODEL_UID = 65534  # outside, of what a model starts, where root makes the sandboxes
_INIT_UID = 65533  # outside, of each sandbox's first process; likewise
_GONE_S = 5.0  # for a killed sandbox to be gone
_PRELOADED = Path(__file__).with_name("native") / "preloaded.py"


class Zygote:
    """A running helper."""

    def __init__(self, settings: SandboxSettings, program: Path) -> None:
        self._settings = settings
        self.loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[tuple[int, list[int]]]] = {}
        self._number = 0
        self._ready: asyncio.Future[str] = self.loop.create_future()
        self.single_uid = True
        self.overlays = False  # whether work folders lie over the image
        self.ended = False
        self.groups: list[Group] = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._socket = ours
        with theirs:
            process = _launch(theirs.fileno(), program)
        self._pid = process.pid
        self._finalizer = weakref.finalize(self, _end, ours, process)
        self.loop.add_reader(ours, self._read)

    @classmethod
    async def start(cls, settings: SandboxSettings, image: Image | None = None) -> Zygote:
        """Build the helper if need be, start it, and wait until it is ready.

        Raises SandboxUnavailableError without a compiler, SandboxError with what the helper said.
        """
        program = await asyncio.to_thread(helper, "program")
        library = await asyncio.to_thread(helper, "library") if settings.preload_python else None
        groups = find_groups(settings)
        zygote = cls(settings, program)
        zygote.groups = groups
        try:
            with contextlib.ExitStack() as stack:
                lines, fds = _config(settings, image), list[int]()
                if library is not None:
                    lines += [f"interpreter={interpreter()}", f"nest={_PRELOADED.read_text()}", "library=fd"]
                    fds.append(_in_memory(library))
                    stack.callback(os.close, fds[0])
                for group in groups:
                    lines += group.lines()
                    fds.append(os.open(group.folder, os.O_RDONLY | os.O_DIRECTORY))
                    stack.callback(os.close, fds[-1])
                packed = b"".join(os.fsencode(line) + b"\0" for line in lines)
                socket.send_fds(zygote._socket, [packed], fds)
            ready = await within(settings.start_timeout_s, zygote._ready)
        except BaseException:
            zygote.close()
            raise
        zygote.single_uid, zygote.overlays = ready[0] == "u", ready[1] == "o"
        return zygote

    async def make(self) -> Cell:
        """Make a sandbox, which is `ready` soon; cancelling leaves nothing behind.

        Raises SandboxError when it cannot be made.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._number += 1
        number = self._number
        made: asyncio.Future[tuple[int, list[int]]] = self.loop.create_future()
        self._waiting[number] = made
        try:
            with theirs:
                if self.ended:
                    raise SandboxError("the sandboxes' helper has ended")
                await self._send(struct.pack("=cI", b"C", number), theirs.fileno())
            place, fds = await within(self._settings.start_timeout_s, made)
        except BaseException:
            ours.close()  # at whose end the sandbox ends
            if made.done() and not made.cancelled() and made.exception() is None:
                for fd in made.result()[1]:
                    os.close(fd)
            raise
        finally:
            self._waiting.pop(number, None)
        return Cell(ours, fds, [group.folder / str(place) for group in self.groups])

    def close(self) -> None:
        """End the helper and every sandbox that it made; idempotent."""
        self.ended = True
        if self._finalizer.alive and not self.loop.is_closed():
            self.loop.remove_reader(self._socket)
        self._finalizer()
        for group in self.groups:  # the helper did, unless it was killed
            group.remove()

    async def _send(self, data: bytes, fd: int) -> None:
        """Put a request into the helper's socket, as soon as there is room."""
        seconds = self._settings.start_timeout_s
        try:
            async with asyncio.timeout(seconds):
                while not self._sent(data, fd):  # noqa: ASYNC110 - nothing tells that there is room
                    await asyncio.sleep(0.001)
        except TimeoutError:
            raise SandboxError(
                f"this process waited for the sandboxes' helper (process {self._pid}) to take a request; it "
                "must within sandbox.start_timeout_s",
                value=seconds,
                remedy="See whether the helper is stopped; else the machine may be overloaded",
            ) from None

    def _sent(self, data: bytes, fd: int) -> bool:
        try:
            socket.send_fds(self._socket, [data], [fd])
        except BlockingIOError:
            return False
        except OSError as error:
            raise SandboxError(f"the sandboxes' helper cannot be reached: {error}") from error
        return True

    def _read(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, 4096, 4)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        kind, rest = data[:1], data[5:].decode(errors="replace")
        if kind in (b"R", b"E") and not self._ready.done():
            if kind == b"R":
                self._ready.set_result(data[1:3].decode())
            else:
                self._ready.set_exception(SandboxError(data[1:].decode(errors="replace")))
        elif kind in (b"c", b"e"):
            waiting = self._waiting.pop(struct.unpack_from("=I", data, 1)[0], None)
            if waiting is None or waiting.done():
                for fd in fds:
                    os.close(fd)
            elif kind == b"c":
                waiting.set_result((struct.unpack_from("=I", data, 5)[0], list(fds)))
            else:
                waiting.set_exception(SandboxError(f"a sandbox could not be made: {rest}"))
        elif not data:
            self.close()
            for future in (self._ready, *self._waiting.values()):
                if not future.done():
                    future.set_exception(SandboxError("the sandboxes' helper has ended"))


def _in_memory(library: Path) -> int:
    """Return a descriptor of a copy, so that no path of the host shows up in /proc/<pid>/maps."""
    fd = os.memfd_create("cell")
    os.write(fd, library.read_bytes())
    return fd


def _launch(fd: int, program: Path) -> subprocess.Popen[bytes]:
    """Start the helper with the socket `fd`, and nothing else of ours."""
    try:
        return subprocess.Popen(
            [str(program), str(fd)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[fd],
            env=SANDBOX_ENV,
            cwd="/",
            start_new_session=True,  # a Ctrl-C at the terminal is for the controller
        )
    except OSError as error:
        raise SandboxError(f"the sandboxes' helper could not be started: {error}") from error


def _end(ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """End the helper: it ends at its socket's end."""
    ours.close()
    try:
        process.wait(timeout=_GONE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _config(settings: SandboxSettings, image: Image | None) -> list[str]:
    """What the helper is told once."""
    work_bytes = settings.work_mb << 20
    lines = [
        f"work_bytes={work_bytes}",
        f"work_files={settings.max_files}",
        f"tmp_bytes={settings.tmpfs_mb << 20}",
        f"nproc={settings.max_processes}",
        f"address_space={settings.memory_mb << 20}",
        f"memory={settings.memory_mb << 20}",
        f"file_size={work_bytes}",
        f"open_files={settings.max_open_files}",
        f"cpu_s={settings.cpu_s}",
        f"init_uid={_INIT_UID}",
        f"model_uid={MODEL_UID}",
    ]
    binds, links = bound_paths()
    lines += [f"bind={path}" for path in binds]
    if image is not None and image.kind == "python":
        lines += [f"bind={image.path}", f"at={VENV}"]
    else:
        links.append((f"{SHIM}/python3", interpreter()))
        if image is not None:
            lines.append(f"image={image.path}")
    for path, target in links:
        lines += [f"link={path}", f"target={target}"]
    return lines
