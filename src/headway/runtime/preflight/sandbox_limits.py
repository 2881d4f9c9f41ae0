"""What this machine has against what so many sandboxes may take of it at their limits, one limit a finding.

Nothing here starts a sandbox or asks a service: `headway train` looks at it by itself.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.storage import free_bytes, size
from headway.runtime.preflight.findings import Finding, failed, warning
from headway.runtime.preflight.machine import memory_bytes, processes_free
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.containers import memory_mb
from headway.sandbox.preflight import read_sysctl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.sandbox.settings import SandboxSettings

_FILES_EACH = 10  # pipes and process handles of a running command, in its environment worker
_FILES_BESIDE = 64
_PROCESSES_BESIDE = 4  # of a sandbox, beside the model's
_NAMESPACES_EACH = 3
_KINDS = ("user", "pid", "mnt", "net", "ipc", "uts")
_ELSEWHERE: tuple[str, ...] = ("modal",)  # providers that take nothing of this machine
_MIB = 1 << 20


def bytes_each(settings: SandboxSettings) -> int:
    """Return the memory that one sandbox takes at its limits: its programs, and what it keeps in memory."""
    if settings.provider in ("podman", "docker"):
        return memory_mb(settings) * _MIB
    kept = settings.tmpfs_mb + (settings.work_mb if settings.provider == "local" else 0)
    return (settings.memory_mb + kept) * _MIB


def taken(live: int, settings: SandboxSettings) -> str:
    """Return what so many take of this machine, to go on a sentence with; "" for those elsewhere."""
    provider: str = settings.provider
    if provider in _ELSEWHERE:
        return ""
    return f"; at their limits {live} take {size(live * bytes_each(settings))} of memory"


def limits(live: int, settings: SandboxSettings) -> Iterator[Finding]:
    """Yield what does not suffice for `live` sandboxes at once."""
    provider: str = settings.provider
    yield from _open_files(live)
    if provider in _ELSEWHERE:
        return
    yield from _processes(live, settings.max_processes)
    yield from _namespaces(live)
    yield from _memory(live, settings)
    if provider == "bubblewrap":
        yield from _disk(live, settings)


def _open_files(live: int) -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_BESIDE + live * _FILES_EACH
    if files != resource.RLIM_INFINITY and files < needed:
        yield from failed(
            SandboxUnavailableError(
                f"{live} sandboxes need {needed} open files in one process, and the limit is {files}",
                remedy=f"Run `ulimit -n {needed}` before, or lower sandbox.max_live",
                key="sandbox.max_live",
            )
        )


def _processes(live: int, max_processes: int) -> Iterator[Finding]:
    needed = live * (max_processes + _PROCESSES_BESIDE)
    what = f"{live} sandboxes may have {needed} processes"
    lower = "or lower sandbox.max_live or sandbox.max_processes"
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        yield warning(
            f"{what}, and the limit of this user is {allowed}",
            f"Run `ulimit -u {needed}` before, {lower}",
            key="sandbox.max_live",
        )
    free, said = processes_free()
    if free is not None and free < needed:
        yield warning(
            f"{what}, and {said} leaves room for {free}",
            f"Raise {said} by {needed - free}, {lower}",
            key="sandbox.max_live",
        )


def _namespaces(live: int) -> Iterator[Finding]:
    for kind in _KINDS:
        needed = live * (_NAMESPACES_EACH if kind == "user" else 1)
        allowed = read_sysctl(f"user/max_{kind}_namespaces")
        if allowed is not None and 0 < int(allowed) < needed:
            yield warning(
                f"{live} sandboxes need {needed} {kind} namespaces, and the kernel allows {allowed}",
                f"Run `sudo sysctl -w user.max_{kind}_namespaces={needed}`, or lower sandbox.max_live",
                key="sandbox.max_live",
            )


def _memory(live: int, settings: SandboxSettings) -> Iterator[Finding]:
    _, free = memory_bytes()
    each = bytes_each(settings)
    if live * each > free:
        yield warning(
            f"{live} sandboxes take {size(live * each)} of memory at their limits ({size(each)} each), and "
            f"{size(free)} are free",
            f"Use sandbox.max_live = {max(2, free // each)}, or lower sandbox.memory_mb, sandbox.work_mb or "
            "sandbox.tmpfs_mb",
            key="sandbox.max_live",
        )


def _disk(live: int, settings: SandboxSettings) -> Iterator[Finding]:
    try:
        folder = BubblewrapProvider(settings).root()
    except SandboxError:  # the check that runs a command says so
        return
    needed, free = live * settings.work_mb * _MIB, free_bytes(folder)
    if needed > free:
        yield warning(
            f"the work folders of {live} sandboxes take {size(needed)} at their limits, and {size(free)} are "
            f"free in {folder}",
            "Choose another disk with sandbox.directory=FOLDER, or lower sandbox.max_live or sandbox.work_mb",
            key="sandbox.directory",
        )
