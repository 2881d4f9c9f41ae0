"""Leases on disk: which sandboxes there are on this machine, and whose.

Each process that makes sandboxes has one file, and holds a lock on it for as long as it lives: the kernel
takes the lock back however the process ends, so a file whose lock is free belongs to a dead owner, and what
it names is left over (sweep.py ends that). The file begins with a line about the owner; then one line follows
for each change of a sandbox, written before its creation begins and after its end, and when it is handed
out. A change costs one write, whatever the number of sandboxes. A line that was cut is the last one.

Where a file system knows no locks, the owner's process id, start time and boot tell whether it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from headway.core.clock import wall_time
from headway.core.codec import to_plain
from headway.core.errors import SandboxError
from headway.sandbox import guard
from headway.sandbox.settings import SandboxSettings

RENEW_EVERY_S = 15.0
EXPIRES_AFTER_S = 60.0  # without a renewal
_COMPACT_BYTES = 1 << 18
_VERSION = 1
_LOOKS, _LOOK_S = 5, 0.002  # at a file whose owner is dead, to take it
_BEGAN_MS = int(wall_time() * 1000)

State = Literal["starting", "ready", "live", "ending"]


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that made sandboxes, as its file's first line tells."""

    pid: int
    start: str  # its start time in clock ticks since boot, as /proc has it
    boot: str  # id of the boot
    run: str
    provider: str
    settings: dict[str, Any]  # of the sandboxes, with which another process can end them
    command: str
    created_s: float  # since the epoch
    version: int = _VERSION


@dataclass(slots=True)
class Lease:
    """One sandbox."""

    id: str  # that its provider knows it by
    labels: dict[str, str]  # that its provider made it with
    created_s: float  # since the epoch, when its creation began
    state: State = "starting"  # ready: made ahead, and nobody has it; ending: its end failed, and it may live
    name: str = ""  # that its user knows it by, once somebody has it


@dataclass(slots=True)
class Book:
    """One owner's file as it was read."""

    path: Path
    owner: Owner
    leases: dict[str, Lease]
    renewed_s: float  # since the epoch
    alive: bool

    @property
    def expires_s(self) -> float:
        """When its leases end unless they are renewed, seconds since the epoch."""
        return self.renewed_s + EXPIRES_AFTER_S


def lease_folder() -> Path:
    """Return the folder of all files of this user, made and checked to be the caller's own.

    Raises SandboxError when it cannot be, or somebody else could write to it.
    """
    folder = Path(tempfile.gettempdir()) / f"headway-leases-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        info = folder.lstat()
    except OSError as error:
        raise SandboxError(f"the folder of leases cannot be made: {error}", value=str(folder)) from error
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise SandboxError("the folder of leases must be a folder of your own", value=str(folder))
    return folder


@dataclass(slots=True)
class LeaseBook:
    """The file that this process writes; made at the first lease, gone when the last has ended.

    Attributes:
        run: label of the run.
        settings: of the sandboxes.
        folder: where the file is; the user's own by default.
        guarded: whether somebody is to end what is left right after this process's death (guard.py).
    """

    run: str
    settings: SandboxSettings
    folder: Path | None = None
    guarded: bool = False
    _leases: dict[str, Lease] = field(default_factory=dict[str, Lease])
    _path: Path | None = None  # the same for this process's life
    _file: int = -1
    _guard: int = -1
    _num_bytes: int = 0
    _torn: bool = False  # whether the file may end within a line

    def begin(self, sandbox_id: str, labels: Mapping[str, str]) -> None:
        """Write a lease, before the sandbox's creation begins.

        Raises SandboxError when it cannot be written: the sandbox could be left behind unknown.
        """
        lease = self._leases[sandbox_id] = Lease(sandbox_id, dict(labels), wall_time())
        try:
            if self._file < 0:
                self._open()
            else:
                self._write({"+": asdict(lease)})
        except OSError as error:
            del self._leases[sandbox_id]
            raise SandboxError(f"a sandbox's lease cannot be written: {error}", value=sandbox_id) from error

    def started(self, sandbox_id: str, name: str = "") -> None:
        """A sandbox has started, and somebody has it under this name, or nobody yet."""
        if (lease := self._leases.get(sandbox_id)) is not None:
            lease.state, lease.name = "live" if name else "ready", name
            self._note({"=": [sandbox_id, lease.state, name]})

    def ending(self, sandbox_id: str) -> None:
        """A sandbox was to end, and may live all the same."""
        if (lease := self._leases.get(sandbox_id)) is not None and lease.state != "ending":
            lease.state = "ending"
            self._note({"=": [sandbox_id, "ending", lease.name]})

    def end(self, sandbox_id: str) -> None:
        """A sandbox has ended, or was never made; idempotent."""
        if self._leases.pop(sandbox_id, None) is not None:
            if self._leases:
                self._note({"-": sandbox_id})
            else:
                self.close()

    def renew(self) -> None:
        """Say that the owner is well."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.utime(self._file)

    def close(self) -> None:
        """Remove the file; a later lease makes another."""
        if self._path is not None and self._file >= 0:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._file)
            self._file = -1

    def _note(self, change: dict[str, Any]) -> None:
        """Write what is no harm to lose: a sweep of what has ended ends nothing."""
        with contextlib.suppress(OSError):
            self._write(change)

    def _write(self, change: dict[str, Any]) -> None:
        if self._num_bytes > _COMPACT_BYTES and self._num_bytes > 1024 * len(self._leases):
            self._open()
            return
        data = b"\n" * self._torn + _line(change)
        self._torn = True  # until all of it is written: what follows a piece begins on a line of its own
        _write_all(self._file, data)
        self._torn = False
        self._num_bytes += len(data)

    def _open(self) -> None:
        """Write a new file with all leases and put it in the old one's place, locked before it is seen."""
        owner = _this_process(self.run, self.settings)
        folder = self.folder or lease_folder()
        path = self._path or folder / f"{owner.pid}-{os.urandom(4).hex()}.leases"
        if self.guarded and self._guard < 0:
            self._guard = guard.start(path)  # before there is anything to guard
        draft = path.with_name(f".{path.name}")
        data = _line(asdict(owner)) + b"".join(_line({"+": asdict(lease)}) for lease in self._leases.values())
        file = os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with contextlib.suppress(OSError):  # there are file systems that know no locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_all(file, data)
            draft.rename(path)
        except BaseException:
            os.close(file)
            draft.unlink(missing_ok=True)
            raise
        if self._file >= 0:
            os.close(self._file)
        self._path, self._file, self._num_bytes, self._torn = path, file, len(data), False


