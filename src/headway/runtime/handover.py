"""Where a life hands versions over in shared memory, and what killed ones left there.

Beside its folder a life has a file that it keeps a lock on. The kernel takes the lock back however the
process dies, and knows it in whatever pid namespace the process is; so a free lock says beyond doubt that
nobody hands over anything there any more. A resume begins with a folder of its own and needs none of it. A
folder without such a file says nothing, for a version of Headway made it that made none: it stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Generator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
_PREFIX, _LOCK = "headway-weights-", ".lock"


def shared_folder(run_id: str) -> Path:
    """Return the folder of a life in shared memory."""
    return SHARED_MEMORY / f"{_PREFIX}{run_id}"


@contextlib.contextmanager
def owned(folder: Path) -> Generator[None]:
    """Make a folder, for this process alone while the block runs; removing it is somebody else's.

    Raises OSError when it cannot be made.
    """
    if folder.parent != SHARED_MEMORY:
        folder.mkdir(mode=0o700, exist_ok=True)
        yield
        return
    lock = _lock_of(folder)
    file = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.write(file, b"%d\n" % os.getpid())  # an empty file is not locked yet
        folder.mkdir(mode=0o700, exist_ok=True)
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(file)


def sweep_shared_memory() -> list[Path]:
    """Remove the folders of this user whose lives were killed; return them."""
    locks = sorted(SHARED_MEMORY.glob(f"{_PREFIX}*{_LOCK}"))
    return [folder for lock in locks if (folder := _swept(lock)) is not None]


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + _LOCK)


def _swept(lock: Path) -> Path | None:
    """Remove what a lock belongs to if nobody has it; return the folder, None where it stays."""
    folder = lock.with_name(lock.name.removesuffix(_LOCK))
    try:
        file = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or not info.st_size:
            return None
        if folder.lstat().st_uid == info.st_uid:
            shutil.rmtree(folder)
        lock.unlink()
    except FileNotFoundError:  # it was killed before it made the folder
        lock.unlink(missing_ok=True)
        return None
    except OSError:  # somebody has the lock, or something in it cannot be removed
        return None
    finally:
        os.close(file)
    return folder
