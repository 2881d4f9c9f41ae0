"""A failure of the sandboxes is never a reward, whatever an environment catches, and ends no worker."""

import asyncio
import contextlib
import functools

import pytest

from headway.core.commands import ReleaseSandbox
from headway.core.errors import SandboxError, SandboxRefusedError, SandboxUnavailableError, UserError
from headway.core.events import (
    RolloutFailed,
    SandboxLost,
    SandboxReady,
    SandboxRefused,
    SandboxReleased,
    SandboxWanted,
    ScoreFailed,
    ToolEnded,
)
from headway.core.protocols import Outcome
from headway.core.records import Message, Reward
from tests.unit.host_stage import opened
from tests.unit.rollout_parts import ScriptedEngine
from tests.unit.test_environments_sandbox_events import Told, lease_on
from tests.unit.test_sandbox_pool import until

CREDENTIALS = SandboxUnavailableError("the service does not take the credentials", remedy="Run it again")
REFUSED_FILE = OSError(24, "Too many open files")


class Stuck(Told):
    """A sandbox whose calls raise what they are told to, or wait."""

    def __init__(self, **raises):
        super().__init__()
        self.raises = raises

    async def exec(self, argv, **rest):
        return await self._do("exec", functools.partial(super().exec, argv))

    async def terminate(self):
        return await self._do("terminate", super().terminate)

    async def _do(self, name, work):
        if isinstance(error := self.raises.get(name), asyncio.Event):
            await error.wait()
        elif error is not None:
            raise error
        return await work()


class Making:
    """A provider whose creations wait for `go`, and then raise or give what `gives` has next."""

    snapshots = False

    def __init__(self, *gives):
        self.gives, self.go, self.num_asked = list(gives), asyncio.Event(), 0

    async def create(self, sandbox_id, labels):
        self.num_asked += 1
        await self.go.wait()
        given = self.gives.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    async def alive(self, sandbox_id):
        return True

    async def list(self, labels):
        return []


@pytest.fixture
def stage(tmp_path, renderer):
    engine = ScriptedEngine(decode=renderer.decode)

    def on(rollout, score=None, **settings):
        return opened(tmp_path, {"replica-0": engine}, renderer, rollout, score, **settings)

    return on


async def stubborn(chat, sandbox):
    """Says something, and takes whatever its sandbox does for an answer."""
    await chat.say([Message("user", "hi")])
    with contextlib.suppress(Exception):
        await sandbox.exec(["true"])
    return Outcome({"score": 0})


def test_what_only_a_person_can_mend_is_bad_input_and_a_failure_of_the_infrastructure():
    assert isinstance(CREDENTIALS, UserError)
    assert isinstance(CREDENTIALS, SandboxError)


@pytest.mark.parametrize("raised", [CREDENTIALS, REFUSED_FILE], ids=["credentials", "files"])
@pytest.mark.parametrize("where", ["create", "exec"])
async def test_no_rollout_is_scored_for_it_and_the_worker_goes_on(stage, raised, where):
    provider = Making(raised if where == "create" else Stuck(exec=raised), Told())
    provider.go.set()
    async with stage(stubborn, provider=provider) as s:
        s.start()
        failed = await s.until(RolloutFailed)
        assert (failed.owner, failed.cause) == ("infrastructure", "sandbox")
        s.start(attempt=2)
        await s.until(SandboxReady, 1 if where == "create" else 2)


async def test_a_verifiers_is_no_reward_either(stage):
    async def hello(chat, sandbox):
        await chat.say([Message("user", "hi")])
        return Outcome({})

    async def score(outcome, sandbox):
        with contextlib.suppress(Exception):
            await sandbox.exec(["true"])
        return Reward(0.0)

    provider = Making(CREDENTIALS)
    provider.go.set()
    async with stage(hello, score, provider=provider) as s:
        scored = await s.run_and_score()
    assert isinstance(scored, ScoreFailed)
    assert scored.cause == "sandbox"


@pytest.mark.parametrize("raised", [CREDENTIALS, REFUSED_FILE, ValueError("a fault of the SDK")], ids=str)
async def test_one_that_cannot_be_ended_ends_no_worker(raised):
    lease, told = lease_on(Made(Stuck(terminate=raised)))
    await lease.exec(["x"])
    await lease.release()
    lost = told[-1]
    assert (type(lost), lost.failure) == (SandboxLost, "end")


