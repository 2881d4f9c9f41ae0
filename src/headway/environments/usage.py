"""What a sandbox used, as far as its provider tells: the commands' own numbers, and those of its end.

A provider need not measure. `ExecResult.usage` and `Sandbox.stats()` may be absent, or hold nothing but 0,
which is how a provider says that it cannot tell; nothing is invented for what is not told.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from headway.core.errors import SandboxError
from headway.core.records import SandboxUse

if TYPE_CHECKING:
    from headway.core.protocols import ExecResult, Sandbox

_TOLD_WITHIN_S = 1.0  # a sandbox that is asked at its end and says nothing ends untold


class UseSoFar:
    """Sums up the commands of one sandbox."""

    def __init__(self) -> None:
        self._cpu_s: float | None = None
        self._memory_bytes: int | None = None

    def add(self, result: ExecResult) -> tuple[float | None, int | None]:
        """Take a command in; return its CPU seconds and the most memory that it held, bytes."""
        usage: object = getattr(result, "usage", None)
        cpu_s, memory_bytes = _numbers(usage, "cpu_s", "max_memory_bytes")
        if cpu_s is not None:
            self._cpu_s = (self._cpu_s or 0.0) + cpu_s
        if memory_bytes is not None:
            self._memory_bytes = max(self._memory_bytes or 0, int(memory_bytes))
        return cpu_s, None if memory_bytes is None else int(memory_bytes)

    async def at_its_end(self, sandbox: Sandbox) -> SandboxUse | None:
        """Ask a sandbox that is about to end; None when neither it nor its commands told anything."""
        told = await _stats(sandbox)
        cpu_s, disk_bytes, num_files = _numbers(told, "cpu_s", "disk_bytes", "num_files")
        use = SandboxUse(
            cpu_s=self._cpu_s if cpu_s is None else cpu_s,
            memory_bytes=self._memory_bytes,  # most at once: what it holds at its end says less
            disk_bytes=None if disk_bytes is None else int(disk_bytes),
            num_files=None if num_files is None else int(num_files),
        )
        return None if use == SandboxUse() else use


async def prepared(sandbox: Sandbox) -> None:
    """Let a sandbox that is made lazily be made now, so that its start is no part of a command's time."""
    prepare: Any = getattr(sandbox, "prepare", None)
    if prepare is not None:
        await prepare()


async def _stats(sandbox: Sandbox) -> object:
    stats: Any = getattr(sandbox, "stats", None)
    if stats is None:
        return None
    try:
        async with asyncio.timeout(_TOLD_WITHIN_S):
            told: Any = stats()
            return await told if inspect.isawaitable(told) else told
    except (SandboxError, OSError, TimeoutError):  # it ends all the same, and the numbers are for people
        return None


def _numbers(told: object, *names: str) -> list[float | None]:
    """Return these attributes, None for what is not more than 0."""
    values: list[Any] = [getattr(told, name, None) for name in names]
    return [float(value) if value else None for value in values]
