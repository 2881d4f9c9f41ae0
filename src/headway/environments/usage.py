"""What a sandbox used, as far as its provider tells: the commands' own numbers, and those of its end.

A provider need not measure. `ExecResult.usage` and `Sandbox.stats()` may be absent, and any number of them
None; nothing is invented for what is not told.
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
        cpu_s, memory_bytes = _number(usage, "cpu_s"), _whole(usage, "memory_bytes", "max_rss_bytes")
        if cpu_s is not None:
            self._cpu_s = (self._cpu_s or 0.0) + cpu_s
        if memory_bytes is not None:
            self._memory_bytes = max(self._memory_bytes or 0, memory_bytes)
        return cpu_s, memory_bytes

    async def at_its_end(self, sandbox: Sandbox) -> SandboxUse | None:
        """Ask a sandbox that is about to end; None when neither it nor its commands told anything."""
        told = await _stats(sandbox)
        cpu_s, memory_bytes = _number(told, "cpu_s"), _whole(told, "peak_memory_bytes", "memory_bytes")
        use = SandboxUse(
            cpu_s=self._cpu_s if cpu_s is None else cpu_s,
            memory_bytes=_most(self._memory_bytes, memory_bytes),
            disk_bytes=_whole(told, "disk_bytes"),
            num_files=_whole(told, "num_files"),
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


def _number(told: object, *names: str) -> float | None:
    for name in names:
        value: object = getattr(told, name, None)
        if isinstance(value, (int, float)):
            return float(value)
    return None


def _whole(told: object, *names: str) -> int | None:
    value = _number(told, *names)
    return None if value is None else int(value)


def _most(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