def own_label(what: str) -> str:
    """Return a label of this process alone, for sandboxes that are of no run: `what-PID-START TIME`.

    A dead process's sandboxes are ended by their label: no live one may have the same.
    """
    return f"{what}-{os.getpid()}-{_BEGAN_MS}"


def read_books(folder: Path | None = None) -> list[Book]:
    """Return every owner's file, the oldest owner first; one that cannot be read is left out."""
    books: list[Book] = []
    for path in _paths(folder):
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # it may be anything
            try:
                if (book := _read(path, file)) is not None:
                    book.alive = not _free(file, fcntl.LOCK_SH, book.owner)
                    books.append(book)
            finally:
                os.close(file)
    return sorted(books, key=lambda book: book.owner.created_s)


@contextlib.contextmanager
def taken(path: Path) -> Generator[Book | None]:
    """Take a dead owner's file while the block runs; None when the owner lives, or another has taken it."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        book = _read(path, file)
        if book is not None and _had(file, book.owner) and _is_still(path, file):
            book.alive = False
            yield book
        else:
            yield None
    finally:
        os.close(file)


def drop_drafts(folder: Path | None = None) -> None:
    """Remove files that a process which was killed had begun and not put into their place."""
    for path in (folder or lease_folder()).glob(".*.leases"):
        with contextlib.suppress(OSError):
            if wall_time() - path.stat().st_mtime > EXPIRES_AFTER_S:
                path.unlink()


def _paths(folder: Path | None) -> list[Path]:
    return sorted((folder or lease_folder()).glob("[!.]*.leases"))


def _free(file: int, lock: int, owner: Owner) -> bool:
    """Say whether the owner is dead; its lock is the caller's then until the file is closed."""
    try:
        fcntl.flock(file, lock | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return owner.boot != _boot() or owner.start != _start(owner.pid)
    return True


def _had(file: int, owner: Owner) -> bool:
    """Take a dead owner's lock, past those who only look at the file: they have it for a moment each."""
    for left in reversed(range(_LOOKS)):
        if _free(file, fcntl.LOCK_EX, owner):
            return True
        if left:
            time.sleep(_LOOK_S)
    return False


def _is_still(path: Path, file: int) -> bool:
    """Say whether an open file is the one at its path, and not one that its owner has replaced since."""
    try:
        return os.fstat(file).st_ino == path.stat().st_ino
    except OSError:
        return False


def _read(path: Path, file: int) -> Book | None:
    info = os.fstat(file)
    with open(os.dup(file), "rb") as reading:
        lines = reading.read().split(b"\n")
    try:
        owner = Owner(**json.loads(lines[0]))
    except (ValueError, TypeError):
        return None
    if not _is_as_written(owner):
        return None
    leases: dict[str, Lease] = {}
    for line in lines[1:]:
        with contextlib.suppress(ValueError, TypeError, KeyError):  # cut in the middle
            change: dict[str, Any] = json.loads(line)
            if "+" in change:
                lease = Lease(**change["+"])
                if _is_as_written(lease):
                    leases[lease.id] = lease
            elif "-" in change:
                leases.pop(change["-"], None)
            else:
                name, state, of = change["="]
                changed = replace(leases[name], state=state, name=of)
                if _is_as_written(changed):
                    leases[name] = changed
    return Book(path, owner, leases, info.st_mtime, alive=True)


def _is_as_written(found: Owner | Lease) -> bool:
    """Say whether what was read has the types that are written: a file may be of another version."""
    if type(found.labels if isinstance(found, Lease) else found.settings) is not dict:
        return False
    if isinstance(found, Lease):
        words = (found.id, found.name, *found.labels.keys(), *found.labels.values())
        known = found.state in get_args(State)
    else:
        words = (found.start, found.boot, found.run, found.provider, found.command, *found.settings)
        known = type(found.pid) is int
    return known and type(found.created_s) in (int, float) and all(type(word) is str for word in words)


def _write_all(file: int, data: bytes) -> None:
    """Write everything, however small the pieces that the system takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _line(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, separators=(",", ":")).encode() + b"\n"


def _this_process(run: str, settings: SandboxSettings) -> Owner:
    command = " ".join([Path(sys.argv[0]).name or "python", *sys.argv[1:]])[:200]
    pid, plain = os.getpid(), to_plain(settings)
    return Owner(pid, _start(pid), _boot(), run, settings.provider, plain, command, wall_time())


def _start(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
