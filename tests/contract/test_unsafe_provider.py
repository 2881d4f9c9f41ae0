"""The unsafe provider keeps the contract but for what it does not contain, which is shown here instead."""

import asyncio
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import headway.sandbox.keeper as original
from headway.core.errors import SandboxError, SandboxUnavailableError, UserError
from headway.core.protocols import ExecLimits
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.unsafe import UnsafeProvider
from tests.contract.sandbox_contract import PYTHON, SandboxContract, running

pytestmark = pytest.mark.filterwarnings("ignore:.*unsafe-local")


class TestUnsafe(SandboxContract):
    uid = str(os.geteuid())

    @pytest.fixture
    def provider(self, tmp_path):
        directory = str(tmp_path / "sandboxes")
        return UnsafeProvider(SandboxSettings(directory=directory, allow_unsafe=True, wall_s=10))

    def destroy(self, provider, sandbox):
        shutil.rmtree(sandbox._folder)

    async def test_preflight_names_what_holds(self, provider):
        with pytest.warns(UserWarning, match="contains nothing"):
            guarantees = await provider.preflight()
        levels = {guarantee.name: guarantee.level for guarantee in guarantees}
        assert levels["network"] == levels["host_files"] == levels["processes"] == "absent"
        assert levels["output"] == "enforced"
        assert all(guarantee.remedy for guarantee in guarantees if guarantee.level != "enforced")

    async def test_the_environment_is_empty_but_for_what_was_given(self, sandbox, monkeypatch):
        monkeypatch.setenv("HEADWAY_TEST_SECRET", "s3cret")
        result = await sandbox.exec(["env"], env={"GIVEN": "1"})
        names = {line.partition("=")[0] for line in result.stdout.splitlines()}
        assert names == {"PATH", "HOME", "LANG", "GIVEN"}

    async def test_planted_links_and_pipes_are_refused(self, sandbox, tmp_path):
        secret = tmp_path / "secret"
        secret.write_text("host")
        plant = f"ln -s {secret} file; ln -s {tmp_path} folder; mkfifo pipe"
        assert (await sandbox.exec(["sh", "-c", plant])).rc == 0
        for path in ("file", "folder/secret", "pipe"):
            with pytest.raises(SandboxError):
                await sandbox.read(path)
            with pytest.raises(SandboxError):
                await sandbox.write(path, b"overwritten")
        assert secret.read_text() == "host"

    async def test_the_network_is_unreachable(self, sandbox):
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 1); print('open')"
        async with server:
            assert (await sandbox.exec([*PYTHON, code])).stdout == "open\n"  # it is not: preflight says so

    async def test_two_sandboxes_share_nothing(self, provider, sandbox):
        other = await provider.create(f"o/{uuid.uuid4().hex}", {"run": f"contract-{os.getpid()}"})
        await sandbox.write("mine", b"x")
        assert (await other.exec(["ls", "-A"])).stdout == ""
        with pytest.raises(SandboxError):
            await other.read("mine")
        await other.terminate()

    # --- what it has of its own

    async def test_daemons_of_daemons_end_with_the_command(self, sandbox):
        marker = f"983{uuid.uuid4().int % 10**9}"
        inner = f"setsid sleep {marker} >/dev/null 2>&1 </dev/null &"
        result = await sandbox.exec(["sh", "-c", f"setsid sh -c '{inner} {inner}' & sleep 0.1; echo done"])
        assert (result.stdout, result.cause) == ("done\n", "exit")
        assert running(marker) == []

    async def test_too_many_processes_end_the_command(self, sandbox):
        marker = f"982{uuid.uuid4().int % 10**9}"
        many = f"for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; do setsid sleep {marker} & done; sleep 9"
        result = await sandbox.exec(["sh", "-c", many])
        assert (result.rc, result.cause) == (None, "pids")
        assert running(marker) == []

    async def test_a_program_that_kills_or_stops_its_keeper_is_no_success(self, sandbox, monkeypatch):
        monkeypatch.setattr("headway.sandbox.kept._GONE_S", 0.2)
        marker = f"981{uuid.uuid4().int % 10**9}"
        killed = await sandbox.exec(["sh", "-c", "kill -9 $PPID; sleep 9"])
        assert (killed.rc, killed.cause) == (None, "killed")
        stopped = await sandbox.exec(
            ["sh", "-c", f"kill -STOP $PPID; setsid sleep {marker} & exit 0"], limits=ExecLimits(1)
        )
        assert stopped.rc is None
        assert running(marker) == []
        assert (await sandbox.exec(["echo", "still good"])).stdout == "still good\n"

    @pytest.mark.parametrize(
        ("code", "cause"),
        [
            ("x = bytearray(1 << 30)", "oom"),
            ("open('f', 'wb').write(b'x' * (33 << 20))", "disk"),
            ("for i in range(1100): open(str(i), 'w').close()", "inodes"),
        ],
    )
    async def test_limits_end_with_their_cause(self, sandbox, code, cause):
        result = await sandbox.exec([*PYTHON, code])
        assert result.rc != 0
        assert result.cause == cause

    async def test_a_busy_loop_uses_no_more_than_its_cpu_seconds(self, tmp_path):
        settings = SandboxSettings(directory=str(tmp_path), allow_unsafe=True, wall_s=60, cpu_s=1)
        sandbox = await UnsafeProvider(settings).create("busy", {"run": "r"})
        result = await sandbox.exec([*PYTHON, "while 1: pass"])
        await sandbox.terminate()
        assert (result.rc, result.cause) == (None, "cpu")


