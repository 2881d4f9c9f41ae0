"""The ten traps of sandboxes, each one seen in the wild: a test each, on every provider of this machine.

Others are tests elsewhere too: the hostile table (test_sandbox_hostile_table.py) and the contract.
"""

# ruff: noqa: ASYNC110, ASYNC220, ASYNC240 - real processes are watched

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path

import pytest

import headway
from headway.core.protocols import ExecLimits
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.local import LocalProvider
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.trees import set_mode
from tests.contract.sandbox_contract import PYTHON, running

PROVIDERS = {"bubblewrap": BubblewrapProvider, "local": LocalProvider}


def made(name, folder, **settings):
    return PROVIDERS[name](SandboxSettings(directory=str(folder / "sandboxes"), **settings))


def close(provider):
    if isinstance(provider, LocalProvider):
        provider.close()


@pytest.fixture(params=PROVIDERS)
def provider(request, tmp_path):
    provider = made(request.param, tmp_path)
    yield provider
    close(provider)


@pytest.fixture
async def sandbox(provider):
    sandbox = await provider.create("trap", {"run": "r"})
    yield sandbox
    await sandbox.terminate()


def descendants(pid):
    """Return pids of the processes below `pid`."""
    found, line = [], [pid]
    while line:
        for task in Path(f"/proc/{line.pop()}/task").glob("*/children"):
            try:
                children = [int(child) for child in task.read_text().split()]
            except OSError:
                continue
            found += children
            line += children
    return found


PROBE = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for name, flags in (("mem", os.O_RDWR), ("environ", 0), ("root/etc", 0), ("fd", 0)):
    try:
        os.close(os.open(f"/proc/1/{name}", flags))
        print("open", name)
    except OSError:
        pass
if libc.ptrace(16, 1, 0, 0) >= 0:
    print("traced")
"""


async def test_trap_1_the_memory_of_the_first_process_is_closed_to_the_model(tmp_path):
    """It was written to, and a reward forged, where the first process had the model's uid."""
    provider = made("local", tmp_path)
    try:
        sandbox = await provider.create("trap", {"run": "r"})
        result = await sandbox.exec([*PYTHON, PROBE])
        assert (result.rc, result.stdout) == (0, "")
    finally:
        provider.close()


async def test_trap_1_where_the_first_process_can_be_written_to_it_ends_with_its_command(tmp_path):
    """With bubblewrap it has the model's uid; preflight says so, and no more than one command is at stake."""
    provider = made("bubblewrap", tmp_path)
    told = {guarantee.name: guarantee for guarantee in await provider.preflight()}
    assert told["first_process"].level == "best-effort"
    assert 'provider = "local"' in told["first_process"].remedy
    sandbox = await provider.create("trap", {"run": "r"})
    await sandbox.write("file", b"kept")
    overwrite = "import os; f = os.open('/proc/1/mem', os.O_RDWR); print('open')\n" + (
        "for line in open('/proc/1/maps'):\n"
        "    place, mode = line.split()[:2]\n"
        "    first, last = (int(end, 16) for end in place.split('-'))\n"
        "    if 'x' in mode and '[v' not in line: os.pwrite(f, b'\\xcc' * (last - first), first)\n"
    )
    result = await sandbox.exec([*PYTHON, overwrite], limits=ExecLimits(wall_s=1))
    assert result.stdout in ("open\n", "")
    after = await sandbox.exec([*PYTHON, "print(open('file').read())"])
    assert (after.rc, after.stdout, after.cause) == (0, "kept\n", "exit")
    await sandbox.terminate()


CONTROLLER = """
    import asyncio, sys, threading, time
    from headway.sandbox.{module} import {name} as Provider
    from headway.sandbox.settings import SandboxSettings

    def busy():
        while True:  # threads that hold locks and allocate while sandboxes are made
            [bytearray(1000) for _ in range(100)]
            time.sleep(0.0005)

    async def main():
        provider = Provider(SandboxSettings(wall_s=120, max_live=100, directory={folder!r}))
        async with asyncio.TaskGroup() as group:
            for number in range({count}):
                sandbox = await provider.create(f"s{{number}}", {{"run": "killed"}})
                daemon = "setsid sleep {marker} & " * (number < {daemons})
                group.create_task(sandbox.exec(["sh", "-c", daemon + "sleep {marker}"]))
            print("up", flush=True)

    for _ in range(4):
        threading.Thread(target=busy, daemon=True).start()
    asyncio.run(main())
"""


