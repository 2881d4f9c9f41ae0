"""Tar archives into folders and out of them, whatever a hostile program wrote into either.

Every name is followed one component at a time and no link is; what would leave the folder is an error. Bytes
and entries are counted before they are written, those of sparse files and of long names included. Devices and
sockets are left out. The caller makes sure that no program of the sandbox runs meanwhile.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headway.core.errors import SandboxError
from headway.sandbox.files import FOLDER, open_root, parts_of, refused, remove_tree
from headway.sandbox.trees import KEPT_MODE, PIECE_BYTES, Entry, opened, set_mode, walk, write_all

_BLOCK = 512  # of a tar archive
_MAX_DEPTH = 128  # each name is walked from the top


@dataclass(slots=True)
class Allowance:
    """What may still pass."""

    max_bytes: int
    max_files: int

    def take(self, name: str, num_bytes: int) -> None:
        """Count one entry; raise SandboxError beyond a limit."""
        if name.count("/") >= _MAX_DEPTH:
            raise SandboxError(
                f"a tree that passes between sandbox and host must not be deeper than {_MAX_DEPTH} folders"
            )
        self.max_bytes -= num_bytes + len(name) + _BLOCK
        self.max_files -= 1
        if self.max_bytes < 0 or self.max_files < 0:
            what = "bytes" if self.max_bytes < 0 else "files"
            raise SandboxError(
                f"a tree must not exceed the {what} that may pass between sandbox and host",
                remedy="Ask for a part of it, or raise the limit",
            )


# --- out of a folder


def pack(root: Path | int, path: str, limits: Allowance, *, ours: bool = True) -> bytes:
    """Return a file or a folder below `root` as an archive; "" or "." is all of it.

    A file is the archive's one member, by its name; a folder's members have their names below it. `ours` says
    that a closed folder or file may be opened for it, and closed again.
    """
    buffer = io.BytesIO()
    try:
        with (
            tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive,
            _folder_of(root, parts_of(path, whole=True)) as (folder, name),
        ):
            info = os.stat(name or ".", dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(info.st_mode):
                _pack_entry(archive, Entry("file", name, info, folder, ours=ours), name, limits)
            else:
                with _opened_folder(folder, name or ".") as inner:
                    _pack_folder(archive, inner, limits, ours=ours)
    except OSError as error:
        raise refused("a tree cannot be read", path, error) from error
    return buffer.getvalue()


def _pack_folder(archive: tarfile.TarFile, folder: int, limits: Allowance, *, ours: bool) -> None:
    names: list[str] = []
    for entry in walk(folder, ours=ours):
        if entry.kind == "up":
            names = names[:-1]
            continue
        _pack_entry(archive, entry, "/".join([*names, entry.name]), limits)
        if entry.kind == "folder":
            names.append(entry.name)


def _pack_entry(archive: tarfile.TarFile, entry: Entry, name: str, limits: Allowance) -> None:
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IMODE(entry.info.st_mode) & KEPT_MODE
    member.mtime = entry.info.st_mtime_ns / 1e9
    size = entry.info.st_size if entry.kind in ("file", "again") else 0
    limits.take(name, size)
    match entry.kind:
        case "file" | "again":
            member.size = size
            with opened(entry) as fd, os.fdopen(os.dup(fd), "rb") as file:
                archive.addfile(member, file)
        case "folder":
            member.type = tarfile.DIRTYPE
            archive.addfile(member)
        case "link":
            member.type = tarfile.SYMTYPE
            member.linkname = os.readlink(entry.name, dir_fd=entry.folder)
            archive.addfile(member)
        case "fifo":
            member.type = tarfile.FIFOTYPE
            archive.addfile(member)
        case _:
            pass


# --- into a folder


@dataclass(slots=True)
class _Target:
    root: int
    owner: int | None
    links: bool
    left_out: list[str] = field(default_factory=list[str])
    folders: dict[tuple[str, ...], tuple[int, int]] = field(
        default_factory=dict[tuple[str, ...], tuple[int, int]]
    )  # mode and time, set when all is in them


def unpack(archive: bytes, root: Path | int, path: str, owner: int | None, limits: Allowance) -> None:
    """Put an archive's members below a folder below `root`, which is made; what is there is replaced.

    Raises SandboxError for a member that would leave the folder, or beyond a limit; those before it stay.
    """
    with _read(archive) as tar:
        extract(tar, root, owner, limits, path=path)


def unpack_to_host(
    archive: bytes, target: Path, max_bytes: int = 64 << 20, max_files: int = 10_000
) -> list[str]:
    """Make folder `target` of the host from an archive, whole or not at all.

    Links and named pipes are left out, for whoever reads the folder would follow them; returns their names.
    Raises SandboxError for a name that would leave the folder, beyond a limit, or when `target` exists.
    """
    draft = target.with_name(target.name + ".draft")
    remove_tree(draft)
    try:
        draft.mkdir(mode=0o700, parents=True)
        with _read(archive) as tar:
            left_out = extract(tar, draft, None, Allowance(max_bytes, max_files), links=False)
        if os.path.lexists(target):
            raise SandboxError("a download must not replace anything", value=str(target))
        draft.rename(target)
    except OSError as error:
        raise refused("a tree cannot be written", str(target), error) from error
    finally:
        remove_tree(draft)
    return left_out


def pack_host(path: Path, max_bytes: int = 64 << 20, max_files: int = 10_000) -> bytes:
    """Return a file or folder of the host as an archive; links stay links.

    Raises SandboxError when it cannot be read, or beyond a limit.
    """
    return pack(path.parent, path.name, Allowance(max_bytes, max_files), ours=False)


@contextmanager
def _read(archive: bytes) -> Generator[tarfile.TarFile]:
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:  # a compressed one might be a bomb
            yield tar
    except (tarfile.TarError, EOFError, ValueError, OverflowError, TypeError) as error:
        raise SandboxError(f"an archive cannot be read: {error}") from error


def extract(
    tar: tarfile.TarFile,
    root: Path | int,
    owner: int | None,
    limits: Allowance,
    *,
    path: str = "",
    links: bool = True,
) -> list[str]:
    """Put the members of an open archive below `root`; return the names of what was left out."""
    prefix = parts_of(path, whole=True)
    try:
        top = open_root(root)
        try:
            target = _Target(top, owner, links)
            for member in tar:
                size = member.size if member.isreg() else 0
                limits.take(member.name, size)
                _put(tar, member, target, prefix)
            for parts, (mode, mtime_ns) in reversed(target.folders.items()):
                with _folder_of(top, list(parts)) as (folder, name), _opened_folder(folder, name) as fd:
                    os.fchmod(fd, mode & KEPT_MODE)
                    os.utime(fd, ns=(mtime_ns, mtime_ns))
        finally:
            os.close(top)
    except OSError as error:
        raise refused("a tree cannot be written", path or None, error) from error
    return target.left_out


def _put(tar: tarfile.TarFile, member: tarfile.TarInfo, target: _Target, prefix: list[str]) -> None:
    parts = [*prefix, *_safe(member.name)]
    mtime_ns = max(0, int(member.mtime * 1e9))
    if not parts:
        return
    if member.isdir():
        with _folder_of(target.root, [*parts, "."], target) as (folder, _):
            del folder
        target.folders[tuple(parts)] = member.mode, mtime_ns
        return
    if not (member.isreg() or member.islnk() or (target.links and (member.issym() or member.isfifo()))):
        target.left_out.append(member.name)
        return
    with _folder_of(target.root, parts, target) as (folder, name):
        _make_room(folder, name, member.name)
        if member.isreg():
            _put_file(tar, member, folder, name, target)
        elif member.islnk():
            with _folder_of(target.root, [*prefix, *_safe(member.linkname)]) as (other, old):
                if not stat.S_ISREG(os.stat(old, dir_fd=other, follow_symlinks=False).st_mode):
                    raise _refused(member.name)
                os.link(old, name, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
            return
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=folder)
        else:
            os.mkfifo(name, 0o600, dir_fd=folder)
        if target.owner is not None:
            os.chown(name, target.owner, target.owner, dir_fd=folder, follow_symlinks=False)
        if not member.issym():
            set_mode(name, member.mode & KEPT_MODE, folder)
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=folder, follow_symlinks=False)


def _put_file(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str, target: _Target) -> None:
    source = tar.extractfile(member)
    assert source is not None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        at = 0
        while data := source.read(PIECE_BYTES):
            write_all(fd, data, at)
            at += len(data)
    finally:
        os.close(fd)


def _make_room(folder: int, name: str, member: str) -> None:
    """Remove what a member replaces; a folder is never replaced by something else."""
    try:
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(info.st_mode):
        raise _refused(member)
    os.unlink(name, dir_fd=folder)


def _safe(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise _refused(name)
    return parts


def _refused(name: str) -> SandboxError:
    return SandboxError(
        "an archive's entries must stay in the folder that they are put into", value=name[:200]
    )


@contextmanager
def _folder_of(root: Path | int, parts: list[str], make: _Target | None = None) -> Generator[tuple[int, str]]:
    """Open the folder that holds the last of `parts`, and lend it with that name, "" for the root itself."""
    at = open_root(root)
    try:
        for part in parts[:-1]:
            if make is not None:
                try:
                    os.mkdir(part, 0o755, dir_fd=at)
                except FileExistsError:
                    pass
                else:
                    if make.owner is not None:
                        os.chown(part, make.owner, make.owner, dir_fd=at, follow_symlinks=False)
            below = os.open(part, FOLDER, dir_fd=at)
            os.close(at)
            at = below
        yield at, parts[-1] if parts else ""
    finally:
        os.close(at)


@contextmanager
def _opened_folder(folder: int, name: str) -> Generator[int]:
    fd = os.open(name, FOLDER, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)
