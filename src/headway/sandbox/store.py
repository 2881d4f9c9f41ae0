"""A folder of snapshots: what sandboxes held, by the hash of what it is.

    packs/, blobs/, places/   what files hold (packs.py)
    trees/<hash>              JSON: the steps of a walk (trees.py), each file by the hash of its blob
    snapshots/<hash>          JSON: a tree, what it lies over ("" or an image's digest), and labels

A snapshot's digest is the hash of its own small file, so it tells state and labels. Invariant: a snapshot's
tree is there, and all that the tree needs: each file appears whole, by a rename, before what names it, and
goes after it. A process that is killed leaves drafts and files that nobody names, which the next `spare`
finds. After a power cut a file may hold less than it should; `put` looks at every hash and refuses it.

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
from headway.sandbox.packs import Packer, Place, Unpacker, places_of
from headway.sandbox.trees import KEPT_MODE, Filler, opened, walk, write_all

_KINDS = ("snapshots", "trees", "places", "packs", "blobs")  # each before what it names
_DRAFTS = "drafts"
_SETTLED_NS = 50_000_000  # a file that changed this shortly before it was read may yet change at these times
_MAX_KNOWN = 100_000
_Key = tuple[int, int, int]  # size, mtime and ctime of an inode


@dataclass(slots=True)
class Index:
    """What the last snapshot of one sandbox found, so that the next reads no more than it must.

    Whoever lets programs run, or writes, says it. What a program did cannot be told from inodes: to write
    through a mapping changes no time of a file on a tmpfs. So after programs every file is read.
    """

    changed: bool = True  # whether anything ran or was written since
    ran: bool = False  # whether programs ran since
    tree: str = ""  # of the last snapshot
    files: dict[int, tuple[_Key, str]] = field(default_factory=dict[int, tuple[_Key, str]])  # by inode

    def programs_run(self) -> None:
        """Take note that programs begin to run."""
        self.changed = self.ran = True


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
        self._needs_of: dict[str, frozenset[str]] = {}  # by tree; trees never change
        self._known: dict[str, Place] = {}  # of small blobs, as they were; packs may have gone
        self._numbers = itertools.count()  # of drafts; several threads may take snapshots

    def take(
        self, root: Path | int, labels: Mapping[str, str], index: Index | None = None, base: str = ""
    ) -> str:
        """Store what is in folder `root` and return the digest.

        Args:
            root: the folder, or an overlay's upper folder when there is a base.
            labels: what the snapshot is to be known by.
            index: of the sandbox that it is of; what cannot have changed since is not read again.
            base: digest of the image that the folder lies over.

        Raises SandboxError when it cannot be read or stored; no snapshot is left then.
        """
        index = index or Index()
        try:
            with self._locked(fcntl.LOCK_SH):
                if index.changed or not self._is_there(index.tree):
                    index.tree = self._take_tree(root, index, overlay=bool(base))
                    index.changed = index.ran = False
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
                steps = json.loads(self._checked("trees", snapshot.tree))
                self._put_tree(steps, self._places(snapshot.tree), root, owner)
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
            if not self._has("snapshots", digest):
                return
            (self.path / "snapshots" / digest).unlink()
            left = {snapshot.tree for snapshot in self.snapshots().values()}
            if not gone or gone in left:
                return
            needs = set(self._needs(gone))
            self._needs_of.pop(gone, None)
            (self.path / "trees" / gone).unlink(missing_ok=True)
            for tree in self._names("trees"):
                needs -= self._needs(tree)
            for name in sorted(needs, reverse=True):  # places first
                (self.path / name).unlink(missing_ok=True)

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
            needed = set[str]().union(*map(self._needs, trees))
            needed |= {f"trees/{tree}" for tree in trees} | {f"snapshots/{digest}" for digest in kept}
            names = (f"{kind}/{name}" for kind in (*_KINDS, _DRAFTS) for name in self._names(kind))
            yield [self.path / name for name in names if name not in needed]

    # --- taking

    def _take_tree(self, root: Path | int, index: Index, *, overlay: bool) -> str:
        for known in (self._known, dict[str, Place]()):
            draft = self.path / _DRAFTS / self._draft_name()
            packer = Packer(self.path, draft, known)
            try:
                before = {} if index.ran else index.files
                data, files = self._steps(root, before, packer, overlay=overlay)
                if packer.wasteful:
                    continue
                tree = hashlib.sha256(data).hexdigest()
                if not self._is_there(tree):
                    self._put_file("places", _encoded(packer.finish()), tree)
                    self._put_file("trees", data, tree)
                self._places(tree)
                index.files = files
                return tree
            finally:
                packer.close()
        raise AssertionError("what is packed anew is never wasteful")

    def _steps(
        self, root: Path | int, before: Mapping[int, tuple[_Key, str]], packer: Packer, *, overlay: bool
    ) -> tuple[bytes, dict[int, tuple[_Key, str]]]:
        """Return a tree as it is stored, and what an index keeps of its files."""
        steps: list[list[Any]] = []
        files: dict[int, tuple[_Key, str]] = {}
        settled_ns = int(wall_time() * 1e9) - _SETTLED_NS
        for entry in walk(root, overlay=overlay):
            info, name = entry.info, entry.name
            mode, mtime_ns = info.st_mode & KEPT_MODE, info.st_mtime_ns
            match entry.kind:
                case "file":
                    key = info.st_size, mtime_ns, info.st_ctime_ns
                    was = before.get(info.st_ino)
                    if was is not None and was[0] == key and packer.has(was[1], info.st_size):
                        blob = was[1]
                    else:
                        with opened(entry) as fd:
                            blob = packer.add(fd, info)
                    if info.st_ctime_ns < settled_ns:
                        files[info.st_ino] = key, blob
                    steps.append(["file", name, mode, mtime_ns, info.st_size, blob])
                case "again":
                    steps.append(["again", name, entry.first])
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
        return _encoded(steps), files

    # --- putting

    def _put_tree(
        self, steps: Iterable[list[Any]], places: Mapping[str, Any], root: Path | int, owner: int | None
    ) -> None:
        blobs = Unpacker(self.path, places)
        filler: Filler | None = None
        try:
            filler = Filler(root, owner)
            for kind, name, *rest in steps:
                match kind:
                    case "file":
                        mode, mtime_ns, size, blob = rest
                        with filler.file(name, mode, mtime_ns) as target:
                            blobs.put(blob, size, target)
                    case "again":
                        filler.again(name, *rest)
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
            blobs.close()
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

    def _is_there(self, tree: str) -> bool:
        return self._has("trees", tree) and self._has("places", tree)

    def _places(self, tree: str) -> dict[str, Any]:
        """Return the places of a tree, and remember them."""
        plain: dict[str, Any] = json.loads((self.path / "places" / tree).read_bytes())
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        self._known.update(places_of(plain))
        return plain

    def _needs(self, tree: str) -> frozenset[str]:
        """Return the names, below the store, of the files that a tree needs."""
        if tree not in self._needs_of:
            plain: dict[str, Any] = {}
            with contextlib.suppress(OSError, ValueError):  # a damaged tree needs nothing
                plain = json.loads((self.path / "places" / tree).read_bytes())
            packs = (f"packs/{name}" for name in plain.get("packs", ()))
            blobs = (f"blobs/{name}" for name in plain.get("large", ()))
            self._needs_of[tree] = frozenset((*packs, *blobs, f"places/{tree}"))
        return self._needs_of[tree]

    def _put_file(self, kind: str, data: bytes, name: str = "") -> str:
        """Write a small file, named by its hash unless a name is given; return the name."""
        named = name or hashlib.sha256(data).hexdigest()
        if name or not self._has(kind, named):
            draft = self.path / _DRAFTS / self._draft_name()
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                write_all(fd, data, 0)
                draft.rename(self.path / kind / named)
            except BaseException:
                os.unlink(draft)
                raise
            finally:
                os.close(fd)
        return named

    def _draft_name(self) -> str:
        return f"{os.getpid()}.{id(self)}.{next(self._numbers)}"


def _encoded(plain: object) -> bytes:
    return json.dumps(plain, separators=(",", ":"), sort_keys=True).encode()
