"""Sandboxes: time to first output against a plain subprocess and plain bubblewrap, and many live at once.

And states: snapshots of a sandbox with nothing and with 100 of 500 files changed, restore, fork, reset.

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
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from keep import keep

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


MAKE = (
    "import os\n"
    "for n in range(500):\n"
    "    os.makedirs(f'd{n // 25}', exist_ok=True)\n"
    "    with open(f'd{n // 25}/f{n}', 'wb') as f: f.write(os.urandom(36 << 10))\n"
)
CHANGE = (
    "import os, random\n"
    "for n in random.sample(range(500), 100):\n"
    "    with open(f'd{n // 25}/f{n}', 'wb') as f: f.write(os.urandom(16 << 10))\n"
)


async def states(rounds: int, image: str = "") -> dict[str, float]:
    """Return medians, ms, of snapshots, restores and forks of 500 files, 18 MB, of which 100 change.

    With an image the 500 files are its own, and what a snapshot holds is what has changed since.
    """
    provider = LocalProvider(SandboxSettings(image=image))
    sandbox = await provider.create("states", {})
    await sandbox.prepare()
    if not image:
        assert (await sandbox.exec(["python3", "-I", "-c", MAKE])).rc == 0
    times: dict[str, list[float]] = {}

    async def timed(name: str, work: Callable[[], Awaitable[None]]) -> None:
        times.setdefault(name, []).append(await _timed(work))

    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        digest = ""

        async def take(number: int) -> None:
            nonlocal digest
            digest = await provider.snapshot("states", store, {"turn": str(number)})

        made: list[LocalSandbox] = []

        async def restore() -> None:
            made.append(await provider.restore("restored", {}, store, digest))

        async def fork() -> None:
            made.append(await provider.fork("states", "forked", {}))

        await timed("snapshot.first_ms", lambda: take(-1))
        for number in range(rounds):
            assert (await sandbox.exec(["python3", "-I", "-c", CHANGE])).rc == 0
            await asyncio.sleep(0.1)  # a file that has just changed is read once more
            before = digest
            await timed("snapshot.dirty_ms", lambda number=number: take(2 * number))
            await timed("snapshot.unchanged_ms", lambda number=number: take(2 * number + 1))
            await provider.discard(store, before)
            await timed("restore_ms", restore)
            await timed("fork_ms", fork)
            while made:
                await made.pop().terminate()
            await timed("reset_ms", lambda: provider.reset("states", store, digest))
    await sandbox.terminate()
    provider.close()
    return {name: statistics.median(values) for name, values in times.items()}


def image_of_files(folder: Path) -> str:
    """Make the 500 files of `states` as an image."""
    folder.mkdir()
    subprocess.run([interpreter(), "-c", MAKE], cwd=folder, check=True)
    return str(folder)


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--live", type=int, default=1000)
    given = parser.parse_args()
    result: dict[str, object] = {"latency": await latencies(given.rounds)}
    result["state"] = await states(given.rounds)
    with tempfile.TemporaryDirectory() as folder:
        result["state_over_image"] = await states(given.rounds, image_of_files(Path(folder) / "image"))
    for name, preload in (("live_preloaded", True), ("live_plain", False)):
        result[name] = await live(given.live, preload=preload)
    for name, part in result.items():
        print(name, json.dumps(part, indent=1), file=sys.stderr)
    keep("sandbox", result)


if __name__ == "__main__":
    asyncio.run(main())
