"""What programs try on a sandbox's first process, its watch over memory and its maker of snippets."""

# ruff: noqa: ASYNC110, ASYNC240 - other processes are watched by looking again

import asyncio
import os
import resource
import signal
import textwrap
from pathlib import Path

import pytest

from headway.core.errors import SandboxError
from headway.core.protocols import ExecLimits
from headway.sandbox.local import LocalProvider
from headway.sandbox.settings import SandboxSettings

SNIPPET = ["python3", "-I", "-S", "-c"]
STOPPER = """
import contextlib, os
while True:
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, 19)
"""
PRELUDE = "import ctypes, os, sys, time\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@pytest.fixture
async def provider():
    provider = LocalProvider(
        SandboxSettings(memory_mb=96, max_processes=64, wall_s=20, cpu_s=60, cgroups="off")
    )
    yield provider
    provider.close()


@pytest.fixture
async def sandbox(provider):
    sandbox = await provider.create("hostile", {"run": "r"})
    yield sandbox
    await sandbox.terminate()


async def snippet(sandbox, code, *args, limits=None):
    return await sandbox.exec([*SNIPPET, PRELUDE + textwrap.dedent(code), *args], limits=limits)


# --- the watch over the memory of all processes


async def test_no_snippet_hides_from_the_watch_over_memory(sandbox):
    result = await snippet(
        sandbox,
        """
        PR_SET_DUMPABLE = 4
        print(libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), flush=True)
        for _ in range(4):
            if os.fork() == 0:
                held = b"x" * (40 << 20)
                time.sleep(60)
        time.sleep(60)
        """,
    )
    assert (result.cause, result.stdout) == ("oom", "-1 0\n")


async def test_no_process_hides_its_memory_behind_the_end_of_its_first_thread(sandbox):
    result = await snippet(
        sandbox,
        """
        import threading
        for _ in range(4):
            if os.fork() == 0:
                threading.Thread(target=time.sleep, args=[60], daemon=True).start()
                held = b"x" * (40 << 20)
                libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
            time.sleep(0.3)  # none is seen while it lives as usual, but together they hold too much
        time.sleep(60)
        """,
    )
    assert result.cause == "oom"


async def test_children_that_end_all_the_time_do_not_put_the_watch_off(sandbox):
    result = await snippet(
        sandbox,
        """
        for _ in range(4):
            if os.fork() == 0:
                time.sleep(0.3)
                held = b"x" * (40 << 20)
                time.sleep(60)
        began = time.monotonic()
        while time.monotonic() - began < 3:
            pid = os.fork()
            if pid == 0:
                if os.fork() == 0:  # the first process reaps it
                    os._exit(0)
                os._exit(0)
            os.waitpid(pid, 0)
            time.sleep(0.01)
        """,
    )
    assert result.cause == "oom"


async def test_segments_of_system_v_hold_no_memory_that_nobody_counts(sandbox):
    result = await snippet(
        sandbox,
        """
        held = 0
        for key in range(1, 64):
            if libc.shmget(key, 1 << 20, 0o1600) < 0:
                break
            held += 1
        queues = sum(libc.msgget(key, 0o1600) >= 0 for key in range(1, 64))
        semaphores = sum(250 for key in range(1, 64) if libc.semget(key, 250, 0o1600) >= 0)
        print(held <= 1, queues <= 8, semaphores <= 2000)
        """,
    )
    assert result.stdout == "True True True\n"


async def test_no_program_makes_the_host_prefer_others_when_memory_runs_out(sandbox):
    script = (
        "for pid in $$ self; do (echo 0 > /proc/$pid/oom_score_adj) 2>/dev/null && echo written; done;"
        "cat /proc/self/oom_score_adj"
    )
    assert (await sandbox.exec(["sh", "-c", script])).stdout == "500\n"
    result = await snippet(
        sandbox,
        """
        try:
            open("/proc/self/oom_score_adj", "w").write("0")
        except OSError:
            print(open("/proc/self/oom_score_adj").read(), end="")
        """,
    )
    assert result.stdout == "500\n"


# --- signals and leases


