"""Directories that appear whole or not at all. No torch.

Invariant: under its final name a directory is complete; whatever a killed process left has a name that
starts with PARTIAL and is removed by the next writer. One process writes into a parent directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

PARTIAL = ".partial-"


@contextlib.contextmanager
def whole_directory(target: Path, *, durable: bool = False) -> Generator[Path]:
    """Yield a directory to write into; it becomes `target` at the end, or vanishes when the block raises.

    An existing `target` is replaced. With `durable` everything is fsynced first, so that it also survives a
    power cut.
    """
    parent = target.parent
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob(f"{PARTIAL}*"):
        shutil.rmtree(left)
    staging = parent / f"{PARTIAL}{target.name}"
    staging.mkdir()
    try:
        yield staging
        if durable:
            for path in sorted(staging.rglob("*")):
                _fsync(path)
            _fsync(staging)
        if target.exists():
            remove_directory(target)
        staging.rename(target)
        if durable:
            _fsync(parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def remove_directory(path: Path) -> None:
    """Remove a directory; it is gone under its own name at once, before its files are."""
    doomed = path.parent / f"{PARTIAL}{path.name}-removed"
    if doomed.exists():
        shutil.rmtree(doomed)
    path.rename(doomed)
    shutil.rmtree(doomed)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
