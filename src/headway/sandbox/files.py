"""Work folders on the host: safe reads and writes, their size, their removal.

A program in the sandbox may have planted anything there: symlinks, fifos, deep trees, unreadable folders.
So every path is opened one component at a time without following links, only regular files are touched,
and nothing recurses. The caller makes sure that no program runs meanwhile.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from headway.core.errors import SandboxError
from headway.sandbox.layout import WORK

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # nothing is followed


def open_root(root: Path | int) -> int:
    """Open a work folder that is named by its path, or by a descriptor that stays the caller's."""
    return os.open(".", FOLDER, dir_fd=root) if isinstance(root, int) else os.open(root, FOLDER)


def keep_open(root: Path | int) -> None:
    """See to it that the owner of a work folder may look into it, whatever a program did to its mode."""
    mode = stat.S_IMODE(os.stat(root).st_mode)
    if mode & 0o500 != 0o500:
        os.chmod(root, mode | 0o700)


def write_file(root: Path | int, path: str, data: bytes, owner: int | None) -> None:
    """Write a regular file below `root`, making folders; `owner` is a uid, None for the caller's.

    Raises SandboxError when it cannot be written; a part of it may be there then.
    """
    try:
        view = memoryview(data).cast("B")
    except TypeError as error:
        raise SandboxError(f"what is written to a sandbox must be bytes: {error}", value=path) from error
    with _parent(root, path, owner) as (folder, name):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _regular(folder, name, flags, path) as fd:
            try:
                if owner is not None:
                    os.fchown(fd, owner, owner)
                while view:
                    view = view[os.write(fd, view) :]
            except OSError as error:
                raise refused("a sandbox file could not be written", path, error) from error


def read_file(root: Path | int, path: str, max_bytes: int) -> bytes:
    """Return at most the first `max_bytes` bytes of a regular file below `root`.

    Raises SandboxError when it cannot be read.
    """
    with _parent(root, path, None, make=False) as (folder, name):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _regular(folder, name, flags, path) as fd:
            try:
                with os.fdopen(os.dup(fd), "rb") as file:
                    return file.read(max_bytes)
            except OSError as error:
                raise refused("a sandbox file could not be read", path, error) from error


def parts_of(path: str, *, whole: bool = False) -> list[str]:
    """Return the names on the way to a path of the sandbox; `whole` allows the work folder itself, [].

    Raises SandboxError for one that leads out.
    """
    inside = path.removeprefix(WORK).removeprefix("/") if f"{path}/".startswith(f"{WORK}/") else path
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if inside.startswith("/") or not (parts or whole) or ".." in parts or "\0" in path:
        raise SandboxError(f"a sandbox path must lie below {WORK}", value=path)
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise SandboxError("a sandbox path must be text that can be encoded", value=repr(path)) from error
    return parts


@contextmanager
def _parent(
    root: Path | int, path: str, owner: int | None, *, make: bool = True
) -> Generator[tuple[int, str]]:
    """Open the folder that holds `path`, component by component."""
    *folders, name = parts_of(path)
    with ExitStack() as stack:
        try:
            at = open_root(root)
        except OSError as error:
            raise refused(_NOT_OPENED, path, error) from None
        stack.callback(os.close, at)
        for folder in folders:
            try:
                if make and not _exists(at, folder):
                    os.mkdir(folder, 0o755, dir_fd=at)
                    if owner is not None:
                        os.chown(folder, owner, owner, dir_fd=at, follow_symlinks=False)
                at = os.open(folder, FOLDER, dir_fd=at)
            except OSError as error:
                raise refused(_NOT_OPENED, path, error) from None
            stack.callback(os.close, at)
        yield at, name


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _regular(folder: int, name: str, flags: int, path: str) -> Generator[int]:
    try:
        fd = os.open(name, flags, 0o644, dir_fd=folder)
    except OSError as error:
        raise refused(_NOT_OPENED, path, error) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SandboxError("only regular files pass between sandbox and host", value=path)
        yield fd
    finally:
        os.close(fd)


_NOT_OPENED = "a sandbox file could not be opened"
_REMEDIES = {
    errno.ENOSPC: "The work folder is full: write less, or raise sandbox.work_mb and sandbox.max_files",
    errno.EFBIG: "A file must fit into the work folder: write less, or raise sandbox.work_mb",
    errno.EMFILE: "This process has too many open files: raise `ulimit -n`, or lower sandbox.max_live",
    errno.ENAMETOOLONG: "A name must not exceed 255 bytes",
}


def refused(what: str, path: str | None, error: OSError) -> SandboxError:
    """Return the error for what the kernel refused to do with a path of a sandbox, with a remedy."""
    return SandboxError(
        f"{what}: {error.strerror or error}", value=path, remedy=_REMEDIES.get(error.errno or 0, "")
    )


def usage(root: Path, max_bytes: int, max_files: int) -> tuple[int, int]:
    """Return (bytes on disk, files and folders) below `root`; counting stops once either limit is passed."""
    num_bytes = num_files = 0
    folders = [str(root)]
    while folders:
        try:
            entries = os.scandir(folders.pop())
        except FileNotFoundError:
            continue
        except OSError:  # unreadable or too deep: what cannot be measured is too much
            return max_bytes + 1, num_files
        with entries:
            for entry in entries:
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                num_files += 1
                num_bytes += info.st_blocks * 512
                if num_bytes > max_bytes or num_files > max_files:
                    return num_bytes, num_files
                if stat.S_ISDIR(info.st_mode):
                    folders.append(entry.path)
    return num_bytes, num_files


def remove_tree(root: Path) -> None:
    """Remove a folder and everything below it, however deep and whatever its modes; idempotent.

    Walks down and back up with one open folder at a time, so that neither the stack, nor open files, nor
    the length of a path grows with the depth.
    """
    try:
        os.chmod(root, 0o700)
        fd = os.open(root, FOLDER)
    except FileNotFoundError:
        return
    path: list[tuple[str, list[str]]] = []  # (a folder's name, what is left to do in its parent)
    left = _unlink_files(fd)
    try:
        while left or path:
            if left:
                name = left.pop()
                os.chmod(name, 0o700, dir_fd=fd)
                path.append((name, left))
                fd = move(fd, name)
                left = _unlink_files(fd)
            else:
                name, left = path.pop()
                fd = move(fd, "..")
                os.rmdir(name, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(root)


def move(fd: int, name: str) -> int:
    """Open folder `name` of the open folder `fd`, which is closed."""
    there = os.open(name, FOLDER, dir_fd=fd)
    os.close(fd)
    return there


def _unlink_files(fd: int) -> list[str]:
    """Unlink everything in a folder but folders; return those."""
    folders: list[str] = []
    for name in os.listdir(fd):
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            folders.append(name)
        else:
            os.unlink(name, dir_fd=fd)
    return folders
