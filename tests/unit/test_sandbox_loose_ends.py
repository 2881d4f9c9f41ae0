"""Sandboxes that are cut off in the middle: descriptors, names and processes that must not be left over."""

import asyncio
import os
import signal
import textwrap

import pytest

from headway.core.errors import SandboxError
from headway.core.protocols import ExecLimits
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.local import LocalProvider
from headway.sandbox.settings import SandboxSettings
from headway.sandbox.store import Store
from tests.unit.test_sandbox_first_process import below


@pytest.fixture
async def provider():
    provider = LocalProvider(SandboxSettings(work_mb=1, max_live=64, start_timeout_s=10))
    yield provider
    provider.close()


@pytest.fixture
async def sandbox(provider):
    sandbox = await provider.create("s", {"run": "r"})
    yield sandbox
    await sandbox.terminate()


def num_open():
    return len(os.listdir("/proc/self/fd"))


async def test_a_snapshot_under_way_when_its_sandbox_ends_reads_no_other_folder(
    provider, sandbox, tmp_path, monkeypatch
):
    await sandbox.write("file", b"x")
    loop, begun, go_on, found = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event(), []
    take = Store.take

    def slow(store, root, *rest):
        found.append(os.fstat(root))
        loop.call_soon_threadsafe(begun.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        found.append(os.fstat(root))
        return take(store, root, *rest)

    monkeypatch.setattr(Store, "take", slow)
    snapshot = asyncio.create_task(provider.snapshot(sandbox.id, tmp_path / "store", {}))
    await begun.wait()
    ending = asyncio.create_task(sandbox.terminate())
    cell = sandbox._cell
    async with asyncio.timeout(20):
        while cell.alive:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.05)
    others = [os.open(tmp_path, os.O_RDONLY) for _ in range(8)]  # the numbers that are free now
    go_on.set()
    await snapshot
    await ending
    for fd in others:
        os.close(fd)
    assert found[0] == found[1]


async def test_ended_sandboxes_leave_no_descriptor(provider):
    async def used(number):
        sandbox = await provider.create(f"s{number}", {"run": "r"})
        await sandbox.exec(["true"])
        await sandbox.terminate()

    await used(0)
    before = num_open()
    for number in range(1, 4):
        await used(number)
    assert num_open() == before


async def test_a_program_that_could_not_be_asked_for_leaves_no_name_and_no_descriptor(sandbox):
    await sandbox.prepare()
    before = num_open()
    for argv in (["sleep", "\0"], [], ["sleep", "x" * 200_000]):
        for stdin in (b"", b"x" * 100_000):
            with pytest.raises(SandboxError):
                await sandbox.spawn("name", argv, stdin=stdin)
            if argv:
                assert (await sandbox.exec(argv, stdin=stdin)).rc == 126
    with pytest.raises(SandboxError, match="must have been spawned"):
        await sandbox.poll("name")
    assert num_open() == before
    await sandbox.spawn("name", ["sleep", "60"])
    assert (await sandbox.poll("name")).running


async def test_a_command_that_is_cancelled_twice_is_gone_before_the_next_one(sandbox):
    await sandbox.exec(["true"])
    for _ in range(20):
        task = asyncio.create_task(sandbox.exec(["sleep", "60"], limits=ExecLimits(wall_s=70)))
        await asyncio.sleep(0.005)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await sandbox.exec(["echo", "x"])).stdout == "x\n"


async def test_a_sandbox_that_does_not_end_in_order_is_forgotten(provider, monkeypatch):
    sandbox = await provider.create("s", {"run": "r"})
    await sandbox.prepare()
    end = sandbox._cell.end

    async def failing():
        await end()
        raise SandboxError("a killed sandbox was still there")

    monkeypatch.setattr(sandbox._cell, "end", failing)
    with pytest.raises(SandboxError, match="still there"):
        await sandbox.terminate()
    assert await provider.list({}) == []
    again = await provider.create("s", {"run": "r"})
    await again.terminate()


