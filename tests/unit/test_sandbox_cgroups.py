"""Cgroups of the local provider: limits over all processes of a sandbox, and no folder left behind."""

# ruff: noqa: ASYNC110, ASYNC220 - folders of other processes are watched by looking again

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import headway
from headway.sandbox import zygote
from headway.sandbox.cgroups import Group, find_groups, limits_of, own_groups
from headway.sandbox.local import LocalProvider
from headway.sandbox.settings import SandboxSettings
from tests.contract.sandbox_contract import PYTHON

SETTINGS = SandboxSettings(cgroups="all", memory_mb=128, work_mb=16, tmpfs_mb=16, cpu_weight=50)
UNIFIED = Path("/sys/fs/cgroup/unified")


@pytest.fixture
def groups():
    found = find_groups(SETTINGS)
    for group in found:
        group.remove()
    if not any("memory" in group.controllers for group in found):
        pytest.skip("no cgroup here can be given limits")
    return found


@pytest.fixture
async def provider(groups):
    provider = LocalProvider(SETTINGS)
    yield provider
    provider.close()


def test_limits_are_written_in_the_units_of_each_version():
    assert limits_of(1, SETTINGS) == {
        "memory": {"memory.limit_in_bytes": str(160 << 20)},
        "cpu": {"cpu.shares": "512"},
    }
    assert limits_of(2, SETTINGS)["memory"] == {"memory.max": str(160 << 20), "memory.swap.max": "0"}
    assert limits_of(2, SETTINGS)["cpu"] == {"cpu.weight": "50"}


def test_places_are_read_from_proc(tmp_path):
    (tmp_path / "cgroup").write_text("4:memory:/a/b\n3:cpu,cpuacct:/\n0::/user.slice\n")
    assert own_groups(tmp_path / "cgroup") == {
        "memory": "/a/b", "cpu": "/", "cpuacct": "/", "": "/user.slice",
    }  # fmt: skip
    assert own_groups(tmp_path / "none") == {}


def test_none_are_made_unless_wanted(groups):
    assert find_groups(SandboxSettings(cgroups="off")) == []
    if groups[0].version == 1:
        assert find_groups(SandboxSettings(cgroups="auto")) == []


async def test_memory_of_all_processes_has_a_hard_limit(provider, groups):
    levels = {guarantee.name: guarantee.level for guarantee in await provider.preflight()}
    assert levels["memory"] == "enforced"
    sandbox = await provider.create("s", {"run": "r"})
    # Quicker than any look at it: files and processes together.
    code = (
        "import os, time\nopen('/work/f', 'wb').write(b'x' * (12 << 20))\n"
        "for _ in range(3):\n  if os.fork() == 0: x = b'x' * (80 << 20); time.sleep(60)\n"
        "time.sleep(60)"
    )
    for argv in ([*PYTHON, code], ["env", *PYTHON, code]):
        result = await sandbox.exec(argv)
        assert (result.rc, result.cause) == (None, "oom")
        assert result.usage.max_memory_bytes <= 160 << 20
    calm = await sandbox.exec([*PYTHON, "x = b'x' * (60 << 20)"])
    assert calm.rc == 0
    assert 60 << 20 < calm.usage.max_memory_bytes < 100 << 20
    await sandbox.terminate()


async def test_every_program_is_in_the_sandboxes_place_and_the_place_goes_with_it(provider):
    sandbox = await provider.create("s", {"run": "r"})
    await sandbox.prepare()
    places = sandbox._cell.groups
    assert len(places) >= 1
    await sandbox.spawn("it", ["sleep", "99"])
    snippet = asyncio.create_task(sandbox.exec([*PYTHON, "import time; time.sleep(60)"]))
    for place in places:
        while len((place / "cgroup.procs").read_text().split()) < 3:  # the first process is one
            await asyncio.sleep(0.01)
    shown = await sandbox.poll("it")
    assert shown.running
    await sandbox.terminate()
    assert (await snippet).cause == "killed"
    while any(place.exists() for place in places):
        await asyncio.sleep(0.01)


async def test_closing_the_provider_removes_every_folder(provider):
    for number in range(3):
        await (await provider.create(str(number), {"run": "r"})).prepare()
    folders = [group.folder for group in (await provider.zygote()).groups]
    assert all(folder.exists() for folder in folders)
    provider.close()
    assert not any(folder.exists() for folder in folders)


async def test_a_killed_controller_leaves_no_folder(groups):
    script = textwrap.dedent("""
        import asyncio
        from headway.sandbox.local import LocalProvider
        from headway.sandbox.settings import SandboxSettings
        async def main():
            provider = LocalProvider(SandboxSettings(cgroups="all"))
            for number in range(5):
                sandbox = await provider.create(str(number), {"run": "r"})
                await sandbox.spawn("it", ["sleep", "99"])
            print(*[group.folder for group in (await provider.zygote()).groups], flush=True)
            await asyncio.sleep(99)
        asyncio.run(main())
    """)
    env = os.environ | {"PYTHONPATH": str(Path(headway.__file__).parent.parent)}
    with subprocess.Popen([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE, text=True) as run:
        folders = list(map(Path, run.stdout.readline().split()))
        assert folders
        assert all(folder.exists() for folder in folders)
        run.kill()
    async with asyncio.timeout(10):
        while any(folder.exists() for folder in folders):
            await asyncio.sleep(0.02)


def test_folders_of_dead_processes_are_removed_at_the_next_start(groups):
    done = subprocess.Popen(["true"])
    done.wait()
    for group in groups:
        (group.folder.parent / f"headway-{done.pid}-1" / "7").mkdir(parents=True)
    for group in find_groups(SETTINGS):
        assert not (group.folder.parent / f"headway-{done.pid}-1").exists()
        group.remove()


@pytest.mark.skipif(
    not os.access(UNIFIED / "cgroup.procs", os.W_OK), reason="needs a hierarchy of version 2 beside version 1"
)
async def test_a_process_is_born_into_a_place_of_version_2(monkeypatch):
    # Without controllers, which belong to version 1 here: what is tested is the place.
    folder = UNIFIED / f"headway-{os.getpid()}-2"
    folder.mkdir()
    group = Group(folder, 2, (), {"cgroup.max.depth": "1"}, events="cgroup.events")
    monkeypatch.setattr(zygote, "find_groups", lambda settings: [group])
    provider = LocalProvider(SETTINGS)
    sandbox = await provider.create("s", {"run": "r"})
    work = asyncio.create_task(sandbox.exec([*PYTHON, "import time; time.sleep(60)"]))
    await sandbox.spawn("it", ["cat", "/proc/self/cgroup"])
    (place,) = sandbox._cell.groups
    while len((place / "cgroup.procs").read_text().split()) < 2:
        await asyncio.sleep(0.01)
    while not (said := (await sandbox.poll("it")).stdout):
        await asyncio.sleep(0.01)
    assert "headway-" not in said
    assert (place / "cgroup.max.depth").read_text() == "1\n"
    await sandbox.terminate()
    await work
    provider.close()
    assert not folder.exists()
