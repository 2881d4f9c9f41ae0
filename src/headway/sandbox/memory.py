"""What a paused sandbox can give back of its memory.

The kernel takes back what it can read again (pages of files) and, where there is swap, what it can write
there. Without swap the programs' own memory stays. Only where a cgroup counts the sandbox's memory can the
kernel be asked; elsewhere it takes pages when the machine runs short.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path


def give_back(groups: Sequence[Path]) -> None:
    """Ask the kernel to reclaim what these cgroups hold, as far as it can; blocks for some milliseconds."""
    for folder in groups:
        for name, value in (("memory.reclaim", "1G"), ("memory.force_empty", "0")):
            if (folder / name).exists():
                with contextlib.suppress(OSError):  # it could not take as much, which is no fault
                    (folder / name).write_text(value)
