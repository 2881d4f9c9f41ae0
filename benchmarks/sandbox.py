"""Sandboxes: time to first output against a plain subprocess and plain bubblewrap, and many live at once.

Run: make bench-sandbox. Contestants take turns, so that a busy machine slows all of them; medians in ms, and
ratios to the plain subprocess of the same round. `cold` makes the sandbox, `warm` made it ahead; both run one
command in a fresh sandbox and read its output. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from headway.core.protocols import ExecLimits
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.layout import find_bwrap, interpreter
from headway.sandbox.local import LocalProvider, LocalSandbox
from headway.sandbox.settings import SandboxSettings

PROGRAMS = {"echo": ["/bin/echo", "x"], "python": ["python3", "-I", "-c", "import json; print('x')"]}


def _plain(argv: list[str]) -> None:
    argv = [interpreter(), *argv[1:]] if argv[0] == "python3" else argv
    done = subprocess.run(argv, capture_output=True, check=True, env={})
    assert done.stdout == b"x\n"


def _bwrap(argv: list[str]) -> None:
    argv = [interpreter(), *argv[1:]] if argv[0] == "python3" else argv
    command = [
        find_bwrap().path,
        "--ro-bind",
        "/",
        "/",
        "--tmpfs",
        "/tmp",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
    ]
    command += ["--unshare-all", "--die-with-parent", *argv]
    done = subprocess.run(command, capture_output=True, check=True, env={})
    assert done.stdout == b"x\n"


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1e3


async def _first_output(sandbox: LocalSandbox, argv: list[str]) -> None:
    result = await sandbox.exec(argv, limits=ExecLimits(wall_s=30))
    assert result.stdout == "x\n", result


async def latencies(rounds: int) -> dict[str, dict[str, float]]:
    """Return medians in ms by program and contestant, and ratios to plain."""
    settings = SandboxSettings(max_live=64)
    local, old = LocalProvider(settings), BubblewrapProvider(settings)
    unused = await local.create("first", {})
    await unused.prepare()  # the helper is built and started once
    found: dict[str, dict[str, float]] = {}
    for program, argv in PROGRAMS.items():
        times: dict[str, list[float]] = {}
        for number in range(rounds):

            async def plain(argv: list[str] = argv) -> None:
                _plain(argv)

            async def bwrap(argv: list[str] = argv) -> None:
                _bwrap(argv)

            cold = await local.create(f"cold-{number}", {})
            warm = await local.create(f"warm-{number}", {})
            other = await old.create(f"old-{number}", {})
            await warm.prepare()
            contestants = {
                "plain": plain,
                "bwrap": bwrap,
                "local_cold": lambda sandbox=cold, argv=argv: _first_output(sandbox, argv),
                "local_warm": lambda sandbox=warm, argv=argv: _first_output(sandbox, argv),
                "bubblewrap_provider": lambda sandbox=other, argv=argv: _first_output(sandbox, argv),
            }
            for name, work in contestants.items():
                times.setdefault(name, []).append(await _timed(work))
            for sandbox in (cold, warm, other):
                await sandbox.terminate()
        row = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
        row |= {
            f"{name}_over_{base}": statistics.median(a / b for a, b in zip(values, times[base], strict=True))
            for name, values in times.items()
            for base in ("plain", "bwrap")
            if name not in ("plain", "bwrap")
        }
        found[program] = row
    await unused.terminate()
    local.close()
    return found


def _available_kb() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    return 0


async def live(count: int, *, preload: bool) -> dict[str, float]:
    """Make `count` sandboxes, run a command in each, and end all of them."""
    provider = LocalProvider(SandboxSettings(max_live=count + 1, preload_python=preload))
    first = await provider.create("first", {})
    await first.exec(["/bin/echo", "x"])
    before = _available_kb()
    began = time.perf_counter()
    made = [await provider.create(f"s{number}", {}) for number in range(count)]
    for sandbox in made:
        await sandbox.prepare()
    made_s = time.perf_counter() - began
    used_kb = before - _available_kb()
    times = sorted([await _timed(lambda s=s: _first_output(s, PROGRAMS["echo"])) for s in made])
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for sandbox in made:
            group.create_task(sandbox.terminate())
    ended_s = time.perf_counter() - began
    await first.terminate()
    provider.close()
    plain = [await _timed(lambda: asyncio.to_thread(_plain, PROGRAMS["echo"])) for _ in range(50)]
    return {
        "count": count,
        "creates_per_s": count / made_s,
        "creates_over_plain": count / made_s * statistics.median(plain) / 1e3,
        "kib_each": used_kb / count,
        "exec_p50_ms": times[len(times) // 2],
        "exec_p99_ms": times[int(len(times) * 0.99)],
        "teardown_s": ended_s,
    }


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--live", type=int, default=200)
    given = parser.parse_args()
    result: dict[str, object] = {"latency": await latencies(given.rounds)}
    for name, preload in (("live_preloaded", True), ("live_plain", False)):
        result[name] = await live(given.live, preload=preload)
    for name, part in result.items():
        print(name, json.dumps(part, indent=1), file=sys.stderr)
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
