"""Sandboxes: time to first output against a plain subprocess and plain bubblewrap, and many live at once.

Requests of a program in a sandbox to a handler of the host, against the same program and handler over plain
loopback (`--only serving` measures nothing else, and keeps nothing).
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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from keep import keep

from headway.core.protocols import ExecLimits
from headway.sandbox import command_line
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.layout import find_bwrap, interpreter
from headway.sandbox.local import LocalProvider, LocalSandbox
from headway.sandbox.serving import Service, Services, listen
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.wire import Wire

if TYPE_CHECKING:
    from headway.sandbox.machine import Machine, Output

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


# A request and its answer over one connection, many times; then each over one of its own. Microseconds.
CLIENT = """
import socket, statistics, sys, time
def ask(server):
    server.sendall(b'x' * 99 + b'\\n'); assert len(server.recv(200)) == 100
def new():
    server = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return server
def timed(work, count):
    times = []
    for _ in range(count):
        began = time.perf_counter(); work(); times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6
kept = new()
ask(kept)
print(timed(lambda: ask(kept), 500), timed(lambda: ask(new()), 40))
"""


class _Here:
    """A machine whose programs run here: relay.py without a container or a network around it."""

    async def call(
        self, argv: Sequence[str], feed: AsyncIterator[bytes], out: Output, err: Output, *, own: bool = False
    ) -> int:
        return await command_line.run([interpreter(), *argv[1:]], feed, out, err)


async def serving(rounds: int) -> dict[str, float]:
    """Return medians in us of a request, kept and with a new connection, and ratios to plain loopback."""
    settings = SandboxSettings(max_live=64, wall_s=30)
    local, old = LocalProvider(settings), BubblewrapProvider(settings)
    sandboxes = {"local": await local.create("serve", {}), "bubblewrap": await old.create("serve", {})}
    program = ["python3", "-I", "-S", "-c", CLIENT]
    times: dict[str, list[float]] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)

    async def plainly(service: Service) -> None:
        service.open(listen(0))

    async def by_relay(service: Service) -> None:
        await Wire(service, cast("Machine", _Here())).begin(20)

    def took(name: str, said: str) -> None:
        for what, value in zip(("kept", "new"), said.split(), strict=True):
            times.setdefault(f"{name}_{what}", []).append(float(value))

    for _ in range(rounds):
        for name, begin in (("plain", plainly), ("relay", by_relay)):
            async with Services().serve(0, answer, 64, begin) as port:
                argv = [interpreter(), *program[1:], str(port)]
                done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, check=True, env={})
                took(name, done.stdout.decode())
        for name, sandbox in sandboxes.items():
            times.setdefault(f"{name}_exec", []).append(
                await _timed(lambda s=sandbox: s.exec(["true"])) * 1e3
            )
            async with sandbox.serve(0, answer) as port:
                took(name, (await sandbox.exec([*program, str(port)])).stdout)
                times.setdefault(f"{name}_served_exec", []).append(
                    await _timed(lambda s=sandbox: s.exec(["true"])) * 1e3
                )
    for sandbox in sandboxes.values():
        await sandbox.terminate()
    local.close()
    found = {f"{name}_us": statistics.median(values) for name, values in times.items()}
    return found | {
        f"{name}_over_plain": statistics.median(
            a / b for a, b in zip(values, times[f"plain_{name.split('_')[1]}"], strict=True)
        )
        for name, values in times.items()
        if not name.endswith("_exec") and not name.startswith("plain")
    }


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
    parser.add_argument("--only", choices=["serving"])
    given = parser.parse_args()
    if given.only:
        print(json.dumps(await serving(given.rounds), indent=1))
        return
    result: dict[str, object] = {"latency": await latencies(given.rounds)}
    result["serving"] = await serving(given.rounds)
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
