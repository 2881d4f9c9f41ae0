"""What files hold, by the hash of it.

The name of a blob is the SHA-256 of its bytes; of a sparse file, `s` and that of its blocks that hold
anything but zeros, each with its number, so that a file may be far larger than what is read of it and its
name does not depend on where a file system keeps holes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from pathlib import Path

from headway.sandbox.trees import PIECE_BYTES, copy_data, pieces, write_all

_BLOCK_BYTES = 4096
_NOTHING = bytes(_BLOCK_BYTES)


class Held:
    """What an open file holds."""

    def __init__(self, fd: int, info: os.stat_result) -> None:
        self._fd = fd
        self.size = info.st_size
        self._data: bytes | None = None
        if info.st_blocks * 512 < info.st_size:
            self.name = _sparse_hash(fd, info.st_size)
        elif info.st_size <= PIECE_BYTES:
            self._data = os.pread(fd, info.st_size, 0)
            self.name = hashlib.sha256(self._data).hexdigest()
        else:
            self.name = _hash(fd, info.st_size)

    def write(self, target: int) -> None:
        """Write it to an empty file."""
        if self._data is None:
            copy_data(self._fd, target, self.size)
        else:
            write_all(target, self._data, 0)


def is_whole(path: Path, size: int) -> bool:
    """Whether a blob is there with its size: a power cut may have left less."""
    try:
        return os.stat(path).st_size == size
    except FileNotFoundError:
        return False


def put(blobs: int, name: str, size: int, target: int) -> None:
    """Write a blob of the open folder `blobs` to an empty file.

    Raises ValueError when it does not hold what its name says.
    """
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=blobs)
    try:
        if os.fstat(source).st_size != size:
            raise ValueError(name)
        if size <= PIECE_BYTES and not name.startswith("s"):
            data = os.read(source, size)
            if hashlib.sha256(data).hexdigest() != name:
                raise ValueError(name)
            write_all(target, data, 0)
        else:
            if (_sparse_hash if name.startswith("s") else _hash)(source, size) != name:
                raise ValueError(name)
            copy_data(source, target, size)
    finally:
        os.close(source)


def _read(fd: int, start: int, end: int) -> Generator[tuple[int, bytes]]:
    while start < end and (piece := os.pread(fd, min(PIECE_BYTES, end - start), start)):
        yield start, piece
        start += len(piece)


def _hash(fd: int, size: int) -> str:
    digest = hashlib.sha256()
    for _, piece in _read(fd, 0, size):
        digest.update(piece)
    return digest.hexdigest()


def _sparse_hash(fd: int, size: int) -> str:
    digest = hashlib.sha256(b"%d" % size)
    seen = -1  # the last block that was read
    for start, end in pieces(fd, size):
        first = max(start // _BLOCK_BYTES, seen + 1)
        for at, piece in _read(fd, first * _BLOCK_BYTES, min(-(-end // _BLOCK_BYTES) * _BLOCK_BYTES, size)):
            for offset in range(0, len(piece), _BLOCK_BYTES):
                block = piece[offset : offset + _BLOCK_BYTES]
                seen = (at + offset) // _BLOCK_BYTES
                if block != _NOTHING[: len(block)]:
                    digest.update(b"%d\0" % seen)
                    digest.update(block)
    return "s" + digest.hexdigest()
