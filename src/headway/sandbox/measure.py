"""How fast a provider is here: making a sandbox, its first output, later ones, its end, and the rate.

Consumes nothing; each call returns when its time is over. What is measured takes turns with a plain
subprocess, so that a busy machine slows both.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.clock import stopwatch
from headway.core.errors import SandboxError
from headway.core.protocols import ExecLimits

if TYPE_CHECKING:
    from headway.sandbox.pool import PooledProvider

_ECHO = ("/bin/echo", "x")
AT_ONCE = 8  # for the rate
_LIMITS = ExecLimits(wall_s=30.0)


@dataclass(slots=True)
class Measured:
    """Times in milliseconds, and the rate of creation."""

    create_ms: list[float] = field(default_factory=list[float])  # until it can run a command
    first_ms: list[float] = field(default_factory=list[float])  # its first command
    exec_ms: list[float] = field(default_factory=list[float])  # the next one
    destroy_ms: list[float] = field(default_factory=list[float])
    plain_ms: list[float] = field(default_factory=list[float])  # a subprocess without sandbox
    creates_per_s: float = 0.0  # made, used once and ended, several at once

    def summary(self) -> dict[str, float]:
        """Return medians and 99th percentiles, ms, and the rate."""
        found: dict[str, float] = {}
        for name in ("create_ms", "first_ms", "exec_ms", "destroy_ms", "plain_ms"):
            times: list[float] = sorted(getattr(self, name))
            found[f"{name}_p50"] = statistics.median(times)
            found[f"{name}_p99"] = times[min(len(times) - 1, int(0.99 * len(times)))]
        return found | {"creates_per_s": self.creates_per_s, "rounds": float(len(self.create_ms))}


async def measure(pool: PooledProvider, seconds: float) -> Measured:
    """Make, use and end sandboxes of a pool that keeps none ready for about `seconds`.

    Raises SandboxError when one fails.
    """
    await _once(pool, "first", Measured())  # whatever is built or started once
    measured = Measured()
    began, number = stopwatch(), 0
    while number < 3 or stopwatch() - began < seconds * 2 / 3:
        await _once(pool, f"turn-{number}", measured)
        measured.plain_ms.append(await _timed_plain())
        number += 1
    began, made = stopwatch(), 0

    async def maker(which: int) -> None:
        nonlocal made
        while stopwatch() - began < seconds / 3:
            await _once(pool, f"rate-{which}-{made}", Measured())
            made += 1

    async with asyncio.TaskGroup() as group:
        for which in range(AT_ONCE):
            group.create_task(maker(which))
    measured.creates_per_s = made / (stopwatch() - began)
    return measured


async def _once(pool: PooledProvider, sandbox_id: str, measured: Measured) -> None:
    at = [stopwatch()]
    sandbox = await pool.create(sandbox_id, {"run": pool.run_id})
    at.append(stopwatch())
    try:
        for _ in range(2):
            result = await sandbox.exec(_ECHO, limits=_LIMITS)
            at.append(stopwatch())
            if result.stdout != "x\n":
                raise SandboxError(f"echo ended with {result.cause}: {result.stderr.strip()[:200]}")
    finally:
        at.append(stopwatch())
        await sandbox.terminate()
    times = (measured.create_ms, measured.first_ms, measured.exec_ms)
    for values, start, stop in zip(times, at, at[1:], strict=False):
        values.append((stop - start) * 1e3)
    measured.destroy_ms.append((stopwatch() - at[-1]) * 1e3)


async def _timed_plain() -> float:
    began = stopwatch()
    await asyncio.to_thread(subprocess.run, _ECHO, capture_output=True, check=True, env={})
    return (stopwatch() - began) * 1e3
