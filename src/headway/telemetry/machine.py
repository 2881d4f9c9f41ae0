"""The machine in words, for people who read about a run elsewhere."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path


def describe_machine() -> str:
    """Return processor and usable cores, such as "AMD EPYC 7763, 8 of 64 cores, x86_64"."""
    name = ""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                name = " ".join(line.partition(":")[2].split())
                break
    except OSError:
        pass
    usable, every = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    cores = f"{usable} core{'s'[: usable != 1]}" if usable == every else f"{usable} of {every} cores"
    return ", ".join(part for part in (name, cores, platform.machine()) if part)


def cores_of(machine: str) -> int | None:
    """Return the usable cores that `describe_machine` told, None where it told none."""
    found = re.search(r", (\d+)(?: of \d+)? cores?(?:,|$)", f", {machine}")
    return int(found[1]) if found else None
