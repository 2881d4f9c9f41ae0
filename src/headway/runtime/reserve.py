"""Room that a run sets aside, so that it can still tell how it ended when the disk is full.

The last records of the journal and the summary go where the reserve was.
"""

from __future__ import annotations

import os
from pathlib import Path

from headway.core.errors import RunDirectoryError
from headway.core.storage import free_bytes, is_full, size

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
        if is_full(error):
            raise RunDirectoryError(
                f"{run_dir} must have room for {size(NUM_BYTES)} to begin with: {size(free_bytes(run_dir))} "
                f"are free there ({error.strerror})",
                remedy="Free room, or choose another disk with run.dir=DIRECTORY.",
            ) from error
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
