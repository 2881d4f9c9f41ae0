"""Many sandboxes come and go, hostile ones among them, and nothing is left of them: memory, processes, files.

The small soak runs with all tests; the large one (1,000 live, 20,000 made) is slow and prints what it saw.
HEADWAY_SOAK_CREATES makes fewer in it.
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headway.core.protocols import ExecLimits
from headway.sandbox.local import LocalProvider
from headway.sandbox.settings import SandboxSettings
from tests.contract.sandbox_contract import PYTHON, running

MARKER = "94712345"
WORKERS = 4  # that make and end sandboxes at once
NUM_OTHERS = 5  # sandboxes whose commands are timed while the rest come and go
FILES_EACH = 6  # open files of a live sandbox in this process, at most

# (program, causes that are right): each in one of so many sandboxes.
HOSTILE = {
    13: ("import os, time\nwhile 1:\n  if os.fork() == 0: time.sleep(60)", {"pids"}),
    29: ("for i in range(9): open(f'f{i}', 'wb').write(b'x' * (1 << 20))", {"disk"}),
    31: (f"import os\nif os.fork() == 0: os.execv('/bin/sleep', ['sleep', '{MARKER}'])", {"exit"}),
    37: ("x = bytearray(1 << 30)", {"oom"}),
    41: ("for i in range(10**5): open(str(i), 'w').close()", {"inodes"}),
    43: ("while 1: print('x' * 65536)", {"output"}),
    47: ("import os, signal; os.kill(-1, 9)", {"exit", "killed"}),
}


@dataclass
class Seen:
    """What a soak saw."""

    causes: Counter = field(default_factory=Counter)
    wrong: list = field(default_factory=list)
    others_s: list = field(default_factory=list)  # seconds of each command of the others
    memory_kb: list = field(default_factory=list)  # (this process, its helpers) as sandboxes were made
    most_live: int = 0


def children(pid):
    """Return the processes below `pid`."""
    found, line = set(), [pid]
    while line:
        for task in Path(f"/proc/{line.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                below = [int(child) for child in task.read_text().split()]
                found.update(below)
                line += below
    return found


def resident_kb(pid):
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def footprint(helpers):
    """Return what could leak, as counts: processes, open files, mounts, files, control groups."""
    counts = {"processes": len(children(os.getpid()))}
    for name, pids in (("this process", [os.getpid()]), ("the helpers", helpers)):
        for what in ("fd", "mountinfo"):
            total = 0
            for pid in pids:
                with contextlib.suppress(OSError):
                    place = Path(f"/proc/{pid}/{what}")
                    total += len(os.listdir(place)) if what == "fd" else place.read_text().count("\n")
            counts[f"{what} of {name}"] = total
    counts["temporary folders"] = len(
        [name for name in os.listdir(tempfile.gettempdir()) if "headway" in name]
    )
    counts["control groups"] = sum(
        "headway" in folder for at in Path("/sys/fs/cgroup").glob("**/headway*") for folder in [at.name]
    )
    return counts


async def settled(helpers, wanted):
    """Return what is left when it is no more than `wanted`, or after some seconds."""
    began = time.monotonic()
    while True:
        found = footprint(helpers)
        more = {name: (wanted[name], count) for name, count in found.items() if count > wanted[name]}
        if not more or time.monotonic() - began > 20:
            return more
        await asyncio.sleep(0.1)


async def soak(provider, known, *, live, creates, limits):
    """Keep `live` sandboxes while `creates` come and go; return what was seen, and what is left."""
    seen, queue = Seen(), deque()
    label = {"run": "soak"}

    async def use(number):
        sandbox = await provider.create(f"s{number}", label)
        every = next((each for each in HOSTILE if number % each == each - 1), None)
        if every is None:
            result = await sandbox.exec(["/bin/echo", str(number)], limits=limits)
            right = (result.rc, result.stdout, result.cause) == (0, f"{number}\n", "exit")
        else:
            program, causes = HOSTILE[every]
            result = await sandbox.exec([*PYTHON, program], limits=limits)
            right = result.cause in causes
        seen.causes[result.cause] += 1
        if not right:
            seen.wrong.append((number, result))
        queue.append(sandbox)
        seen.most_live = max(seen.most_live, len(queue))

    # What a first sandbox leaves for good (caches, a helper) is no leak.
    for number in range(3 * WORKERS):
        await use(-1 - number)
    while queue:
        await queue.popleft().terminate()
    helpers = sorted(children(os.getpid()) - known)
    before = footprint(helpers)

    numbers = iter(range(creates))
    over = asyncio.Event()

    async def work():
        for number in numbers:
            if len(queue) >= live:
                await queue.popleft().terminate()
            await use(number)
            if number % max(1, creates // 20) == 0:
                seen.memory_kb.append((resident_kb(os.getpid()), sum(map(resident_kb, helpers))))

    others = [await provider.create(f"other{number}", label) for number in range(NUM_OTHERS)]

    async def watch():
        turn = 0
        while not over.is_set():
            turn += 1
            began = time.perf_counter()
            result = await others[turn % NUM_OTHERS].exec(["/bin/echo", "other"], limits=limits)
            seen.others_s.append(time.perf_counter() - began)
            if (result.rc, result.stdout) != (0, "other\n"):
                seen.wrong.append((f"other {turn}", result))
            await asyncio.sleep(0.02)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        async with asyncio.TaskGroup() as workers:
            for _ in range(WORKERS):
                workers.create_task(work())
        over.set()
    made_s = time.perf_counter() - began
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for sandbox in (*queue, *others):
            group.create_task(sandbox.terminate())
    ended_s = time.perf_counter() - began
    assert await provider.list({}) == []
    left = await settled(helpers, before)
    seen.memory_kb.append((resident_kb(os.getpid()), sum(map(resident_kb, helpers))))
    return seen, left, made_s, ended_s


def told(seen, creates, made_s, ended_s):
    ordered = sorted(seen.others_s)
    return {
        "creates": creates,
        "creates_per_s": creates / made_s,
        "most_live": seen.most_live,
        "end_of_all_s": ended_s,
        "causes": dict(seen.causes),
        "others_ms": {
            "n": len(ordered),
            "p50": 1000 * ordered[len(ordered) // 2],
            "p99": 1000 * ordered[int(0.99 * (len(ordered) - 1))],
            "max": 1000 * ordered[-1],
        },
        "memory_mb_first_to_last": [[round(kb / 1024, 1) for kb in pair] for pair in seen.memory_kb],
    }


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files that nobody else fills meanwhile."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


async def soaked(live, creates, wall_s):
    """Soak a provider of its own; return what was seen, what is left, and the numbers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = (live + NUM_OTHERS) * FILES_EACH + 500
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"{live} live sandboxes need {needed} open files, and the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    settings = SandboxSettings(
        max_live=live + NUM_OTHERS + WORKERS, wall_s=wall_s, work_mb=2, max_files=50, tmpfs_mb=1,
        start_timeout_s=120,
    )  # fmt: skip
    known = children(os.getpid())  # of other tests
    provider = LocalProvider(settings)
    try:
        seen, left, made_s, ended_s = await soak(
            provider, known, live=live, creates=creates, limits=ExecLimits(wall_s=wall_s, output_bytes=4096)
        )
    finally:
        provider.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert children(os.getpid()) <= known
    assert running(MARKER) == []
    return seen, left, told(seen, creates, made_s, ended_s)


