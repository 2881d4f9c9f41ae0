"""A copy of a work folder, whole or not at all.

A program in the sandbox may have planted anything there. So nothing is followed and nothing recurses: both
trees are walked with one open folder each, as `files.remove_tree` does. Regular files are copied byte by
byte, their holes as holes; folders, symlinks and fifos are made anew; modes (without set-uid and set-gid),
times and, for root, owners are kept. Hard links become files of their own, and sockets, which nobody listens
to any more, are left out. The caller makes sure that no program runs meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import SandboxError
from headway.sandbox.files import open_root, remove_tree

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_MODE = 0o1777
_PIECE_BYTES = 1 << 20


def copy_into(source: Path | int, target: Path | int) -> None:
    """Copy what is in folder `source` into the empty folder `target`; either may be an open descriptor.

    Raises SandboxError when the source cannot be read or the target not be written.
    """
    try:
        _copy_folder(source, target)
    except OSError as error:
        raise SandboxError(f"a work folder cannot be copied: {error}", value=str(source)) from error


def copy_tree(source: Path | int, target: Path) -> None:
    """Copy folder `source` to `target`, which must not exist; it appears there complete.

    Raises SandboxError when the source cannot be read or the target not be written; no target is left then.
    """
    draft = target.with_name(target.name + ".draft")
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        remove_tree(draft)
        draft.mkdir(mode=0o700)
        _copy_folder(source, draft)
        if os.path.lexists(target):
            raise SandboxError("a copy must not replace anything", value=str(target))
        draft.rename(target)
    except OSError as error:
        raise SandboxError(f"a work folder cannot be copied: {error}", value=str(source)) from error
    finally:
        remove_tree(draft)


@dataclass(slots=True)
class _Level:
    """A folder on the way down."""

    name: str
    info: os.stat_result  # of the source
    left: list[tuple[str, os.stat_result]]  # folders still to do in its parent


def _copy_folder(source: Path | int, target: Path | int) -> None:
    there = here = -1
    try:
        here = open_root(source)
        there = open_root(target)
        root = os.fstat(here)
        path: list[_Level] = []
        left = _copy_entries(here, there)
        while left or path:
            if left:
                name, info = left.pop()
                os.mkdir(name, 0o700, dir_fd=there)
                if info.st_mode & 0o500 != 0o500:  # opened for the copy, closed again below
                    os.chmod(name, stat.S_IMODE(info.st_mode) | 0o500, dir_fd=here)
                path.append(_Level(name, info, left))
                here, there = _move(here, name), _move(there, name)
                left = _copy_entries(here, there)
            else:
                level = path.pop()
                left = level.left
                here, done = _move(here, ".."), there
                there = os.open("..", _FOLDER, dir_fd=done)
                _finish(done, level.info)
                os.close(done)
                if level.info.st_mode & 0o500 != 0o500:
                    os.chmod(level.name, stat.S_IMODE(level.info.st_mode), dir_fd=here)
        _finish(there, root)
    finally:
        for fd in (here, there):
            if fd >= 0:
                os.close(fd)


def _move(fd: int, name: str) -> int:
    there = os.open(name, _FOLDER, dir_fd=fd)
    os.close(fd)
    return there


def _copy_entries(here: int, there: int) -> list[tuple[str, os.stat_result]]:
    """Copy everything in a folder but folders; return those."""
    folders: list[tuple[str, os.stat_result]] = []
    for name in os.listdir(here):
        info = os.stat(name, dir_fd=here, follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            folders.append((name, info))
        elif stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(name, dir_fd=here), name, dir_fd=there)
            _own_and_time(name, there, info)
        elif stat.S_ISREG(info.st_mode):
            _copy_file(here, there, name, info)
        elif stat.S_ISFIFO(info.st_mode):
            os.mkfifo(name, 0o600, dir_fd=there)
            _own_and_time(name, there, info)
    return folders


def _own_and_time(name: str, folder: int, info: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.chown(name, info.st_uid, info.st_gid, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISLNK(info.st_mode):
        os.chmod(name, stat.S_IMODE(info.st_mode) & _KEPT_MODE, dir_fd=folder)
    os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=folder, follow_symlinks=False)


def _finish(fd: int, info: os.stat_result) -> None:
    """Give an open file or folder its owner, mode and times."""
    if os.geteuid() == 0:
        os.fchown(fd, info.st_uid, info.st_gid)
    os.fchmod(fd, stat.S_IMODE(info.st_mode) & _KEPT_MODE)
    os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))


def _copy_file(here: int, there: int, name: str, info: os.stat_result) -> None:
    closed = not info.st_mode & 0o400
    if closed:
        os.chmod(name, stat.S_IMODE(info.st_mode) | 0o400, dir_fd=here)
    source = target = -1
    try:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        target = os.open(name, flags, 0o600, dir_fd=there)
        os.ftruncate(target, info.st_size)
        _copy_data(source, target, info.st_size)
        _finish(target, info)
    finally:
        for fd in (source, target):
            if fd >= 0:
                os.close(fd)
        if closed:
            os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=here)


def _copy_data(source: int, target: int, size: int) -> None:
    """Copy what is no hole: a sparse file may be far larger than the quota that bounds its blocks."""
    at = 0
    while at < size:
        try:
            start = os.lseek(source, at, os.SEEK_DATA)
            at = os.lseek(source, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        while start < at:
            piece = os.pread(source, min(_PIECE_BYTES, at - start), start)
            if not piece:
                return
            view = memoryview(piece)
            while view:
                written = os.pwrite(target, view, start)
                view, start = view[written:], start + written
