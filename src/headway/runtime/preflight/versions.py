"""Versions of what the config uses, and the machine's accelerator."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.requirements import Requirement

from headway.core.errors import UserError
from headway.models.fetch import FETCHABLE
from headway.runtime.preflight.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from headway.config.compose import Config
    from headway.runtime.preflight.subject import Subject

_NVIDIA_S = 10.0


def _is_hub_model(config: Config) -> bool:
    path = config.model.path
    return path not in FETCHABLE and not Path(path).expanduser().exists()


_USED: dict[str, Callable[[Config], bool]] = {
    "peft": lambda c: not c.trainer.full,
    "gguf": lambda c: c.model.path.endswith(".gguf"),
    "huggingface_hub": _is_hub_model,
    "tensorboard": lambda c: bool(getattr(c.telemetry, "tensorboard", False)),
}
"""Packages that only some configs use. Others that Headway requires are always used; extras are not."""


def packages(subject: Subject) -> Iterator[Finding]:
    """What the config uses is installed, in a version that Headway's own metadata allows."""
    try:
        declared = [Requirement(line) for line in requires("headway") or []]
    except PackageNotFoundError:
        yield ok("Headway runs from its source and is not installed: no ranges to compare versions with")
        return
    findings: list[Finding] = []
    found: list[str] = []
    for requirement in {entry.name: entry for entry in reversed(declared)}.values():
        if not _is_used(requirement, subject.config):
            continue
        installed = _installed(requirement.name)
        if installed is not None and requirement.specifier.contains(installed, prereleases=True):
            found.append(f"{requirement.name} {installed}")
            continue
        findings += failed(
            UserError(
                f"{requirement.name} must be {requirement.specifier}, which this config uses",
                value=installed or "not installed",
                remedy=f"Run: pip install '{requirement.name}{requirement.specifier}'",
            )
        )
    yield from findings
    if not findings:
        named = [
            each
            for each in sorted(found)
            if each.split()[0] in ("torch", "transformers", "peft", "tokenizers")
        ]
        yield ok(f"{', '.join(named)} and {len(found) - len(named)} more are in their ranges")


def _is_used(requirement: Requirement, config: Config) -> bool:
    used = _USED.get(requirement.name)
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        return used is None or used(config)
    return used is not None and used(config)  # of an extra


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def device(_: Subject) -> Iterator[Finding]:
    """Which accelerators there are; this version computes on the CPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        yield ok("no GPU: CPU")
        return
    asked = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_NVIDIA_S)
        said, code = done.stdout.strip() or done.stderr.strip(), done.returncode
    except (OSError, subprocess.TimeoutExpired) as error:
        said, code = str(error), -1
    if code:
        yield warning(
            f"the GPU's driver does not answer: {said.splitlines()[0] if said else f'exit code {code}'}",
            "A run uses the CPU and is not affected; mend the driver when you want the GPU for other work",
        )
        return
    first = [part.strip() for part in said.splitlines()[0].split(",")]
    name, driver, memory = [*first, "", "", ""][:3]
    number = len(said.splitlines())
    yield ok(
        f"{number} GPU{'s'[: number > 1]} ({name}, {memory}, driver {driver}), not used: this version "
        "computes on the CPU, and no optional kernels with it"
    )
