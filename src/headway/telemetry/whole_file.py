"""Files that appear whole or not at all.

Invariant: under its own name a file is the old one or the new one, whenever a process is killed; what a kill
leaves is NAME.partial beside it, which the next writer of NAME takes over. One process at a time writes NAME.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from headway.core.errors import UserError


@contextlib.contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """Yield where to write; it becomes `path` at the end, or vanishes when the block raises.

    Raises UserError when nothing can be written there.
    """
    target = path.resolve()  # behind a link: the link stays
    partial = target.parent / f"{target.name}.partial"
    try:
        if target.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        if target.exists() and not target.is_file():  # the file would take the place of /dev/null
            raise FileExistsError(None, "it is a device or a pipe")
        claim = partial.open("ab")  # whether that is possible is known before the work begins
    except OSError as error:
        raise UserError(
            f"the file {path} cannot be written: {error.strerror}",
            remedy="Name a file in a directory that exists and that you may write to",
        ) from error
    with claim:
        if not _claimed(claim, partial):
            raise UserError(
                f"another process is writing the file {path}",
                remedy="Wait until it is done, or name another file",
            )
        try:
            yield partial
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _claimed(claim: BinaryIO, partial: Path) -> bool:
    """Say whether this process alone writes the file; the kernel takes the claim back when it dies."""
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(claim.fileno()), partial.stat())  # or the other was done just now
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        return True  # a file system without locks