async def test_a_helper_that_takes_no_request_is_named_after_a_while():
    provider = LocalProvider(SandboxSettings(start_timeout_s=1.5))
    zygote = await provider.zygote()
    _, process = zygote._finalizer.peek()[2]
    pids = [process.pid, *below(process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        tried = await asyncio.gather(*(zygote.make() for _ in range(400)), return_exceptions=True)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        provider.close()
    said = {str(error) for error in tried}
    assert all(isinstance(error, SandboxError) for error in tried)
    assert any(
        f"this process waited for the sandboxes' helper (process {process.pid})" in text for text in said
    )


async def test_what_cannot_be_written_is_an_error_with_path_and_remedy(sandbox):
    with pytest.raises(SandboxError) as caught:
        await sandbox.write("deep/file", b"x" * (2 << 20))
    assert (caught.value.value, "sandbox.work_mb" in caught.value.remedy) == ("deep/file", True)
    await sandbox.write("deep/file", b"small")
    for path, data in (("text", "not bytes"), ("\ud800", b""), ("n" * 300, b"")):
        with pytest.raises(SandboxError):
            await sandbox.write(path, data)
        with pytest.raises(SandboxError):
            await sandbox.upload(path, data)
    assert await sandbox.read("deep/file") == b"small"


MAPPED = """
import mmap
with open("file", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
    assert memory[:6] == b"before"  # the page is there to be written to, and nothing tells of it
    memory[:5] = b"after"
"""


@pytest.mark.parametrize("kind", ["local", "bubblewrap"])
async def test_what_was_written_through_a_mapping_is_in_the_next_snapshot(kind, tmp_path):
    """It changes neither size nor time of a file in memory."""
    if kind == "local":
        provider = LocalProvider(SandboxSettings())
    else:
        provider = BubblewrapProvider(SandboxSettings(directory=f"/dev/shm/headway-test-{os.getpid()}"))
    sandbox = await provider.create("s", {"run": "r"})
    try:
        await sandbox.write("file", b"before" * 1000)
        await asyncio.sleep(0.1)
        first = await provider.snapshot("s", tmp_path, {})
        assert (await sandbox.exec(["python3", "-I", "-c", textwrap.dedent(MAPPED)])).rc == 0
        second = await provider.snapshot("s", tmp_path, {})
        assert second != first
        other = await provider.restore("other", {"run": "r"}, tmp_path, second)
        assert (await other.read("file"))[:8] == b"afterebe"
        await other.terminate()
    finally:
        await sandbox.terminate()
        if kind == "local":
            provider.close()
        else:
            os.rmdir(provider.root())


async def test_a_kill_that_is_cut_off_signals_nobody_by_a_number_of_old(tmp_path, monkeypatch):
    """Of a long-lived process of bubblewrap: the number of its process handle may be of another by then."""
    provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path)))
    sandbox = await provider.create("s", {"run": "r"})
    send, sent = signal.pidfd_send_signal, []
    monkeypatch.setattr(
        "headway.sandbox.process.signal.pidfd_send_signal",
        lambda fd, *rest: sent.append(os.readlink(f"/proc/self/fd/{fd}")) or send(fd, *rest),
    )
    for number in range(8):
        await sandbox.spawn("it", ["sleep", "600"])
        process = sandbox._spawned["it"]
        killing = asyncio.create_task(sandbox.kill("it"))
        for _ in range(number + 1):
            await asyncio.sleep(0)
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)
        await sandbox.kill("it")
        assert (await sandbox.poll("it")).cause == "killed"
        assert process.tree._process.returncode is not None
    assert set(sent) == {"anon_inode:[pidfd]"} or not sent
    await sandbox.terminate()
    assert os.listdir(tmp_path) == []


async def test_a_command_that_is_cancelled_twice_is_gone_with_bubblewrap_too(tmp_path):
    provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path)))
    sandbox = await provider.create("s", {"run": "r"})
    await sandbox.exec(["true"])
    for _ in range(3):
        running = asyncio.create_task(sandbox.exec(["sleep", "600"]))
        async with asyncio.timeout(20):
            while sandbox._tree is None or sandbox._tree.init is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        tree = sandbox._tree
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0)
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
        assert tree._process.returncode is not None
    await sandbox.terminate()


async def test_a_sandbox_that_has_failed_is_not_alive_although_its_processes_still_end(provider, sandbox):
    await sandbox.prepare()
    assert await provider.alive(sandbox.id)
    sandbox._cell._fail(SandboxError("its first process ended"))  # what its socket's end does
    assert not await provider.alive(sandbox.id)


@pytest.mark.parametrize("limits", [{"wall_s": 0}, {"wall_s": float("nan")}, {"output_bytes": -1}])
def test_what_is_no_limit_is_refused(limits):
    with pytest.raises(ValueError, match="limits must be above 0 seconds and at least 0 bytes"):
        ExecLimits(**limits)
