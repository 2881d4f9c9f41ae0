"""Room that a run sets aside, so that it can still tell how it ended when the disk is full.

The last records of the journal and the summary go where the reserve was.
"""

from __future__ import annotations

import os
from pathlib import Path

from headway.core.errors import DiskFullError, RunDirectoryError
from headway.core.storage import disk_full, is_full

NAME = ".reserve"
NUM_BYTES = 4 << 20


def take(run_dir: Path) -> None:
    """Set room aside in a run directory; one that was set aside before stands.

    Raises RunDirectoryError when there is no room to begin with.
    """
    path = run_dir / NAME
    if path.exists() and path.stat().st_size == NUM_BYTES:
        return
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, NUM_BYTES)
    except OSError as error:
        path.unlink(missing_ok=True)
        full: DiskFullError | None = disk_full(path, NUM_BYTES, error) if is_full(error) else None
        if full is not None:
            raise RunDirectoryError(full.rule, remedy=full.remedy) from error
        raise RunDirectoryError(
            f"{run_dir} must be writable: {error.strerror}", remedy="Mend its permissions or the disk."
        ) from error


def give_up(run_dir: Path) -> bool:
    """Free the room; return whether there was any."""
    try:
        (run_dir / NAME).unlink()
    except FileNotFoundError:
        return False
    return True