class Made:
    snapshots = False

    def __init__(self, sandbox):
        self.sandbox = sandbox

    async def create(self, sandbox_id, labels):
        return self.sandbox

    async def alive(self, sandbox_id):
        return True


async def test_a_start_that_outlives_its_deadline_fails_the_rollout_whatever_it_catches(stage):
    provider, sandbox = Making(Told()), "r1.1"
    async with stage(stubborn, provider=provider) as s:
        s.start()
        await until(lambda: provider.num_asked)
        s.host.release(ReleaseSandbox("r1", 1, sandbox))  # as the scheduler does at deadlines.sandbox_s
        for _ in range(5):
            await asyncio.sleep(0)
        assert not [event for event in s.events if isinstance(event, SandboxReleased)]  # it still starts
        provider.go.set()
        failed = await s.until(RolloutFailed)
        kinds = s.kinds()
    assert (failed.owner, "deadlines.sandbox_s" in failed.message) == ("infrastructure", True)
    assert (kinds.count("SandboxReleased"), kinds.count("SandboxReady")) == (1, 0)
    assert kinds.index("SandboxReleased") < kinds.index("RolloutFailed")


async def test_a_command_that_was_cut_off_by_the_scheduler_is_no_answer(stage):
    running = asyncio.Event()
    provider = Making(Stuck(exec=running))
    provider.go.set()
    async with stage(stubborn, provider=provider) as s:
        s.start()
        await s.until(SandboxReady)
        for _ in range(5):
            await asyncio.sleep(0)
        s.host.release(ReleaseSandbox("r1", 1, "r1.1"))
        await s.until(SandboxReleased)
        running.set()
        failed = await s.until(RolloutFailed)
    assert failed.owner == "infrastructure"


async def test_an_environment_may_end_its_own_sandbox():
    lease, told = lease_on(Made(Told()))
    await lease.exec(["x"])
    await lease.terminate()
    lease.must_be_intact()
    with pytest.raises(SandboxError, match="released"):
        await lease.exec(["x"])
    lease.must_be_intact()
    assert isinstance(told[-1], SandboxReleased)


async def test_an_end_while_it_starts_that_fails_is_told_as_lost_when_the_start_is_over():
    provider = Making(Stuck(terminate=SandboxError("stuck")))
    lease, told = lease_on(provider)
    work = asyncio.create_task(lease.exec(["x"]))
    await until(lambda: provider.num_asked)
    await lease.release()
    assert [type(event) for event in told] == [SandboxWanted]
    provider.go.set()
    with pytest.raises(SandboxError, match=r"deadlines\.sandbox_s"):
        await work
    assert [(type(event), event.failure) for event in told[1:]] == [(SandboxLost, "end")]


async def test_a_refused_start_counts_as_waiting_once():
    refused = SandboxRefusedError("quota")
    provider, now = Making(refused, refused, Told()), [100.0]
    lease, told = lease_on(provider)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.environments.lease.stopwatch", lambda: now[0])
        work = asyncio.create_task(lease.exec(["x"]))
        for number in (1, 2):
            await until(lambda number=number: provider.num_asked == number)
            now[0] += 1.0  # until it is refused
            provider.go.set()
            await until(lambda number=number: sum(isinstance(e, SandboxRefused) for e in told) == number)
            provider.go.clear()
            now[0] += 10.0  # until it is granted again
            assert lease.outside_s == lease.waited_s == 11.0 * number
            lease.grant()
        await until(lambda: provider.num_asked == 3)
        now[0] += 0.5
        provider.go.set()
        await work
    assert (lease.waited_s, lease.start_s, lease.outside_s) == (22.0, 0.5, 22.5)


async def test_a_command_whose_caller_is_cancelled_is_no_failure_of_the_infrastructure():
    lease, told = lease_on(Made(Stuck(exec=asyncio.Event())))
    work = asyncio.create_task(lease.exec(["x"]))
    await until(lambda: any(isinstance(event, SandboxReady) for event in told))
    for _ in range(3):
        await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [event.cause for event in told if isinstance(event, ToolEnded)] == ["killed"]
    await lease.release()
