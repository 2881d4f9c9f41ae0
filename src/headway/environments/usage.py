"""What a sandbox used, as far as its provider tells: the commands' own numbers, and those of its end.

A provider need not measure: 0 in `ExecResult.usage` and `Sandbox.stats()` is how it says that it cannot tell
(its guarantee `usage` says so before); nothing is invented for what is not told.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headway.core.errors import SandboxError
from headway.core.protocols import SandboxStats
from headway.core.records import SandboxUse

if TYPE_CHECKING:
    from headway.core.protocols import ExecResult, Sandbox

_TOLD_WITHIN_S = 1.0  # a sandbox that is asked at its end and says nothing ends untold


@runtime_checkable
class _Lazy(Protocol):
    async def prepare(self) -> None: ...


class UseSoFar:
    """Sums up the commands of one sandbox."""

    def __init__(self) -> None:
        self._cpu_s: float | None = None
        self._memory_bytes: int | None = None

    def add(self, result: ExecResult) -> tuple[float | None, int | None]:
        """Take a command in; return its CPU seconds and the most memory that it held, bytes."""
        cpu_s, memory_bytes = result.usage.cpu_s or None, result.usage.max_memory_bytes or None
        if cpu_s is not None:
            self._cpu_s = (self._cpu_s or 0.0) + cpu_s
        if memory_bytes is not None:
            self._memory_bytes = max(self._memory_bytes or 0, memory_bytes)
        return cpu_s, memory_bytes

    async def at_its_end(self, sandbox: Sandbox) -> SandboxUse | None:
        """Ask a sandbox that is about to end; None when neither it nor its commands told anything."""
        told = await _stats(sandbox)
        use = SandboxUse(
            cpu_s=told.cpu_s or self._cpu_s,
            memory_bytes=self._memory_bytes,  # most at once: what it holds at its end says less
            disk_bytes=told.disk_bytes or None,
            num_files=told.num_files or None,
        )
        return None if use == SandboxUse() else use


async def prepared(sandbox: Sandbox) -> None:
    """Let a sandbox that is made lazily be made now, so that its start is no part of a command's time."""
    if isinstance(sandbox, _Lazy):
        await sandbox.prepare()


async def _stats(sandbox: Sandbox) -> SandboxStats:
    try:
        async with asyncio.timeout(_TOLD_WITHIN_S):
            return await sandbox.stats()
    except (SandboxError, OSError):  # TimeoutError is one; it ends all the same, the numbers are for people
        return SandboxStats()
