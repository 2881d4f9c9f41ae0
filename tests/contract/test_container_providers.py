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
from headway.sandbox.containers import ContainerProvider
from headway.sandbox.settings import SandboxSettings
from tests.contract.container_contract import ContainerBasics, Pausing, RelayBasics
from tests.contract.sandbox_contract import PYTHON
from tests.contract.serving_contract import ServingBasics, ServingContract
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


class _OverAStandin(Pausing):
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
class TestDockerServes(ServingBasics, RelayBasics):
    """A few of them, for each command takes a while here; the slow class below has all."""

    test_large_streams_pass_both_ways_at_the_readers_pace = None
    test_a_handler_that_raises_is_told_at_the_end_and_the_others_go_on = None

    @pytest.fixture
    def provider(self, state):
        return ContainerProvider(SandboxSettings(wall_s=20), "docker")


@standin
@pytest.mark.slow
class TestDockerServesAll(ServingContract):
    @pytest.fixture
    def provider(self, state):
        return ContainerProvider(SandboxSettings(wall_s=20), "docker")


@standin
class TestDocker(_OverAStandin, ContainerBasics):
    """But for what takes many commands and is remote.py's, which Modal's stand-in has too; see below."""

    test_an_upload_stays_where_it_is_put = None
    test_equal_states_are_stored_once_and_a_change_is_never_missed = None
    test_a_download_follows_nothing_and_is_bounded = None

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
@pytest.mark.slow
class TestDockerLong(_OverAStandin):
    """What takes many commands, with all else of every provider's contract."""


@standin
async def test_podman_is_asked_for_no_more_than_this_process_may_give(state):
    script = """
import asyncio, resource
from headway.sandbox.containers import ContainerProvider
from headway.sandbox.settings import SandboxSettings
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 600))
resource.setrlimit(resource.RLIMIT_NPROC, (9000, 9000))
async def main():
    sandbox = await ContainerProvider(SandboxSettings(), "podman").create("a", {"run": "r"})
    print((await sandbox.exec(["sh", "-c", "echo ran"])).stdout)
    print(*sandbox.machine.command())
    await sandbox.terminate()
asyncio.run(main())
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], env=env, capture_output=True, text=True
    )
    assert done.stdout.startswith("ran\n"), done.stderr
    assert " --ulimit nofile=600:600 --ulimit nproc=9000:9000 " in done.stdout
    assert made(state) == []


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
