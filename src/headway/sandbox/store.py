"""A folder of snapshots: what sandboxes held, by the hash of what it is.

    blobs/<hash>       what a file holds, its holes as holes
    trees/<hash>       JSON: the steps of a walk (trees.py), each file by the hash of its blob
    snapshots/<hash>   JSON: a tree, what it lies over ("" or an image's digest), and labels

A snapshot's digest is the hash of its own small file, so it tells state and labels. Invariant: a snapshot's
tree is there, and a tree's blobs are: each file appears whole, by a rename, before what names it, and goes
after it. A process that is killed leaves drafts and blobs that nobody names, which the next `spare` finds.
After a power cut a blob may hold less than its name says; `put` looks at the hash again and refuses it.

Several processes may share a store: who takes or puts holds its lock with others, who removes holds it alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.core.clock import wall_time
from headway.core.errors import SandboxError
from headway.sandbox.blobs import Held, is_whole
from headway.sandbox.blobs import put as put_blob
from headway.sandbox.trees import KEPT_MODE, Entry, Filler, opened, walk, write_all

_KINDS = ("blobs", "trees", "snapshots")
_DRAFTS = "drafts"
_SETTLED_NS = (
    50_000_000  # a file that changed later than this before it was read may change with the same times
)
_Key = tuple[int, int, int]  # size, mtime and ctime of an inode


@dataclass(slots=True)
class Index:
    """What the last snapshot of one sandbox found, so that the next reads only what has changed since."""

    changed: bool = True  # whether anything ran or was written since; whoever does so says it
    tree: str = ""  # of the last snapshot
    files: dict[int, tuple[_Key, str]] = field(default_factory=dict[int, tuple[_Key, str]])  # by inode


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known of one."""

    tree: str
    base: str  # digest of the image that the tree lies over, "" when it is the whole state
    labels: dict[str, str]


