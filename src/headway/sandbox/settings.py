"""Settings of the sandbox, `[sandbox]` in a config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.settings import Problem, setting

ANSWER_S = 60.0  # for a machine elsewhere to answer a call that is not the model's


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Limits of one sandbox, and how many may live at once."""

    provider: Literal["bubblewrap", "local", "podman", "docker", "modal", "unsafe-local"] = setting(
        "bubblewrap",
        "What makes sandboxes: bubblewrap, a process tree a command; local, Headway's own helper in C, "
        "faster and with more limits; podman or docker, containers; modal, machines of that service; or "
        "unsafe-local, which contains nothing (docs/sandboxes.md).",
    )
    container_image: str = setting(
        "python:3.12-slim",
        "Image of the sandboxes of podman, docker and modal, with Python 3.8 or later; podman and docker "
        "pull nothing during a run.",
        pattern=r"[A-Za-z0-9][A-Za-z0-9._/:@-]*",
        form="the name of an image",
    )
    cpus: float = setting(
        1.0, "CPUs that a sandbox of podman, docker or modal may use; others share the machine.", gt=0
    )
    modal_app: str = setting(
        "headway", "Name of the app that sandboxes of modal belong to; made when it is not there."
    )
    modal_lifetime_s: int = setting(
        3600,
        "Seconds after which a machine of modal ends by itself; longer than any rollout takes.",
        ge=60,
        le=86400,
    )
    allow_unsafe: bool = setting(
        False, "Whether programs may run uncontained, as you; what provider unsafe-local needs."
    )
    preload_python: bool = setting(
        True,
        "Whether Python snippets are forked from an interpreter that has started; of provider local.",
    )
    image: str = setting(
        "",
        "What every sandbox begins with: a folder or a tar archive, whose content is in /work, or a "
        "requirements file (*.txt), whose packages its Python has; relative to the config file. Empty for "
        "nothing.",
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
    max_starting: int = setting(
        16, "Sandboxes that are being started at once; the others wait in line.", ge=1
    )
    warm: int = setting(
        8,
        "Most sandboxes that are kept ready for the next use, within max_live; as many as were wanted at "
        "once lately. Of local, podman and docker: bubblewrap and unsafe-local have nothing to make ahead, "
        "and machines of modal cost money while they wait.",
        ge=0,
    )
    directory: str = setting(
        "", "Folder for the sandboxes' work folders; empty for one of your own under the temporary folder."
    )

    @property
    def longest_start_s(self) -> float:
        """Seconds that a start may take before it counts as failed, all that it waits for added up."""
        match self.provider:
            case "local":  # its helper, which may have ended; the sandbox; its first process
                return 3 * self.start_timeout_s
            case "podman" | "docker" | "modal":  # the machine; its folders; what they begin with
                return 2 * self.start_timeout_s + (ANSWER_S if self.image else 0.0)
            case _:
                return self.start_timeout_s

    def problems(self) -> list[Problem]:
        """Return the rules between these settings that do not hold."""
        if self.provider == "unsafe-local" and not self.allow_unsafe:
            return [
                Problem(
                    "provider",
                    self.provider,
                    "a provider that contains nothing must be allowed by sandbox.allow_unsafe",
                    "Choose another provider, or set sandbox.allow_unsafe = true on a machine that holds "
                    "nothing of value",
                )
            ]
        return []