def growth_mb(seen):
    """Return how much this process and its helpers grew after the sandboxes were all live once, MiB."""
    settled_at = len(seen.memory_kb) // 4
    first, last = seen.memory_kb[settled_at], seen.memory_kb[-1]
    return [(end - start) / 1024 for start, end in zip(first, last, strict=True)]


async def test_sandboxes_come_and_go_and_nothing_is_left():
    seen, left, numbers = await soaked(live=60, creates=300, wall_s=60)
    assert seen.wrong == []
    assert left == {}
    assert seen.most_live >= 60
    assert sum(seen.causes.values()) == 300 + 3 * WORKERS
    assert {"exit", "pids", "disk", "oom", "inodes", "output"} <= set(seen.causes)
    assert len(seen.others_s) > 5
    assert max(growth_mb(seen)) < 24, numbers["memory_mb_first_to_last"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_a_thousand_live_sandboxes_twenty_thousand_made():
    creates = int(os.environ.get("HEADWAY_SOAK_CREATES", "20000"))
    seen, left, numbers = await soaked(live=min(1000, creates), creates=creates, wall_s=120)
    print(json.dumps(numbers), file=sys.stderr)
    assert seen.wrong == []
    assert left == {}
    assert max(growth_mb(seen)) < 32, numbers["memory_mb_first_to_last"]
    assert numbers["others_ms"]["max"] < 10_000