class Store:
    """One folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._blobs_of: dict[str, frozenset[str]] = {}  # by tree; trees never change
        self._numbers = itertools.count()  # of drafts; several threads may take snapshots

    def take(
        self, root: Path | int, labels: Mapping[str, str], index: Index | None = None, base: str = ""
    ) -> str:
        """Store what is in folder `root` and return the digest.

        Args:
            root: the folder, or an overlay's upper folder when there is a base.
            labels: what the snapshot is to be known by.
            index: of the sandbox that it is of; what it says to be unchanged is not read again.
            base: digest of the image that the folder lies over.

        Raises SandboxError when it cannot be read or stored; no snapshot is left then.
        """
        index = index or Index()
        try:
            with self._locked(fcntl.LOCK_SH):
                known = bool(index.tree) and self._has("trees", index.tree)
                if index.changed or not known:
                    index.tree = self._take_tree(root, index, overlay=bool(base), known=known)
                    index.changed = False
                return self._put_file(
                    "snapshots", _encoded({"tree": index.tree, "base": base, "labels": dict(labels)})
                )
        except OSError as error:
            index.changed = True
            raise SandboxError(
                f"a snapshot cannot be stored: {error.strerror}", value=str(self.path)
            ) from error

    def put(self, digest: str, root: Path | int, owner: int | None, base: str = "") -> None:
        """Fill the empty folder `root` with what a snapshot holds; `base` must be what it lies over.

        Raises SandboxError when there is no such snapshot, or it is damaged.
        """
        try:
            with self._locked(fcntl.LOCK_SH, make=False):
                snapshot = self._read(digest)
                if snapshot.base != base:
                    raise SandboxError(
                        "a snapshot can be restored only over the image that it was taken over",
                        value=snapshot.base or "none",
                        remedy="Set sandbox.image and sandbox.provider as they were",
                    )
                self._put_tree(json.loads(self._checked("trees", snapshot.tree)), root, owner)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is damaged"
            raise SandboxError(f"a snapshot cannot be restored: {why}", value=digest) from error

    def snapshots(self) -> dict[str, Snapshot]:
        """Return what there is, by digest; one that is damaged is left out."""
        found: dict[str, Snapshot] = {}
        for digest in self._names("snapshots"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                found[digest] = self._read(digest)
        return found

    def discard(self, digest: str) -> None:
        """Remove a snapshot, and what no other one needs; idempotent."""
        with contextlib.suppress(FileNotFoundError), self._locked(fcntl.LOCK_EX, make=False):
            try:
                gone = self._read(digest).tree
            except (OSError, ValueError, KeyError):
                gone = ""
            (self.path / "snapshots" / digest).unlink(missing_ok=True)
            left = {snapshot.tree for snapshot in self.snapshots().values()}
            if not gone or gone in left:
                return
            blobs = set(self._blobs(gone))
            (self.path / "trees" / gone).unlink(missing_ok=True)
            self._blobs_of.pop(gone, None)
            for tree in self._names("trees"):
                blobs -= self._blobs(tree)
            for blob in blobs:
                (self.path / "blobs" / blob).unlink(missing_ok=True)

    @contextlib.contextmanager
    def spare(self, keep: Callable[[Mapping[str, str]], bool]) -> Generator[list[Path]]:
        """Lend the files that no snapshot needs whose labels `keep` says yes to; nobody else is in the store.

        They may be removed until the end of the block, in their order.
        """
        if not self.path.is_dir():
            yield []
            return
        with self._locked(fcntl.LOCK_EX):
            kept = {digest: s for digest, s in self.snapshots().items() if keep(s.labels)}
            trees = {snapshot.tree for snapshot in kept.values()}
            blobs = set[str]().union(*map(self._blobs, trees))
            found: list[Path] = []
            for kind, needed in zip(reversed(_KINDS), (set(kept), trees, blobs), strict=True):
                found += [self.path / kind / name for name in self._names(kind) if name not in needed]
            yield found + [self.path / _DRAFTS / name for name in self._names(_DRAFTS)]

    # --- taking

    def _take_tree(self, root: Path | int, index: Index, *, overlay: bool, known: bool) -> str:
        steps: list[list[Any]] = []
        files: dict[int, tuple[_Key, str]] = {}
        settled_ns = int(wall_time() * 1e9) - _SETTLED_NS
        before = index.files
        for entry in walk(root, overlay=overlay):
            info, name = entry.info, entry.name
            mode, mtime_ns = info.st_mode & KEPT_MODE, info.st_mtime_ns
            match entry.kind:
                case "file":
                    key = info.st_size, mtime_ns, info.st_ctime_ns
                    was = before.get(info.st_ino) or files.get(info.st_ino)
                    if was is not None and was[0] == key and (known or self._has("blobs", was[1])):
                        blob = was[1]
                    else:
                        blob = self._put_blob(entry)
                    if info.st_ctime_ns < settled_ns:
                        files[info.st_ino] = key, blob
                    steps.append(["file", name, mode, mtime_ns, info.st_size, blob])
                case "folder":
                    steps.append(["folder", name])
                case "up":
                    steps.append(["up", name, mode, mtime_ns, entry.opaque])
                case "link":
                    steps.append(["link", name, os.readlink(name, dir_fd=entry.folder), mtime_ns])
                case "fifo":
                    steps.append(["fifo", name, mode, mtime_ns])
                case "whiteout":
                    steps.append(["whiteout", name])
        index.files = files
        return self._put_file("trees", _encoded(steps))

    def _put_blob(self, entry: Entry) -> str:
        with opened(entry) as fd:
            held = Held(fd, entry.info)
            if not is_whole(self.path / "blobs" / held.name, held.size):
                with self._draft("blobs", held.name) as draft:
                    held.write(draft)
        return held.name

    # --- putting

    def _put_tree(self, steps: Iterable[list[Any]], root: Path | int, owner: int | None) -> None:
        folder = os.open(self.path / "blobs", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        filler: Filler | None = None
        try:
            filler = Filler(root, owner)
            for kind, name, *rest in steps:
                match kind:
                    case "file":
                        mode, mtime_ns, size, blob = rest
                        with filler.file(name, mode, mtime_ns) as target:
                            put_blob(folder, blob, size, target)
                    case "folder":
                        filler.folder(name)
                    case "up":
                        mode, mtime_ns, opaque = rest
                        filler.up(mode, mtime_ns, opaque=opaque, last=not name)
                    case "link":
                        filler.link(name, *rest)
                    case "fifo":
                        filler.fifo(name, *rest)
                    case "whiteout":
                        filler.whiteout(name)
                    case _:
                        raise ValueError(kind)
        finally:
            os.close(folder)
            if filler is not None:
                filler.close()

    # --- files of the store

    @contextlib.contextmanager
    def _locked(self, how: int, *, make: bool = True) -> Generator[None]:
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            fd = os.open(self.path / "lock", flags)
        except FileNotFoundError:
            if not make:
                raise
            for kind in (*_KINDS, _DRAFTS):
                (self.path / kind).mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.path / "lock", flags | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)

    def _has(self, kind: str, name: str) -> bool:
        return bool(name) and os.path.exists(self.path / kind / name)

    def _names(self, kind: str) -> list[str]:
        try:
            return os.listdir(self.path / kind)
        except FileNotFoundError:
            return []

    def _read(self, digest: str) -> Snapshot:
        plain = json.loads(self._checked("snapshots", digest))
        return Snapshot(plain["tree"], plain["base"], plain["labels"])

    def _checked(self, kind: str, name: str) -> bytes:
        data = (self.path / kind / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != name:
            raise ValueError(name)
        return data

    def _blobs(self, tree: str) -> frozenset[str]:
        if tree not in self._blobs_of:
            steps: list[list[Any]] = []
            with contextlib.suppress(OSError, ValueError):  # a damaged tree needs nothing
                steps = json.loads(self._checked("trees", tree))
            self._blobs_of[tree] = frozenset(step[-1] for step in steps if step[0] == "file")
        return self._blobs_of[tree]

    def _put_file(self, kind: str, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        if not self._has(kind, name):
            with self._draft(kind, name) as fd:
                write_all(fd, data, 0)
        return name

    @contextlib.contextmanager
    def _draft(self, kind: str, name: str) -> Generator[int]:
        """Lend a new file that gets its name when it is whole."""
        draft = f"{self.path}/{_DRAFTS}/{os.getpid()}.{id(self)}.{next(self._numbers)}"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield fd
            os.rename(draft, f"{self.path}/{kind}/{name}")
        except BaseException:
            os.unlink(draft)
            raise
        finally:
            os.close(fd)


def _encoded(plain: object) -> bytes:
    return json.dumps(plain, separators=(",", ":"), sort_keys=True).encode()
