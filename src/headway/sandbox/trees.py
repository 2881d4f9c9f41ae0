"""Folders of a sandbox, read and made without ever following a link: the walk, the filler, and a copy.

A program in the sandbox may have planted anything there. So nothing recurses: trees are walked with one open
folder, and every entry is opened by its own name. What passes is regular files (their holes as holes),
folders, symlinks and fifos, with modes (without set-uid and set-gid) and times. Names of one file stay
names of one file, or a thousand of them would hold a thousand times what they are allowed to. Sockets, which
nobody listens to any more, and devices are left out. Whoever fills a tree owns it, or names one uid that
does. The caller makes sure that no program runs meanwhile.

An overlay's upper folder is a tree too: with `overlay`, whiteouts and opaque folders pass as what they are.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.core.errors import SandboxError
from headway.sandbox.files import FOLDER, move, open_root
from headway.sandbox.inside import Place, link_again

KEPT_MODE = 0o1777
OPAQUE = "user.overlay.opaque"  # of a folder that hides what lies below it, as the kernel's overlay says it
PIECE_BYTES = 1 << 20

Kind = Literal["folder", "up", "file", "again", "link", "fifo", "whiteout"]


@dataclass(slots=True)
class Entry:
    """One step of a walk: into a folder, out of it, or something in it."""

    kind: Kind
    name: str  # in its folder; of "up", the folder that ends, "" for the root
    info: os.stat_result
    folder: int  # descriptor of the folder that holds it, or of the one that ends; open until the next step
    opaque: bool = False  # of "up"
    first: int = 0  # of "again", another name of a file: which of the "file"s of the walk it is
    ours: bool = True


def walk(root: Path | int, *, overlay: bool = False, ours: bool = True) -> Iterator[Entry]:
    """Yield what is below `root`, each folder's entries by name; the last step is out of the root.

    What cannot be read is opened for the walk and closed again where the tree is `ours`, a sandbox's.

    Raises OSError for what cannot be read.
    """
    here = open_root(root)
    path: list[tuple[str, os.stat_result, list[tuple[str, os.stat_result]]]] = []
    info = os.fstat(here)
    name = ""
    folders: list[tuple[str, os.stat_result]] = []
    several: dict[tuple[int, int], int] = {}  # number of the file, of those with several names
    num_files = 0
    entering = True
    try:
        while True:
            if entering:
                folders = []
                with os.scandir(here) as entries:
                    found = sorted(entries, key=_name)
                for entry in found:
                    about = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((entry.name, about))
                    elif (kind := _kind(about, overlay)) is not None:
                        inode, first = (about.st_dev, about.st_ino), num_files
                        if kind == "file" and about.st_nlink > 1:
                            first = several.setdefault(inode, num_files)
                        if first < num_files:
                            yield Entry("again", entry.name, about, here, ours=ours, first=first)
                            continue
                        num_files += kind == "file"
                        yield Entry(kind, entry.name, about, here, ours=ours)
                folders.reverse()
            if folders:
                below, about = folders.pop()
                yield Entry("folder", below, about, here)
                if ours and about.st_mode & 0o500 != 0o500:
                    set_mode(below, stat.S_IMODE(about.st_mode) | 0o500, here)
                path.append((name, info, folders))
                name, info, here, entering = below, about, move(here, below), True
                continue
            yield Entry("up", name, info, here, overlay and _is_opaque(here))
            if not path:
                return
            ended, was = name, info
            name, info, folders = path.pop()
            here, entering = move(here, ".."), False
            if ours and was.st_mode & 0o500 != 0o500:
                set_mode(ended, stat.S_IMODE(was.st_mode), here)
    finally:
        os.close(here)


def set_mode(name: str, mode: int, folder: int) -> None:
    """Set the mode of an entry of an open folder, never that of what a link in its place names."""
    if not hasattr(os, "O_PATH"):
        os.chmod(name, mode, dir_fd=folder, follow_symlinks=False)
        return
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISLNK(os.fstat(fd).st_mode):
            os.chmod(f"/proc/self/fd/{fd}", mode)
    finally:
        os.close(fd)


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _kind(info: os.stat_result, overlay: bool) -> Kind | None:
    if stat.S_ISREG(info.st_mode):
        return "file"
    if stat.S_ISLNK(info.st_mode):
        return "link"
    if stat.S_ISFIFO(info.st_mode):
        return "fifo"
    return "whiteout" if overlay and stat.S_ISCHR(info.st_mode) and info.st_rdev == 0 else None


def _is_opaque(folder: int) -> bool:
    try:
        return os.getxattr(folder, OPAQUE) == b"y"
    except OSError:
        return False


@contextmanager
def opened(entry: Entry) -> Generator[int]:
    """Open a file of a walk for reading."""
    info, folder, name = entry.info, entry.folder, entry.name
    closed = entry.ours and not info.st_mode & 0o400 and os.geteuid() != 0
    if closed:
        set_mode(name, stat.S_IMODE(info.st_mode) | 0o400, folder)
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        if closed:
            set_mode(name, stat.S_IMODE(info.st_mode), folder)


class Filler:
    """Makes a tree in an empty folder, step by step as a walk goes; what is there already is refused."""

    def __init__(self, root: Path | int, owner: int | None) -> None:
        self.here = open_root(root)
        self._root = os.dup(self.here)
        self._place: Place = ()
        self._files: list[Place] = []
        self._owner = owner

    def close(self) -> None:
        """Let go of the folder that it is in."""
        os.close(self.here)
        os.close(self._root)

    def folder(self, name: str) -> None:
        """Make a folder and go into it."""
        os.mkdir(name, 0o700, dir_fd=self.here)
        self.here, self._place = move(self.here, name), (self._place, name)

    def up(self, mode: int, mtime_ns: int, *, opaque: bool = False, last: bool = False) -> None:
        """Finish a folder and leave it, but the root."""
        done = self.here
        if opaque:
            os.setxattr(done, OPAQUE, b"y")
        if not last:
            self.here, self._place = os.open("..", FOLDER, dir_fd=done), self._place[0]
        try:
            self._finish(done, mode, mtime_ns)
        finally:
            if not last:
                os.close(done)

    @contextmanager
    def file(self, name: str, mode: int, mtime_ns: int) -> Generator[int]:
        """Make a file to write into."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=self.here)
        try:
            yield fd
            self._finish(fd, mode, mtime_ns)
        finally:
            os.close(fd)
        self._files.append((self._place, name))

    def again(self, name: str, first: int) -> None:
        """Give a file another name; `first` says which of those that were made."""
        link_again(self._root, self._files[first], self.here, name)

    def link(self, name: str, target: str, mtime_ns: int) -> None:
        """Make a symlink."""
        os.symlink(target, name, dir_fd=self.here)
        self._own(name)
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=self.here, follow_symlinks=False)

    def fifo(self, name: str, mode: int, mtime_ns: int) -> None:
        """Make a named pipe."""
        os.mkfifo(name, 0o600, dir_fd=self.here)
        self._own(name)
        os.chmod(name, mode & KEPT_MODE, dir_fd=self.here)
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=self.here)

    def whiteout(self, name: str) -> None:
        """Hide what an overlay's lower folder has under this name."""
        os.mknod(name, stat.S_IFCHR, 0, dir_fd=self.here)

    def _own(self, name: str) -> None:
        if self._owner is not None:
            os.chown(name, self._owner, self._owner, dir_fd=self.here, follow_symlinks=False)

    def _finish(self, fd: int, mode: int, mtime_ns: int) -> None:
        if self._owner is not None:
            os.fchown(fd, self._owner, self._owner)
        os.fchmod(fd, mode & KEPT_MODE)
        os.utime(fd, ns=(mtime_ns, mtime_ns))


