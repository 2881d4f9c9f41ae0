"""Settings of the sandbox, `[sandbox]` in a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Limits of one sandbox, and how many may live at once."""

    provider: Literal["bubblewrap", "local"] = setting(
        "bubblewrap",
        "What makes sandboxes: bubblewrap, a process tree a command; or local, Headway's own helper in C, "
        "faster and with more limits (docs/sandboxes.md).",
    )
    preload_python: bool = setting(
        True,
        "Whether Python snippets are forked from an interpreter that has started; of provider local.",
    )
    image: str = setting(
        "",
        "What every sandbox begins with: a folder or a tar archive, whose content is in /work, or a "
        "requirements file (*.txt), whose packages its Python has; empty for nothing.",
    )
    wall_s: float = setting(
        5.0, "Wall-clock seconds that one command may run; its start does not count.", gt=0
    )
    cpu_s: int = setting(5, "CPU seconds that one process of a command may use.", ge=1)
    memory_mb: int = setting(256, "Address space of one process, MiB.", ge=32)
    cgroups: Literal["auto", "all", "off"] = setting(
        "auto",
        "Whether cgroups limit the whole sandbox's memory and share of the CPU where this process may make "
        "them: auto, version 2; all, version 1 too, which costs each start some 10 ms. Of provider local.",
    )
    cpu_weight: int = setting(
        100, "A sandbox's share of a busy CPU against other cgroups, which have 100.", ge=1, le=10000
    )
    max_processes: int = setting(16, "Processes and threads that live at once in a sandbox.", ge=4)
    max_open_files: int = setting(64, "Open files of one process.", ge=16)
    max_files: int = setting(1000, "Files and folders in a sandbox's work folder.", ge=1)
    work_mb: int = setting(
        32, "Bytes in a sandbox's work folder, MiB; one file may not exceed it either.", ge=1
    )
    tmpfs_mb: int = setting(32, "Size of /tmp, MiB; it is empty again at each command.", ge=1)
    output_bytes: int = setting(
        65536, "Bytes kept of each of a command's stdout and stderr; the rest is cut.", ge=1024
    )
    start_timeout_s: float = setting(
        30.0, "Seconds in which a sandbox must be ready before it counts as an infrastructure failure.", gt=0
    )
    max_live: int = setting(16, "Sandboxes that exist at once, those of verifiers included.", ge=2)
    max_starts_per_s: float = setting(
        0.0,
        "Sandboxes started in a second, averaged over a second; 0 for no limit. For providers that limit it.",
        ge=0,
    )
    directory: str = setting(
        "", "Folder for the sandboxes' work folders; empty for one of your own under the temporary folder."
    )
