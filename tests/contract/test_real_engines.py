"""The container providers keep the contract over the real engines that run here: `make test-containers`.

Each engine gets an image made of this machine's own programs (standins/engine_image.py), since a registry may
be out of reach; it is taken away at the end. Where an engine does not run, the reason is in its words.
"""

# ruff: noqa: ASYNC110, ASYNC220 - other processes are watched by looking again, and asked

import asyncio
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

import headway
from headway.core.protocols import ExecLimits
from headway.sandbox.containers import ContainerProvider
from headway.sandbox.pool import PooledProvider
from headway.sandbox.settings import SandboxSettings
from tests.contract.container_contract import ContainerBasics, Pausing, RelayBasics
from tests.contract.sandbox_contract import PYTHON
from tests.contract.serving_contract import ServingContract
from tests.standins import engine_image
from tests.unit.test_sandbox_hostile_table import CASES, LIMITS

pytestmark = pytest.mark.slow
ULIMITS = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]  # what an ordinary process may give
NURSERY = Path(__file__).parents[1] / "unit" / "sandbox_nursery.py"


def asked(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", params=["podman", "docker"])
def engine(request):
    """An engine that runs here, as the providers name it."""
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    done = asked(name, "ps", "--quiet")
    if done.returncode:
        pytest.skip(f"{name} does not answer: {done.stderr.strip()}")
    return name


@contextlib.contextmanager
def imported(engine, name, extra=()):
    """An image of this machine's programs that the engine has for the length of a block, and can run."""
    with tempfile.TemporaryFile() as archive:
        engine_image.write(archive, extra)
        archive.seek(0)
        subprocess.run([engine, "import", "-", name], stdin=archive, check=True, capture_output=True)
    try:
        done = asked(engine, "run", "--rm", "--network", "none", *ULIMITS, name, "true")
        if done.returncode:
            pytest.skip(f"{engine} runs no container: {done.stderr.strip()}")
        yield
    finally:
        subprocess.run([engine, "rmi", "--force", name], check=True, capture_output=True)


@pytest.fixture(scope="module")
def image(engine):
    """An image of this machine's programs."""
    name = f"headway-test:{uuid.uuid4().hex[:12]}"
    with imported(engine, name):
        yield name


@pytest.fixture
def provider(engine, image):
    yield ContainerProvider(SandboxSettings(wall_s=20, container_image=image), engine)
    assert held(engine) == []


def held(engine, pid=None, **labels):
    """Return ids of the containers that a process made, this one by default, and that are still there."""
    labels = {"owner": f"{socket.gethostname()}:{pid or os.getpid()}"} | labels
    filters = [word for key, value in labels.items() for word in ("--filter", f"label=headway.{key}={value}")]
    done = subprocess.run(
        [engine, "ps", "--all", "--quiet", *filters], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


class TestARealEngine(Pausing, ContainerBasics):
    tells_usage = True  # from its control group

    def destroy(self, provider, sandbox):
        command = [provider._engine, "rm", "--force", sandbox.machine.name]  # podman kills no paused one
        subprocess.run(command, check=True, capture_output=True)

    async def test_a_file_limit_ends_with_its_cause(self, engine, sandbox):
        code = "import time\nfor i in range(1100): open(str(i), 'w').close()\ntime.sleep(9)"
        result = await sandbox.exec([*PYTHON, code])
        assert (result.rc, result.cause) == (1 if engine == "docker" else None, "inodes")

    async def test_a_fork_bomb_ends_with_its_cause_and_the_sandbox_goes_on(self, sandbox):
        code = "import os, time\nwhile 1:\n  if os.fork() == 0: time.sleep(9)"
        result = await sandbox.exec([*PYTHON, code], limits=ExecLimits(wall_s=5))
        assert result.cause == "pids"
        assert (await sandbox.exec(["echo", "still good"])).stdout == "still good\n"

    @pytest.mark.parametrize("paused", [False, True])
    async def test_containers_of_a_dead_controller_are_reaped_by_their_label(self, provider, paused):
        run = f"dead-{uuid.uuid4().hex}"
        other = ContainerProvider(provider.settings, provider._engine)  # stands for one in another process
        for number in range(2):
            sandbox = await other.create(f"{run}/{number}", {"run": run})
            await sandbox.write("file", b"x")
            if paused:
                await sandbox.pause()
        assert len(held(provider._engine, run=run)) == 2
        assert await provider.reap("another") == 0
        assert await provider.end(f"{run}/0", {"run": run})
        assert not await provider.end(f"{run}/0", {"run": run})
        assert await provider.reap(run) == 1

    async def test_a_start_that_is_cut_off_at_any_moment_leaves_no_container(self, engine, provider):
        for number in range(10):
            sandbox = await provider.create(f"cut/{number}", {"run": "cut"})
            work = asyncio.create_task(sandbox.exec(["true"]))
            await asyncio.sleep(0.04 * number)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            await sandbox.terminate()
            assert held(engine) == []
        hasty = ContainerProvider(dataclasses.replace(provider.settings, start_timeout_s=0.05), engine)
        with pytest.raises(Exception, match="must answer within"):
            await (await hasty.create("hasty", {"run": "cut"})).exec(["true"])
        assert held(engine) == []

    async def test_warm_ones_are_made_ahead_and_handed_out_once(self, engine, provider):
        pool = PooledProvider(provider, max_live=4, warm=2, run_id="warm")
        async with asyncio.TaskGroup() as group:
            running = group.create_task(pool.run())
            while pool.stats().num_ready < 2:
                await asyncio.sleep(0.02)
            assert len(held(engine, run="warm")) == 2
            sandbox = await pool.create("a", {"run": "warm"})
            assert (await sandbox.exec(["echo", "x"])).stdout == "x\n"
            await sandbox.terminate()
            running.cancel()


class TestARealEngineServes(ServingContract, RelayBasics):
    pass


# What these expect is of provider local: its own root and filter, a tmpfs with a limit on files, a smaller
# /dev/shm, the end of all for the memory of several (here one of them is killed, and the command goes on).
OF_LOCAL = {
    "a million files", "a million folders", "a /dev/shm balloon", "a heap balloon of many processes",
    "files of the host", "the memory of pid 1", "kernel surface", "namespaces", "a copy that is set-uid",
    "secrets in the environment", "other processes",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in CASES if name not in OF_LOCAL])
async def test_a_hostile_program_ends_as_it_should(name, engine, image, monkeypatch):
    monkeypatch.setenv("HEADWAY_TEST_SECRET", "s3cret")
    code, cause, rc, stdout = CASES[name]
    sandbox = await ContainerProvider(SandboxSettings(**LIMITS, container_image=image), engine).create(
        "hostile", {"run": "hostile"}
    )
    try:
        limits = ExecLimits(wall_s=1 if cause == "wall" else 30, output_bytes=4096)
        result = await sandbox.exec([*PYTHON, code], limits=limits)
        assert (result.cause, result.rc) == (cause, rc), result
        if stdout is not None:
            assert result.stdout == stdout, result
        again = await sandbox.exec(["sh", "-c", "echo again; ls -A /tmp /dev/shm | grep -v : | tr -d '\\n'"])
        assert again.stdout == "again\n"
    finally:
        await sandbox.terminate()


async def test_killed_controllers_leave_no_container(engine, image, tmp_path):
    env = os.environ | {"PYTHONPATH": str(Path(headway.__file__).parent.parent)}
    moments = random.Random("containers")
    command = [sys.executable, str(NURSERY), str(tmp_path)]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nursery:
        for number in range(8):
            nursery.stdin.write(f"{engine}:guarded:{image}\n".encode())
            nursery.stdin.flush()
            pid = int(nursery.stdout.readline())
            await asyncio.sleep(0.5 * number * moments.random())
            os.kill(pid, signal.SIGKILL)
            since = time.monotonic()
            while left := [*held(engine, pid), *(tmp_path / "leases").glob("[!.]*")]:
                assert time.monotonic() - since < 60, left
                await asyncio.sleep(0.1)
        nursery.stdin.close()
