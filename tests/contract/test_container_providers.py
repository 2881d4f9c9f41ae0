"""The container providers keep the contract: over a stand-in, and over a real engine where there is one.

The stand-in (tests/standins/engine.py) is a small program that really runs the commands and checks the flags.
It is not an engine: what an engine does with these flags, only the last class shows, where one runs.
"""

# ruff: noqa: ASYNC110 - other processes are watched by looking again

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from headway.core.errors import SandboxError, SandboxUnavailableError
from headway.core.protocols import ExecLimits
from headway.sandbox.containers import ContainerProvider
from headway.sandbox.settings import SandboxSettings
from tests.contract.limited_contract import WithoutSpawns
from tests.contract.sandbox_contract import PYTHON, running, until_running
from tests.contract.serving_contract import CONNECT, ServingBasics, ServingContract, upper
from tests.standins import box

SCRIPT = Path(box.__file__).with_name("engine.py")
IMAGE = SandboxSettings().container_image
standin = pytest.mark.skipif(bool(box.unusable()), reason=box.unusable() or "runs")


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Both stand-ins first on PATH; whatever they made is ended."""
    state = tmp_path / "state"
    state.mkdir()
    programs = tmp_path / "bin"
    programs.mkdir()
    packages = os.pathsep.join(path for path in sys.path if path)
    for engine in ("podman", "docker"):
        program = programs / engine
        program.write_text(
            f'#!/bin/sh\nPYTHONPATH="{packages}" exec {sys.executable} -B {SCRIPT} {engine} {state} "$@"\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    yield state
    for path in state.glob("*.json"):
        record = json.loads(path.read_text())
        if "first" in record and box.started(record["first"]) == record["started"]:
            box.end(record["guard"], record["first"], state / record["name"])


def made(state):
    return sorted(path.stem for path in state.glob("*.json"))


class _Pausing(WithoutSpawns):
    """A container can be paused, and has no other long-lived process than a command."""

    uid = "65534"

    async def test_preflight_names_what_holds(self, provider):
        levels = {guarantee.name: guarantee.level for guarantee in await provider.preflight()}
        assert levels["network"] == levels["host_files"] == levels["wall"] == "enforced"
        assert (provider.spawns, provider.pauses) == (False, True)

    async def test_a_paused_sandbox_makes_no_progress_and_its_time_does_not_count(self, sandbox):
        marker = f"977{uuid.uuid4().int % 10**9}"
        script = (
            f"sh -c 'sleep {marker}' & while :; do i=$((i+1)); echo $i > n.new; mv n.new n; sleep 0.01; done"
        )
        work = asyncio.create_task(sandbox.exec(["sh", "-c", script], limits=ExecLimits(wall_s=1.5)))
        await until_running(marker)
        await sandbox.pause()
        await sandbox.pause()
        await asyncio.sleep(2.0)  # more than the limit
        assert not work.done()
        await sandbox.resume()
        await sandbox.resume()
        result = await work
        assert (result.rc, result.cause, result.wall_s < 2.0) == (None, "wall", True)
        assert running(marker) == []
        assert int(await sandbox.read("n")) > 0

    async def test_a_paused_sandbox_can_be_copied_and_terminated(self, provider, sandbox, tmp_path):
        await sandbox.write("file", b"x")
        await sandbox.pause()
        digest = await provider.snapshot(sandbox.id, tmp_path / "store", {})
        with pytest.raises(SandboxError, match="paused"):
            await sandbox.exec(["true"])
        other = await self.restored(provider, tmp_path / "store", digest)
        assert await other.read("file") == b"x"
        await other.terminate()
        await sandbox.terminate()
        assert await provider.list({}) == []

    async def test_a_command_that_is_cancelled_under_a_pause_ends(self, sandbox):
        marker = f"976{uuid.uuid4().int % 10**9}"
        work = asyncio.create_task(sandbox.exec(["sleep", marker]))
        await until_running(marker)
        while True:  # the client's own line holds the marker too, before the command began
            if sum(1 for pid in running(marker) if box.command_line(pid) == b"sleep"):
                break
            await asyncio.sleep(0.01)
        await sandbox.pause()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert running(marker) == []
        await sandbox.resume()
        assert (await sandbox.exec(["echo", "still good"])).stdout == "still good\n"

    async def test_a_sandbox_that_was_lost_while_paused_is_detected_at_resume(self, provider, sandbox):
        await sandbox.write("file", b"x")
        await sandbox.pause()
        self.destroy(provider, sandbox)
        with pytest.raises(SandboxError):
            await sandbox.resume()


class _OverAStandin(_Pausing):
    engine = "docker"

    @pytest.fixture
    def provider(self, state):
        return ContainerProvider(SandboxSettings(wall_s=20), self.engine)

    def destroy(self, provider, sandbox):
        pid = json.loads((self._state(provider) / f"{sandbox.machine.name}.json").read_text())["first"]
        os.kill(pid, signal.SIGKILL)
        while box.alive(pid):
            pass

    def _state(self, provider):
        return Path(shutil.which(self.engine)).parent.parent / "state"


@standin
class TestDockerServes(ServingBasics):
    """A few of them, for each command takes a while here; the slow class below has all."""

    test_large_streams_pass_both_ways_at_the_readers_pace = None
    test_a_handler_that_raises_is_told_at_the_end_and_the_others_go_on = None

    @pytest.fixture
    def provider(self, state):
        return ContainerProvider(SandboxSettings(wall_s=20), "docker")

    async def test_a_program_can_neither_end_nor_read_the_relay(self, sandbox):
        attack = (
            "import os\n"
            "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
            "    if b'relay' in open(f'/proc/{pid}/cmdline', 'rb').read().split(b'\\0'):\n"
            "        for harm in (lambda: os.kill(int(pid), 9), lambda: open(f'/proc/{pid}/mem'),\n"
            "                     lambda: os.listdir(f'/proc/{pid}/fd')):\n"
            "            try: harm(); print('done')\n"
            "            except PermissionError: print('refused')\n"
        )
        code = CONNECT + "server.sendall(b'still\\n'); print(server.recv(9))"
        async with sandbox.serve(0, upper) as port:
            assert (await sandbox.exec([*PYTHON, attack])).stdout == "refused\n" * 3
            assert (await sandbox.exec([*PYTHON, code, str(port)])).stdout == "b'STILL\\n'\n"
            assert (await sandbox.stats()).num_processes == 0


@standin
@pytest.mark.slow
class TestDockerServesAll(ServingContract):
    @pytest.fixture
    def provider(self, state):
        return ContainerProvider(SandboxSettings(wall_s=20), "docker")


@standin
class TestDocker(_OverAStandin):
    """All of it, and what containers have of their own."""

    async def test_a_file_limit_ends_with_its_cause(self, sandbox):
        result = await sandbox.exec([*PYTHON, "for i in range(1100): open(str(i), 'w').close()"])
        assert (result.rc, result.cause) == (1, "inodes")

    @pytest.mark.parametrize(
        ("code", "cause"),
        [
            ("x = bytearray(1 << 30)", "oom"),
            ("for i in range(9): open(str(i), 'wb').write(b'x' * (8 << 20))", "disk"),
        ],
    )
    async def test_limits_end_with_their_cause(self, sandbox, code, cause):
        result = await sandbox.exec([*PYTHON, code])
        assert (result.rc, result.cause) == (1, cause)

    async def test_nothing_is_written_outside_and_there_are_no_privileges(self, sandbox):
        places = "/x /usr/x /opt/x /proc/sys/kernel/hostname"
        script = (
            f"for at in {places}; do (echo x > $at) 2>/dev/null && echo $at; done; "
            "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status"
        )
        shown = await sandbox.exec(["sh", "-c", script])
        assert shown.stdout.split() == ["65534", "CapEff:", "0" * 16, "NoNewPrivs:", "1"]

    async def test_a_program_reads_and_ends_neither_the_first_process_nor_a_sibling(self, sandbox):
        code = (
            "import os\n"
            "for pid in (1, -1):\n"
            "    try: os.kill(pid, 9)\n"
            "    except OSError as error: print(type(error).__name__)\n"
            "try: open('/proc/1/mem', 'r+b')\n"
            "except OSError as error: print(type(error).__name__)\n"
        )
        result = await sandbox.exec([*PYTHON, code])
        assert result.rc != 0 or result.stdout.split()[-1] == "PermissionError"
        assert (await sandbox.exec(["echo", "still good"])).stdout == "still good\n"

    async def test_tmp_is_empty_again_at_each_command(self, sandbox):
        await sandbox.exec(["sh", "-c", "mkdir -p /tmp/a/b; echo x > /tmp/a/b/c; echo y > /dev/shm/d"])
        assert (await sandbox.exec(["ls", "-A", "/tmp", "/dev/shm"])).stdout.split() == ["/dev/shm:", "/tmp:"]

    async def test_a_folder_to_run_in(self, sandbox):
        await sandbox.write("a/b", b"x")
        assert (await sandbox.exec(["ls"], cwd="a")).stdout == "b\n"
        assert (await sandbox.exec(["ls"], cwd="none")).rc == 126

    async def test_a_start_that_fails_leaves_no_container(self, state, provider):
        (state / "fail-run").touch()
        sandbox = await provider.create("a", {"run": "r"})
        with pytest.raises(SandboxError, match="no such luck"):
            await sandbox.exec(["true"])
        assert made(state) == []
        (state / "fail-run").unlink()
        assert (await sandbox.exec(["true"])).rc == 0
        await sandbox.terminate()
        assert made(state) == []

    async def test_a_start_that_is_slow_or_cancelled_leaves_no_container(self, state):
        (state / "slow-run").write_text("30")
        provider = ContainerProvider(SandboxSettings(start_timeout_s=1), "docker")
        slow = await provider.create("slow", {"run": "r"})
        with pytest.raises(SandboxError, match="must answer"):
            await slow.exec(["true"])
        assert made(state) == []
        cancelled = await provider.create("cancelled", {"run": "r"})
        work = asyncio.create_task(cancelled.exec(["true"]))
        while not made(state):
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert made(state) == []

    async def test_containers_of_a_dead_controller_are_reaped_by_their_label(self, state, provider):
        run = f"dead-{uuid.uuid4().hex}"
        other = ContainerProvider(SandboxSettings(), "docker")  # stands for one in another process
        for number in range(2):
            sandbox = await other.create(f"{run}/{number}", {"run": run})
            await sandbox.exec(["true"])
        labels = json.loads((state / f"{made(state)[0]}.json").read_text())["labels"]
        assert labels["headway.run"] == run
        assert labels["headway.owner"].endswith(f":{os.getpid()}")
        assert await provider.reap("another") == 0
        assert await provider.end(f"{run}/0", {"run": run})
        assert not await provider.end(f"{run}/0", {"run": run})
        assert await provider.reap(run) == 1
        assert made(state) == []

    async def test_preflight_says_what_is_missing(self, state, provider, monkeypatch):
        nothing = ContainerProvider(SandboxSettings(container_image="no/such:image"), "docker")
        with pytest.raises(SandboxUnavailableError, match="docker pull no/such:image"):
            await nothing.preflight()
        (state / "down").touch()
        with pytest.raises(SandboxUnavailableError, match=r"does not answer.*systemctl start docker"):
            await provider.preflight()
        monkeypatch.setenv("PATH", "/nowhere")
        with pytest.raises(SandboxUnavailableError, match="not on PATH"):
            await provider.preflight()

    async def test_a_machine_that_cannot_be_swept_is_ended_and_its_command_not_believed(self, state, sandbox):
        await sandbox.exec(["true"])
        record = state / f"{sandbox.machine.name}.json"
        first = json.loads(record.read_text())["first"]
        work = asyncio.create_task(sandbox.exec(["sleep", "30"]))
        while len(box.processes(first)) < 3:
            await asyncio.sleep(0.01)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await work
        assert made(state) == []

    async def test_a_controller_in_the_same_pid_namespace_is_never_swept(self, state, sandbox, monkeypatch):
        await sandbox.exec(["true"])
        first = json.loads((state / f"{sandbox.machine.name}.json").read_text())["first"]
        link = os.readlink(f"/proc/{first}/ns/pid")
        monkeypatch.setattr("os.readlink", lambda *_args, **_more: link)
        with pytest.raises(SandboxError, match="pid namespace"):
            await sandbox.exec(["true"])


@standin
async def test_podman_has_flags_of_its_own_and_counts_files(state):
    provider = ContainerProvider(SandboxSettings(wall_s=20), "podman")
    levels = {guarantee.name: guarantee.level for guarantee in await provider.preflight()}
    assert (levels["files"], levels["network"]) == ("best-effort", "enforced")
    sandbox = await provider.create("files", {"run": "r"})
    code = "import time\nfor i in range(1100): open(str(i), 'w').close()\ntime.sleep(9)"
    result = await sandbox.exec([*PYTHON, code])
    assert (result.rc, result.cause) == (None, "inodes")
    assert await provider.reap("r") == 1
    assert made(state) == []


def _real_engine():
    for engine in ("podman", "docker"):
        if shutil.which(engine) is not None:
            done = subprocess.run([engine, "image", "inspect", IMAGE], capture_output=True, check=False)
            if done.returncode == 0:
                return engine
    return None


@pytest.mark.skipif(_real_engine() is None, reason=f"no container engine with the image {IMAGE} runs here")
class TestARealEngine(_Pausing):
    @pytest.fixture
    def provider(self):
        return ContainerProvider(SandboxSettings(wall_s=20), _real_engine())

    def destroy(self, provider, sandbox):
        subprocess.run([_real_engine(), "kill", sandbox.machine.name], check=True, capture_output=True)

    async def test_a_fork_bomb_ends_with_its_cause_and_the_sandbox_goes_on(self, sandbox):
        code = "import os, time\nwhile 1:\n  if os.fork() == 0: time.sleep(9)"
        result = await sandbox.exec([*PYTHON, code], limits=ExecLimits(wall_s=5))
        assert result.cause == "pids"
        assert (await sandbox.exec(["echo", "still good"])).stdout == "still good\n"