def test_it_must_be_allowed():
    with pytest.raises(SandboxUnavailableError, match="allow_unsafe"):
        UnsafeProvider(SandboxSettings(provider="unsafe-local"))
    (problem,) = SandboxSettings(provider="unsafe-local").problems()
    assert "allow_unsafe" in problem.rule
    assert SandboxSettings(provider="unsafe-local", allow_unsafe=True).problems() == []
    assert issubclass(SandboxUnavailableError, UserError)


def test_nothing_outlives_a_controller_that_is_killed(tmp_path):
    marker = f"978{uuid.uuid4().int % 10**9}"
    code = f"""
import asyncio
from headway.core.protocols import ExecLimits
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.unsafe import UnsafeProvider

async def main():
    settings = SandboxSettings(directory={str(tmp_path / "s")!r}, allow_unsafe=True, wall_s=60)
    provider = UnsafeProvider(settings)
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            sandbox = await provider.create(str(number), {{"run": "r"}})
            line = "setsid sleep {marker} & setsid setsid sleep {marker} & sleep {marker}"
            group.create_task(sandbox.exec(["sh", "-c", line]))

asyncio.run(main())
"""
    controller = subprocess.Popen([sys.executable, "-c", code], env={"PYTHONPATH": os.pathsep.join(sys.path)})
    wait_until(lambda: len(running(marker)) >= 12)  # the keepers and shells, whose lines hold it too
    controller.kill()
    controller.wait()
    wait_until(lambda: not running(marker))
    settings = SandboxSettings(directory=str(tmp_path / "s"), allow_unsafe=True)
    assert asyncio.run(UnsafeProvider(settings).reap("r")) == 4


def wait_until(holds):
    while not holds():  # pytest's own limit bounds it
        time.sleep(0.02)


def test_it_runs_where_there_is_no_linux(tmp_path, monkeypatch):
    """The keeper's way without subreaper and /proc, as far as Linux can show it."""
    if shutil.which("ps") is None:
        pytest.skip("ps is not installed")
    keeper = tmp_path / "keeper.py"
    text = Path(original.__file__).read_text(encoding="utf-8")
    keeper.write_text(text.replace('sys.platform == "linux"', "False"))
    monkeypatch.setattr("headway.sandbox.kept._KEEPER", keeper)
    provider = UnsafeProvider(SandboxSettings(directory=str(tmp_path / "s"), allow_unsafe=True))
    asyncio.run(_elsewhere(provider))


async def _elsewhere(provider):
    sandbox = await provider.create("elsewhere", {"run": "r"})
    marker = f"979{uuid.uuid4().int % 10**9}"
    # A daemon that left its session is found once it was seen; one that was never seen would get away.
    late = f"sleep {marker} & setsid sleep {marker} & sleep 0.5; echo done"
    result = await sandbox.exec(["sh", "-c", late])
    assert (result.rc, result.stdout) == (0, "done\n")
    assert running(marker) == []
    held = await sandbox.exec([*PYTHON, "import sys; print(sys.argv)", "x"])
    assert held.stdout == "['-c', 'x']\n"
    await sandbox.terminate()