def controller(name, folder, marker, *, count, daemons):
    module = "local" if name == "local" else "bubblewrap"
    script = CONTROLLER.format(
        module=module, name=PROVIDERS[name].__name__, folder=str(folder / "sandboxes"), marker=marker,
        count=count, daemons=daemons,
    )  # fmt: skip
    source = str(Path(headway.__file__).parent.parent)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], env=env, stdout=subprocess.PIPE, text=True
    )


def until(condition, *, within_s=60.0):
    """Look until it holds; what is left of a machine that is busy is waited for."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s
        time.sleep(0.02)


async def test_trap_2_only_a_process_of_one_thread_clones(provider, sandbox):
    """A fork of a threaded controller was stuck before it could ask to die with its parent."""
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        marker = f"97{uuid.uuid4().int % 10**9}"
        work = asyncio.create_task(
            sandbox.exec(["sh", "-c", f"sleep {marker}; :"], limits=ExecLimits(wall_s=60))
        )
        while not running(marker):
            await asyncio.sleep(0.01)
        seen = 0
        for pid in descendants(os.getpid()):
            with contextlib.suppress(FileNotFoundError):  # it has ended
                assert "Threads:\t1\n" in Path(f"/proc/{pid}/status").read_text()
                seen += 1
        assert seen
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert running(marker) == []


@pytest.mark.parametrize("name", PROVIDERS)
def test_trap_3_a_sandbox_outlives_the_thread_that_made_it(name, tmp_path):
    """A death signal comes when the creating thread ends, not the process."""
    provider, loop = made(name, tmp_path), asyncio.new_event_loop()

    async def begin():
        sandbox = await provider.create("s", {"run": "r"})
        assert (await sandbox.exec(["sh", "-c", "echo kept > file"])).rc == 0
        return sandbox

    found = []
    thread = threading.Thread(target=lambda: found.append(loop.run_until_complete(begin())))
    thread.start()
    thread.join()
    try:
        result = loop.run_until_complete(found[0].exec(["cat", "file"]))
        assert (result.rc, result.stdout) == (0, "kept\n")
        assert loop.run_until_complete(provider.alive("s"))
        loop.run_until_complete(found[0].terminate())
    finally:
        close(provider)
        loop.close()


async def test_trap_4_nobody_else_holds_a_sandboxs_socket(tmp_path):
    """Inherited sockets kept helpers alive: neither siblings nor other children of ours have them."""
    provider = made("local", tmp_path)
    try:
        many = [await provider.create(f"s{number}", {"run": "r"}) for number in range(3)]
        for sandbox in many:
            assert (await sandbox.exec(["true"])).rc == 0
        with subprocess.Popen(["sleep", "60"]) as other:
            cell = many[1]._cell
            cell._loop.remove_reader(cell._socket)
            cell._socket.close()  # and nothing else: no signal
            poll = select.poll()
            poll.register(cell._pid_fd, select.POLLIN)
            assert await asyncio.to_thread(poll.poll, 20_000)
            assert [await provider.alive(sandbox.id) for sandbox in many] == [True, False, True]
            other.kill()
    finally:
        provider.close()


async def test_trap_5_a_daemon_that_holds_stdout_does_not_hold_the_call(sandbox):
    marker = f"96{uuid.uuid4().int % 10**9}"
    script = f"setsid sh -c 'sleep {marker}; echo late' & echo done"
    result = await sandbox.exec(["sh", "-c", script], limits=ExecLimits(wall_s=200))
    assert (result.rc, result.stdout, result.cause) == (0, "done\n", "exit")
    assert running(marker) == []


async def test_trap_6_the_environment_begins_empty(sandbox, monkeypatch):
    monkeypatch.setenv("HEADWAY_TEST_SECRET", "s3cret")
    for argv in (
        ["env"],
        [*PYTHON, "import os\nfor name in os.environ: print(name, os.environ[name], sep='=')"],
    ):
        seen = dict(line.split("=", 1) for line in (await sandbox.exec(argv)).stdout.splitlines())
        assert "HEADWAY_TEST_SECRET" not in seen
        assert seen["HOME"] == "/work"
        assert set(seen) <= {"PATH", "HOME", "LANG", "LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"}


async def test_trap_7_no_further_namespace_can_be_made(provider, sandbox):
    code = textwrap.dedent("""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        user, mount, net, pid = 0x10000000, 0x20000, 0x40000000, 0x20000000
        for flag in (user, user | mount, user | net, mount, net, pid):
            print(libc.unshare(flag), end=" ")
        print(open("/proc/sys/user/max_user_namespaces").read().strip())
    """)
    result = await sandbox.exec([*PYTHON, code])
    refused, _, allowed = result.stdout.strip().rpartition(" ")
    assert refused == "-1 -1 -1 -1 -1 -1"
    if isinstance(provider, LocalProvider):  # bubblewrap writes its 0 to a namespace around this one
        assert allowed == "0"


async def test_trap_8_mounts_show_no_home_or_project_of_the_host(provider, sandbox, tmp_path):
    code = "import sys; print(open('/proc/self/mountinfo').read().replace(sys.base_prefix, ''))"
    text = (await sandbox.exec([*PYTHON, code])).stdout
    assert text.count("\n") > 3
    hidden = [str(Path(__file__).parents[2]), os.path.expanduser("~")]
    if isinstance(provider, BubblewrapProvider):
        # docs/sandboxes.md says so: the place of the work folder shows, and nothing that leads anywhere
        text = "\n".join(line for line in text.splitlines() if " /work " not in line)
    assert [place for place in hidden if place in text] == []


async def test_trap_9_an_interpreter_below_a_closed_home_runs_as_another_uid(sandbox):
    code = "import sys, os, json; print(os.path.realpath(sys.base_prefix), os.getuid())"
    result = await sandbox.exec([*PYTHON, code])
    assert (result.rc, result.stderr) == (0, "")
    prefix, uid = result.stdout.split()
    assert prefix == os.path.realpath(sys.base_prefix)
    assert uid != "0"


@pytest.mark.parametrize("name", PROVIDERS)
def test_trap_10_a_killed_controller_leaves_nothing_of_fifty_sandboxes_with_daemons(name, tmp_path):
    marker = f"95{uuid.uuid4().int % 10**9}"
    count, daemons = (50, 5) if name == "local" else (12, 5)
    with controller(name, tmp_path, marker, count=count, daemons=daemons) as process:
        try:
            until(lambda: len(running(f"sleep\0{marker}")) >= count + daemons)
        finally:
            process.send_signal(signal.SIGKILL)
        until(lambda: not running(marker), within_s=20)
    assert running(marker) == []


@pytest.fixture
async def contained(tmp_path):
    """A sandbox of the local provider, which filters system calls and preloads Python."""
    provider = made("local", tmp_path)
    sandbox = await provider.create("trap", {"run": "r"})
    yield sandbox
    await sandbox.terminate()
    provider.close()


async def test_sockets_of_families_that_no_namespace_holds_are_refused(contained):
    """AF_VSOCK reaches the hypervisor and, by its loopback, other sandboxes."""
    tried = (
        "import socket\n"
        "for family in range(1, 46):\n"
        "    for kind in (1, 2, 5):\n"
        "        try: socket.socket(family, kind); print(family)\n"
        "        except OSError: pass\n"
    )
    result = await contained.exec([*PYTHON, tried])
    assert set(result.stdout.split()) <= {"1", "2", "10", "16"}


SEARCH = """
before, digits = b"tell", b"98765"  # never joined in here
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
    for line in maps:
        place, mode = line.split()[:2]
        first, last = (int(end, 16) for end in place.split("-"))
        if "r" in mode and "[v" not in line:
            memory.seek(first)
            try:
                found = memory.read(last - first)
            except OSError:
                continue
            at = found.find(digits)
            while at >= 0:
                if found[at - 4 : at] == before:
                    print(line)
                at = found.find(digits, at + 1)
"""


async def test_a_snippet_cannot_read_what_an_earlier_one_was(contained):
    """Both are forks of one interpreter, through whose memory their words went."""
    long = "x = '" + "y" * 5000 + "tell98765'\n" + SEARCH
    assert (await contained.exec([*PYTHON, long])).stdout  # the search finds its own
    result = await contained.exec([*PYTHON, SEARCH])
    assert (result.rc, result.stdout) == (0, "")


async def test_the_mode_of_a_link_s_target_is_never_set(tmp_path):
    """A program that runs meanwhile may put a link where a folder was."""
    target, folder = tmp_path / "target", tmp_path / "work"
    target.mkdir(mode=0o711)
    folder.mkdir()
    (folder / "link").symlink_to(target)
    (folder / "real").mkdir()
    here = os.open(folder, os.O_RDONLY)
    try:
        set_mode("link", 0o777, here)
        set_mode("real", 0o700, here)
    finally:
        os.close(here)
    assert (target.stat().st_mode & 0o777, (folder / "real").stat().st_mode & 0o777) == (0o711, 0o700)
