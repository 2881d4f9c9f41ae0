"""What a lease tells of its sandbox: the phases of its start, what its commands and its end cost."""

import asyncio

import pytest

from headway.core.errors import SandboxError
from headway.core.events import SandboxLost, SandboxReady, SandboxReleased, SandboxWanted, ToolEnded
from headway.core.protocols import ExecResult, SandboxStats, Usage
from headway.core.records import SandboxUse
from headway.environments.lease import SandboxLease
from headway.sandbox.local import LocalProvider
from headway.sandbox.settings import SandboxSettings


class Told:
    """A sandbox whose provider measures, in numbers of our own; `broken` names the call that fails."""

    warm = True
    usage = Usage(0.25, 1000)
    holds = SandboxStats(cpu_s=0.75, memory_bytes=500, disk_bytes=4096, num_files=3)

    def __init__(self, broken=""):
        self.broken, self.made, self.ended = broken, 0, 0

    async def prepare(self):
        self.made += 1
        if self.broken == "prepare":
            raise SandboxError("a sandbox must be ready within sandbox.start_timeout_s")

    async def exec(self, argv, **rest):
        return ExecResult(0, None, "", "", False, "exit", 0.0, self.usage)

    async def stats(self):
        if self.broken == "stats":
            await asyncio.sleep(3600)

        return self.holds

    async def terminate(self):
        self.ended += 1
        if self.broken == "terminate":
            raise SandboxError("it is still there")


class Provider:
    snapshots = False

    def __init__(self, sandbox):
        self.sandbox = sandbox

    async def create(self, sandbox_id, labels):
        return self.sandbox

    async def alive(self, sandbox_id):
        return True


def lease_on(provider, purpose="rollout"):
    """Return a lease that is granted what it wants, and the list of what it tells."""
    told = []

    def tell(event):
        told.append(event)
        if isinstance(event, SandboxWanted):
            lease.grant()

    lease = SandboxLease("s", "r", 1, purpose, provider, "run", tell)
    return lease, told


async def test_commands_and_the_end_tell_what_the_provider_measured():
    sandbox = Told()
    lease, told = lease_on(Provider(sandbox))
    await lease.exec(["x"])
    await lease.exec(["x"])
    await lease.release()
    ready, first, second, released = told[1:]
    assert (type(ready), ready.origin, sandbox.made) == (SandboxReady, "warm", 1)
    assert [(call.call, call.cpu_s, call.memory_bytes) for call in (first, second)] == [
        (0, 0.25, 1000), (1, 0.25, 1000),
    ]  # fmt: skip
    assert first.overhead_s == first.duration_s  # the command ran for 0 s
    assert released.use == SandboxUse(cpu_s=0.75, memory_bytes=1000, disk_bytes=4096, num_files=3)
    assert released.end_s >= 0


async def test_a_sandbox_that_does_not_tell_ends_all_the_same(monkeypatch):
    monkeypatch.setattr("headway.environments.usage._TOLD_WITHIN_S", 0.01)
    sandbox = Told("stats")
    lease, told = lease_on(Provider(sandbox))
    await lease.exec(["x"])
    await lease.release()
    assert told[-1].use == SandboxUse(cpu_s=0.25, memory_bytes=1000)
    assert sandbox.ended == 1


async def test_a_release_that_is_cancelled_while_it_asks_ends_the_sandbox():
    sandbox = Told("stats")
    lease, _ = lease_on(Provider(sandbox))
    await lease.exec(["x"])
    work = asyncio.create_task(lease.release())
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert sandbox.ended == 1


@pytest.mark.parametrize(("broken", "failure"), [("prepare", "start_timeout"), ("terminate", "end")])
async def test_a_failure_has_a_short_name(broken, failure):
    sandbox = Told(broken)
    lease, told = lease_on(Provider(sandbox))
    if broken == "prepare":
        with pytest.raises(SandboxError):
            await lease.exec(["x"])
        assert sandbox.ended == 1  # nothing is left of one that did not start
    else:
        await lease.exec(["x"])
    await lease.release()
    lost = [event for event in told if isinstance(event, SandboxLost)]
    assert [event.failure for event in lost] == [failure]


async def test_the_start_of_a_local_sandbox_is_no_part_of_its_first_command():
    provider = LocalProvider(SandboxSettings(preload_python=False))
    lease, told = lease_on(provider)
    try:
        result = await lease.exec(["sleep", "0.2"])
        await lease.release()
    finally:
        provider.close()
    wanted, ready, call, released = told
    assert [type(event) for event in told] == [SandboxWanted, SandboxReady, ToolEnded, SandboxReleased]
    assert (wanted.sandbox, ready.origin) == ("s", "new")
    assert ready.start_s > 0
    assert call.duration_s == pytest.approx(result.wall_s + call.overhead_s)
    assert released.end_s > 0
    assert await provider.list({}) == []


async def test_a_verifiers_commands_are_no_tool_calls():
    lease, told = lease_on(Provider(Told()), "verify")
    await lease.exec(["x"])
    await lease.release()
    assert [type(event) for event in told] == [SandboxWanted, SandboxReady, SandboxReleased]
    assert told[-1].use.memory_bytes == 1000


async def test_a_provider_that_says_nothing_but_0_told_nothing(monkeypatch):
    monkeypatch.setattr(Told, "usage", Usage())
    monkeypatch.setattr(Told, "holds", SandboxStats())
    lease, told = lease_on(Provider(Told()))
    await lease.exec(["x"])
    await lease.release()
    assert (told[2].cpu_s, told[2].memory_bytes, told[-1].use) == (None, None, None)
