"""Sandboxes: whether this machine can make them, and as many as are asked for."""

from __future__ import annotations

import asyncio
import resource
from typing import TYPE_CHECKING

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.matching.memory import rollouts_in_flight
from headway.queue.settings import verify_places
from headway.runtime.preflight.findings import Finding, failed, ok, warning
from headway.runtime.preflight.machine import uses_sandbox
from headway.sandbox.preflight import read_sysctl
from headway.sandbox.providers import make_provider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.runtime.preflight.subject import Subject

_FILES_EACH = 10  # pipes and process handles of a running command, in its environment worker
_FILES_BESIDE = 64
_NAMESPACES_EACH = 3
_UNUSED = "no environment of this run uses one"


def quota(subject: Subject) -> Iterator[Finding]:
    """How many live at once against what rollouts want, and against the limits of this process."""
    config = subject.config
    if not uses_sandbox(config):
        yield ok(_UNUSED)
        return
    most, kept = config.sandbox.max_live, verify_places(config.sandbox.max_live)
    places, in_flight = most - kept, rollouts_in_flight(config)
    size = config.queue.group_size + config.oversampling.rollouts_extra
    findings = [*_uncontained(config.sandbox.provider), *_limits(most, config.sandbox.max_processes)]
    if places < size:
        findings.append(
            warning(
                f"{places} rollouts hold a sandbox at once ({kept} of {most} places are kept for verifiers), "
                f"so the {size} of a group wait for one another",
                f"Use sandbox.max_live = {-(-4 * size // 3)} or more",
                key="sandbox.max_live",
                value=most,
            )
        )
    yield from findings
    if not findings:
        yield ok(
            f"{places} rollouts hold a sandbox at once, of {in_flight} in flight; {kept} more places are for "
            "verifiers"
        )


def _uncontained(provider: str) -> Iterator[Finding]:
    if provider == "unsafe-local":
        yield warning(
            "sandboxes contain nothing: what the model writes runs as you, with your files, your network and "
            "your processes",
            'Use sandbox.provider = "bubblewrap" or "local" on Linux, "podman" or "docker" elsewhere',
            key="sandbox.provider",
            value=provider,
        )


def _limits(most: int, max_processes: int) -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_BESIDE + most * _FILES_EACH
    if files != resource.RLIM_INFINITY and files < needed:
        yield from failed(
            SandboxUnavailableError(
                f"{most} sandboxes need {needed} open files in one process, and the limit is {files}",
                remedy=f"Run `ulimit -n {needed}` before, or lower sandbox.max_live",
                key="sandbox.max_live",
            )
        )
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    needed = most * (max_processes + 4)
    if processes != resource.RLIM_INFINITY and processes < needed:
        yield warning(
            f"{most} sandboxes may have {needed} processes, and the limit of this user is {processes}",
            f"Run `ulimit -u {needed}` before, or lower sandbox.max_live or sandbox.max_processes",
            key="sandbox.max_live",
        )
    allowed = read_sysctl("user/max_user_namespaces")
    if allowed is not None and 0 < int(allowed) < most * _NAMESPACES_EACH:
        needed = most * _NAMESPACES_EACH
        yield warning(
            f"{most} sandboxes need {needed} user namespaces, and the kernel allows {allowed}",
            f"Run `sudo sysctl -w user.max_user_namespaces={needed}`, or lower sandbox.max_live",
            key="sandbox.max_live",
        )


def sandbox(subject: Subject) -> Iterator[Finding]:
    """Run one command in a sandbox, and say which limits this machine cannot enforce."""
    used = any(entry.needs_sandbox for entry in subject.environments.values())
    if not used:
        yield ok(_UNUSED)
        return
    try:
        guarantees = asyncio.run(make_provider(subject.config.sandbox).preflight())
    except SandboxError as error:
        yield from failed(
            SandboxUnavailableError(
                f"the sandbox must run one command: {error.rule}",
                value=error.value,
                remedy="Choose another folder with sandbox.directory=FOLDER",
                key="sandbox.directory",
            )
        )
        return
    absent = [entry for entry in guarantees if entry.level == "absent"]
    for entry in absent:
        yield warning(f"nothing here enforces the limit on {entry.name}", entry.remedy)
    if not absent:
        weak = [entry.name for entry in guarantees if entry.level == "best-effort"]
        yield ok(
            f"a command ran in it; {len(guarantees) - len(weak)} limits are enforced; only "
            f"nearly: {', '.join(weak)}"
        )
