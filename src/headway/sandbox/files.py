"""Work folders on the host: safe reads and writes, their size, their removal.

A program in the sandbox may have planted anything there: symlinks, fifos, deep trees, unreadable folders.
So every path is opened one component at a time without following links, only regular files are touched,
and nothing recurses. The caller makes sure that no program runs meanwhile.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from headway.core.errors import SandboxError
from headway.sandbox.layout import WORK


def write_file(root: Path, path: str, data: bytes, owner: int | None) -> None:
    """Write a regular file below `root`, making folders; `owner` is a uid, None for the caller's."""
    with _parent(root, path, owner) as (folder, name):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _regular(folder, name, flags, path) as fd:
            if owner is not None:
                os.fchown(fd, owner, owner)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]


def read_file(root: Path, path: str, max_bytes: int) -> bytes:
    """Return at most the first `max_bytes` bytes of a regular file below `root`."""
    with _parent(root, path, None, make=False) as (folder, name):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _regular(folder, name, flags, path) as fd, os.fdopen(os.dup(fd), "rb") as file:
            return file.read(max_bytes)


def _parts(path: str) -> list[str]:
    inside = path.removeprefix(WORK + "/") if path.startswith("/") else path
    parts = [part for part in inside.split("/") if part not in ("", ".")]
    if inside.startswith("/") or not parts or ".." in parts or "\0" in path:
        raise SandboxError(f"a sandbox path must lie below {WORK}", value=path)
    return parts


@contextmanager
def _parent(root: Path, path: str, owner: int | None, *, make: bool = True) -> Generator[tuple[int, str]]:
    """Open the folder that holds `path`, component by component."""
    *folders, name = _parts(path)
    with ExitStack() as stack:
        at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, at)
        for folder in folders:
            try:
                if make and not _exists(at, folder):
                    os.mkdir(folder, 0o755, dir_fd=at)
                    if owner is not None:
                        os.chown(folder, owner, owner, dir_fd=at, follow_symlinks=False)
                at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            except OSError as error:
                raise _refused(path, error) from None
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
        raise _refused(path, error) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SandboxError("only regular files pass between sandbox and host", value=path)
        yield fd
    finally:
        os.close(fd)


def _refused(path: str, error: OSError) -> SandboxError:
    return SandboxError(f"a sandbox file could not be opened: {error.strerror}", value=path)


def usage(root: Path, max_bytes: int, max_files: int) -> tuple[int, int]:
    """Return (bytes on disk, files and folders) below `root`; counting stops once either limit is passed."""
    num_bytes = num_files = 0
    folders = [str(root)]
    while folders:
        try:
            entries = os.scandir(folders.pop())
        except OSError:
            continue  # gone meanwhile, unreadable, or a path too long: nothing big fits behind the last
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

    Subfolders of subfolders are moved up to the root before their parent goes, so that neither the stack
    nor the length of a path grows with the depth.
    """
    number = 0
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        while True:
            names = os.listdir(fd)
            if not names:
                break
            for name in names:
                if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=fd)
                    continue
                number = _hoist(fd, name, number)
                os.rmdir(name, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(root)


def _hoist(fd: int, name: str, number: int) -> int:
    """Empty the folder `name`: unlink its files, move its folders beside it under fresh names."""
    os.chmod(name, 0o700, dir_fd=fd)
    child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        for entry in os.listdir(child):
            if stat.S_ISDIR(os.stat(entry, dir_fd=child, follow_symlinks=False).st_mode):
                os.chmod(
                    entry, 0o700, dir_fd=child
                )  # moving a folder rewrites its "..", so it must be writable
                while _exists(fd, f"hoisted-{number}"):
                    number += 1
                os.rename(entry, f"hoisted-{number}", src_dir_fd=child, dst_dir_fd=fd)
            else:
                os.unlink(entry, dir_fd=child)
    finally:
        os.close(child)
    return number
