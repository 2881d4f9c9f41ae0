"""What the sandboxes of packages' tests need beyond the defaults."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.sandbox.settings import SandboxSettings


def sandbox_settings(settings: SandboxSettings, num_live: int, image: str = "") -> SandboxSettings:
    """Return settings with which a package's tests have room enough."""
    return replace(
        settings,
        image=image,
        wall_s=60.0,
        cpu_s=300,
        memory_mb=1024,
        max_processes=64,
        max_open_files=256,
        max_files=4000,
        work_mb=64,
        max_live=max(2, 2 * num_live),
    )