async def test_a_long_lived_program_that_stops_what_begins_cannot_stop_the_first_process(sandbox):
    await sandbox.spawn("stopper", ["python3", "-I", "-S", "-c", STOPPER])
    for _ in range(15):
        result = await sandbox.exec(["/bin/echo", "x"], limits=ExecLimits(wall_s=0.3))
        assert result.cause in ("exit", "wall")
    assert (await sandbox.poll("stopper")).running
    await sandbox.kill("stopper")
    assert (await sandbox.exec(["/bin/echo", "x"])).stdout == "x\n"


async def test_a_snippet_that_is_killed_while_it_enters_its_sandbox_is_gone(sandbox):
    await snippet(sandbox, "")
    for number in range(150):
        task = asyncio.create_task(snippet(sandbox, "time.sleep(60)"))
        await asyncio.sleep(number * 0.00002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await sandbox.intact()
    assert (await sandbox.stats()).num_processes == 0


async def test_a_snippet_that_enters_a_paused_sandbox_stands_still(sandbox):
    await snippet(sandbox, "")
    for number in range(60):
        task = asyncio.create_task(snippet(sandbox, "while 1: open('beat', 'a').write('x')"))
        await asyncio.sleep(number * 0.00005)
        await sandbox.pause()
        work = sandbox._cell.work_fd
        sizes = []
        for _ in range(2):
            sizes.append(os.stat("beat", dir_fd=work).st_size if "beat" in os.listdir(work) else 0)
            await asyncio.sleep(0.01)
        assert sizes[0] == sizes[1]
        await sandbox.resume()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_nobody_holds_a_lease_on_a_file_that_a_snapshot_reads(provider, sandbox, tmp_path):
    await sandbox.write("file", b"content")
    code = """
        import fcntl
        fd = os.open("file", os.O_RDWR)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except PermissionError:
            print("refused", flush=True)
        fcntl.fcntl(fd, fcntl.F_SETFD, 0)
        time.sleep(60)
    """
    await sandbox.spawn("holder", [*SNIPPET, PRELUDE + textwrap.dedent(code)])
    async with asyncio.timeout(20):
        while (await sandbox.poll("holder")).stdout != "refused\n":
            await asyncio.sleep(0.02)
    digest = await provider.snapshot(sandbox.id, tmp_path, {})
    other = await provider.restore("other", {"run": "r"}, tmp_path, digest)
    assert await other.read("file") == b"content"
    await other.terminate()


# --- the preloaded interpreter


def below(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *below(child)]
    return found


def nest_of(zygote):
    """Return the process of the preloaded interpreter."""
    _, process = zygote._finalizer.peek()[2]
    words = b"-I\0-S\0-B\0-c\0"
    (nest,) = (pid for pid in below(process.pid) if words in Path(f"/proc/{pid}/cmdline").read_bytes())
    return nest


async def test_an_interpreter_without_descriptors_says_so_and_goes_on(provider, sandbox):
    assert (await snippet(sandbox, "print('x')")).stdout == "x\n"
    nest = nest_of(await provider.zygote())
    held = len(os.listdir(f"/proc/{nest}/fd"))
    was = resource.prlimit(nest, resource.RLIMIT_NOFILE)
    assert was[0] == was[1]  # all that there are
    resource.prlimit(nest, resource.RLIMIT_NOFILE, (held + 5, was[1]))
    other = await provider.create("other", {"run": "r"})
    with pytest.raises(SandboxError, match=r"preloaded interpreter.*Too many open files"):
        await snippet(other, "print('x')")
    resource.prlimit(nest, resource.RLIMIT_NOFILE, was)
    assert (await snippet(sandbox, "print('x')")).stdout == "x\n"
    assert nest_of(await provider.zygote()) == nest
    await other.terminate()


async def test_an_interpreter_that_was_killed_is_started_again_for_the_next_sandbox(provider, sandbox):
    assert (await snippet(sandbox, "print('x')")).stdout == "x\n"
    zygote = await provider.zygote()
    nest = nest_of(zygote)
    os.kill(nest, signal.SIGKILL)
    async with asyncio.timeout(20):
        while Path(f"/proc/{nest}").exists():
            await asyncio.sleep(0.02)
    assert (await snippet(sandbox, "print('x')")).stdout == "x\n"  # an interpreter of its own
    other = await provider.create("other", {"run": "r"})
    assert (await snippet(other, "print('x')")).stdout == "x\n"
    assert nest_of(zygote) != nest
    await other.terminate()
