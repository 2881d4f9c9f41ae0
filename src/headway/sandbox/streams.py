"""How a work folder passes between host and machine: as one stream of inside.py's, by way of the host's disk.

What comes out of a machine is not believed: its stream is bounded, and `inside.unpack` follows no link.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import BinaryIO

from headway.core.errors import SandboxError
from headway.sandbox import files, inside

_PIECE_BYTES = 1 << 16
_RECORD_BYTES = 4096  # of a stream for each file, at most on average


class Spool:
    """Takes a stream up into a file, and no more of it than a work folder may hold."""

    def __init__(self, file: BinaryIO, max_bytes: int, max_files: int) -> None:
        self._file = file
        self._left = max_bytes + (max_files + 1) * _RECORD_BYTES

    def feed(self, data: bytes) -> None:
        """Take up a piece, or forget it where it is too much."""
        self._left -= len(data)
        if self._left >= 0:
            self._file.write(data)

    @property
    def is_over(self) -> bool:
        """Whether more came than may."""
        return self._left < 0


async def once(data: bytes) -> AsyncIterator[bytes]:
    """Yield `data`."""
    yield data


async def pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield what a file holds."""
    while data := file.read(_PIECE_BYTES):
        yield data


@contextlib.asynccontextmanager
async def scratch() -> AsyncGenerator[Path]:
    """Lend an empty folder of the host."""
    folder = Path(tempfile.mkdtemp(prefix="headway-"))
    try:
        yield folder
    finally:
        await asyncio.to_thread(files.remove_tree, folder)


def unpacked(stream: BinaryIO, folder: Path, max_bytes: int, max_files: int) -> None:
    """Fill an empty folder from a stream. Mode and time of the folder itself are no state.

    Raises SandboxError for what is not to be believed, or cannot be written.
    """
    stream.seek(0)
    try:
        fd = files.open_root(folder)
        try:
            inside.unpack(stream, fd, max_bytes, max_files)
        finally:
            os.close(fd)
        os.chmod(folder, 0o700)
        os.utime(folder, ns=(0, 0))
    except (OSError, ValueError, TypeError, inside.RefusedError) as error:
        raise SandboxError(f"a work folder cannot be copied: {error}", value=str(folder)) from error


def packed(folder: Path, stream: BinaryIO) -> None:
    """Write a folder as a stream, from its beginning. Raises SandboxError when it cannot be read."""
    try:
        fd = files.open_root(folder)
        try:
            inside.pack(fd, stream)
        finally:
            os.close(fd)
    except OSError as error:
        raise SandboxError(f"a folder cannot be copied: {error}", value=str(folder)) from error
    stream.seek(0)