def copy_tree(
    source: Path | int, target: Path | int, owner: int | None, *, overlay: bool = False, ours: bool = True
) -> None:
    """Copy what is in folder `source` into the empty folder `target`; either may be an open descriptor.

    `overlay` and `ours` as of `walk`.

    Raises SandboxError when the source cannot be read or the target not be written.
    """
    try:
        filler = Filler(target, owner)
        try:
            for entry in walk(source, overlay=overlay, ours=ours):
                _copy(entry, filler)
        finally:
            filler.close()
    except OSError as error:
        raise SandboxError(f"a work folder cannot be copied: {error}", value=str(source)) from error


def _copy(entry: Entry, filler: Filler) -> None:
    name, mode, mtime_ns = entry.name, stat.S_IMODE(entry.info.st_mode), entry.info.st_mtime_ns
    match entry.kind:
        case "folder":
            filler.folder(name)
        case "up":
            filler.up(mode, mtime_ns, opaque=entry.opaque, last=not name)
        case "file":
            with opened(entry) as source, filler.file(name, mode, mtime_ns) as target:
                copy_data(source, target, entry.info.st_size)
        case "again":
            filler.again(name, entry.first)
        case "link":
            filler.link(name, os.readlink(name, dir_fd=entry.folder), mtime_ns)
        case "fifo":
            filler.fifo(name, mode, mtime_ns)
        case "whiteout":
            filler.whiteout(name)


def pieces(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield where a file has data, as (start, end): a sparse one may be far larger than any quota."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        yield start, min(at, size)


def copy_data(source: int, target: int, size: int) -> None:
    """Copy what is no hole."""
    if size and size <= PIECE_BYTES and os.fstat(source).st_blocks * 512 >= size:
        write_all(target, os.pread(source, size, 0), 0)
        return
    os.ftruncate(target, size)
    for start, end in pieces(source, size):
        while start < end:
            piece = os.pread(source, min(PIECE_BYTES, end - start), start)
            if not piece:
                return
            write_all(target, piece, start)
            start += len(piece)


def write_all(fd: int, data: bytes, at: int) -> None:
    """Write all of `data` at a place of a file."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written
