"""Cgroups that this process may make: limits over all processes of a sandbox.

The helper makes one folder a sandbox in each hierarchy, ahead of it, and removes it when the sandbox has
ended (native/cell.c). Here is found where those folders may lie. A hierarchy serves when a folder can be
made in it and its limits can be written, which root can with version 1, and whoever was delegated a subtree
with version 2. A process is born into a cgroup of version 2; into one of version 1 it has to be moved, which
takes the kernel some 10 ms on a machine that rarely does so. Folders of helpers that were killed are removed
at the next start.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings

_NAME = re.compile(r"headway-(\d+)-\d+")
_ROOT = Path("/sys/fs/cgroup")


@dataclass(slots=True)
class Group:
    """A folder of ours in one hierarchy, in which each sandbox gets a folder of its own."""

    folder: Path
    version: int
    controllers: tuple[str, ...]
    limits: dict[str, str] = field(default_factory=dict[str, str])  # file: value, written once a sandbox
    events: str = ""  # the file that counts processes killed for memory
    peak: str = ""  # the file that tells the most memory so far, and begins anew when written to

    def lines(self) -> list[str]:
        """Return what the helper is told of it."""
        lines = ["group=fd", f"name={self.folder.name}", f"born_inside={int(self.version == 2)}"]
        for name, value in self.limits.items():
            lines += [f"file={name}", f"value={value}"]
        if self.events:
            lines.append(f"events={self.events}")
        if self.peak:
            lines.append(f"peak={self.peak}")
        return lines

    def remove(self) -> None:
        """Remove the folder, if nothing is in it any more."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder):
                if name.isdigit():
                    with contextlib.suppress(OSError):
                        (self.folder / name).rmdir()
            self.folder.rmdir()


def find_groups(settings: SandboxSettings, root: Path = _ROOT) -> list[Group]:
    """Return the hierarchies that serve here, each with a new folder; none where there are none."""
    if settings.cgroups == "off":
        return []
    own = own_groups()
    second = root / "unified" if (root / "unified").is_dir() else root
    if "" in own:
        place = second / own[""].lstrip("/")
        # A cgroup with processes in it gives its children no controllers, so it may have to be one above.
        for parent in (place, *place.parents):
            if not parent.is_relative_to(second):
                break
            group = _make(parent, 2, ("memory", "pids", "cpu"), settings)
            if group is not None:
                return [group]
    found: list[Group] = []
    if settings.cgroups != "all":
        return found
    for controller in ("memory", "cpu"):
        if controller in own and (controller == "memory" or settings.cpu_weight != 100):
            group = _make(root / controller / own[controller].lstrip("/"), 1, (controller,), settings)
            if group is not None:
                found.append(group)
    return found


def own_groups(path: Path = Path("/proc/self/cgroup")) -> dict[str, str]:
    """Return this process's place by controller; that of version 2 under the empty name."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, place = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = place
    return found


def limits_of(version: int, settings: SandboxSettings) -> dict[str, dict[str, str]]:
    """Return file and value by controller. Memory is everything: processes, work folder, /tmp, kernel."""
    memory = (settings.memory_mb + settings.work_mb + settings.tmpfs_mb) << 20
    if version == 1:
        return {
            "memory": {"memory.limit_in_bytes": str(memory)},
            "cpu": {"cpu.shares": str(max(2, settings.cpu_weight * 1024 // 100))},
        }
    return {
        "memory": {"memory.max": str(memory), "memory.swap.max": "0"},
        "pids": {"pids.max": str(settings.max_processes + 8)},
        "cpu": {"cpu.weight": str(settings.cpu_weight)},
    }


def _make(parent: Path, version: int, wanted: tuple[str, ...], settings: SandboxSettings) -> Group | None:
    """Make a folder and see whether it holds what is wanted of it; None where it does not."""
    limits = limits_of(version, settings)
    try:
        _sweep(parent)
        number = int.from_bytes(os.urandom(3), "big")
        folder = parent / f"headway-{os.getpid()}-{number}"
        folder.mkdir()
    except OSError:
        return None
    group = Group(folder, version, wanted)
    try:
        if version == 2:
            held = (folder / "cgroup.controllers").read_text().split()
            wanted = tuple(name for name in wanted if name in held)
            if "memory" not in wanted:
                group.remove()
                return None
            (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in wanted))
        group.controllers = wanted
        probe = folder / "0"
        probe.mkdir()
        for controller in wanted:
            for name, value in limits[controller].items():
                if (probe / name).exists():
                    (probe / name).write_text(value)
                    group.limits[name] = value
        if version == 1 and "memory" in wanted:
            group.events, group.peak = "memory.oom_control", "memory.max_usage_in_bytes"
        elif version == 2:
            group.events = "memory.events"
        probe.rmdir()
    except OSError:
        group.remove()
        return None
    return group


def _sweep(parent: Path) -> None:
    """Remove folders of processes that are no more."""
    for entry in parent.iterdir():
        match = _NAME.fullmatch(entry.name)
        if match and not Path("/proc", match[1]).exists():
            Group(entry, 1, ()).remove()
