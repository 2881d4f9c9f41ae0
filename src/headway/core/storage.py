"""Room on disk: what a full disk looks like, and what a person is told of it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

from headway.core.errors import DiskFullError, UserError

if TYPE_CHECKING:
    from io import FileIO

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LONGEST = 300  # characters of a path in a message
_REFUSED = {
    errno.EACCES: "Give yourself the right to it, or name another place",
    errno.EPERM: "Give yourself the right to it, or name another place",
    errno.EROFS: "The disk is read-only there: name another place",
    errno.ENAMETOOLONG: "Use a shorter name",
    errno.ELOOP: "A symbolic link leads back to itself: name the place that it should lead to",
    errno.ENOTDIR: "A part of the path is a file and no directory: correct it",
}


def is_full(error: BaseException) -> TypeGuard[OSError]:
    """Say whether an error means that there is no room: on the disk, in a quota, or within a file's limit."""
    return isinstance(error, OSError) and error.errno in FULL


class TornFileError(OSError):
    """A record could be written in part only, and that part not be cut off again."""


def append_whole(file: FileIO, data: bytes) -> None:
    """Append to an unbuffered file that this process alone writes, whole or not at all.

    Raises OSError; what was written is cut off again, and the next append follows what was there. Where that
    fails too it is a TornFileError, with the number and words of the first.
    """
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        try:
            end = file.seek(0, os.SEEK_END) - (len(data) - len(rest))
            file.seek(file.truncate(end))
        except OSError:
            raise TornFileError(error.errno, error.strerror) from error
        raise


def free_bytes(path: Path) -> int:
    """Return the bytes that this user may still write where `path` is, or would be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free


def no_room(folder: Path, num_bytes: int) -> OSError | None:
    """Return what the system says when it is asked for a file of this size, None when it has the room.

    For writers that do not pass on what the system told them.
    """
    probe = folder / f".room-{os.getpid()}"
    try:
        with probe.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, num_bytes))
    except OSError as error:
        return error if is_full(error) else None
    finally:
        probe.unlink(missing_ok=True)
    return None


def disk_full(path: Path, num_bytes: int, error: BaseException | None = None) -> DiskFullError:
    """Return the error of a file that has no room.

    Args:
        path: the file, or the folder that was to hold it.
        num_bytes: that are needed there.
        error: what the system said, None where it said nothing that helps.
    """
    free = free_bytes(path)
    said = ""
    if isinstance(error, OSError) and error.errno is not None:
        said = f" ({os.strerror(error.errno)})"
    remedy = (
        "Free room there, then go on with `headway resume RUN`; `headway prune RUN` says what a run can spare"
    )
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        remedy = "Raise the limit on file sizes (ulimit -f), then go on with `headway resume RUN`"
    return DiskFullError(
        f"no room for {path}: it needs {size(num_bytes)}, and {size(free)} are free there{said}",
        remedy=remedy,
    )


def size(num_bytes: float) -> str:
    """Return bytes as a person reads them, with three figures at most: `318 MB`, `1.2 GB`."""
    if num_bytes < 1000:
        return f"{num_bytes:.0f} bytes"
    for unit in ("kB", "MB", "GB", "TB"):
        num_bytes /= 1000
        if num_bytes < 999.5 or unit == "TB":
            break
    return f"{num_bytes:.1f} {unit}" if num_bytes < 9.95 else f"{num_bytes:.0f} {unit}"


def refused(error: BaseException) -> UserError | None:
    """Return the bad input that the system's refusal of a path stands for, None for any other error.

    Whoever named the path can mend it: it lies where this user may not go, or can be no path at all.
    """
    if not isinstance(error, OSError) or error.filename is None or error.errno not in _REFUSED:
        return None
    said = os.strerror(error.errno)
    path = str(error.filename)
    value = path if len(path) <= _LONGEST else f"{path[:_LONGEST]}..."
    return UserError(f"the system refuses a path: {said}", value=value, remedy=_REFUSED[error.errno])
