"""A program that is asked by command lines: `podman`, `docker`.

Consumes the output of the program's process as it comes. Waits for its end and for that of its output, the
latter no longer than `_DRAIN_S`, for a process of the program's may hold it; cancellation of the caller kills
the program, and so does the time that `ask` allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import Protocol, cast

from headway.core.errors import SandboxError
from headway.sandbox.sink import Sink

_PIECE_BYTES = 1 << 16
_ANSWER_BYTES = 1 << 20
_DRAIN_S = 2.0


class Output(Protocol):
    """What takes up a stream."""

    def feed(self, data: bytes) -> None:
        """Take up a piece."""
        ...


class _Ends(asyncio.SubprocessProtocol):
    """What the event loop tells of one process."""

    def __init__(self, out: Output, err: Output) -> None:
        self._outputs = {1: out, 2: err}
        self._open = {1, 2}
        self._writable = asyncio.Event()
        self._writable.set()
        self.exited = asyncio.Event()
        self.drained = asyncio.Event()
        self.is_deaf = False

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._outputs[fd].feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self.is_deaf = True
            self._writable.set()
        self._open.discard(fd)
        if not self._open:
            self.drained.set()

    def process_exited(self) -> None:
        self.exited.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def send(self, pipe: asyncio.WriteTransport, feed: AsyncIterator[bytes]) -> None:
        """Write what `feed` yields, at the program's pace, and then the end of it."""
        async for data in feed:
            for start in range(0, len(data), _PIECE_BYTES):
                if self.is_deaf:
                    return
                pipe.write(data[start : start + _PIECE_BYTES])
                await self._writable.wait()
        pipe.close()


async def run(command: Sequence[str], feed: AsyncIterator[bytes], out: Output, err: Output) -> int:
    """Run a program to its end; return its exit code, 128 + n for signal n.

    Input that it does not read is no error. Raises SandboxError when it could not start.
    """
    loop = asyncio.get_running_loop()
    try:
        transport, ends = await loop.subprocess_exec(
            lambda: _Ends(out, err),
            *command,
            cwd=tempfile.gettempdir(),  # podman's monitor leaves a file `oom` where it was started
            start_new_session=True,
        )
    except OSError as error:
        raise SandboxError(f"{command[0]} could not be run: {error.strerror}") from error
    try:
        async with asyncio.TaskGroup() as group:
            pipe = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
            feeding = group.create_task(ends.send(pipe, feed))
            await ends.exited.wait()
            feeding.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await ends.drained.wait()
        code = transport.get_returncode()
        assert code is not None
        return code if code >= 0 else 128 - code
    finally:
        transport.close()  # kills it where it runs


async def ask(command: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    """Return (exit code, stdout, stderr) of a short question.

    Raises SandboxError when the answer takes longer than `timeout_s`.
    """
    out, err = Sink(_ANSWER_BYTES), Sink(_ANSWER_BYTES)
    try:
        async with asyncio.timeout(timeout_s):
            code = await run(command, _nothing(), out, err)
    except TimeoutError:
        raise SandboxError(
            f"`{' '.join(command[:2])}` must answer within {timeout_s} s",
            remedy="See whether the container engine answers at all",
        ) from None
    return code, out.text(), err.text()


async def _nothing() -> AsyncIterator[bytes]:
    for nothing in ():
        yield nothing
