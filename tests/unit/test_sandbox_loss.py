"""A sandbox that is lost is known before the model's next turn, and the queue tries the rollout again.

What the infrastructure did is no outcome and no reward, whatever the environment makes of it: one that
catches every exception included. Real sandboxes are killed under real rollouts, and what the host tells goes
to a real scheduler.
"""

import contextlib
import select
import shutil
import signal

import pytest
from tokenizers import Tokenizer

from headway.core.commands import Score, StartRollout
from headway.core.errors import SandboxError
from headway.core.events import (
    ReplicaJoined,
    RolloutEnded,
    RolloutFailed,
    RolloutParked,
    RunStarted,
    SandboxLost,
    Scored,
    ScoreFailed,
    TaskOffered,
    ToolEnded,
    TurnEnded,
    WorkerJoined,
)
from headway.core.notes import AttemptFailed
from headway.core.protocols import ExecResult, Outcome
from headway.core.records import Message, Reward
from headway.environments.generation import GenerationLimits
from headway.queue.scheduler import Scheduler
from headway.queue.settings import EvalSettings, QueueSettings, SchedulerSettings
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.local import LocalProvider
from headway.sandbox.settings import SandboxSettings
from tests.unit.host_stage import TASK, opened
from tests.unit.rollout_parts import ScriptedEngine

ROLLOUT = "t000000.0"
ASK = [Message("user", "hi")]


@pytest.fixture(params=["bubblewrap", "local"])
def provider(request, tmp_path):
    if request.param == "bubblewrap":
        yield BubblewrapProvider(SandboxSettings(directory=str(tmp_path / "sandboxes")))
        return
    provider = LocalProvider(SandboxSettings())
    yield provider
    provider.close()


def lose(provider):
    """Take away what the one live sandbox lives on."""
    (sandbox,) = provider._live.values()
    if isinstance(provider, BubblewrapProvider):
        shutil.rmtree(sandbox._folder)
        return
    signal.pidfd_send_signal(sandbox._cell._pid_fd, signal.SIGKILL)
    poll = select.poll()
    poll.register(sandbox._cell._pid_fd, select.POLLIN)
    assert poll.poll(5000)


@pytest.fixture
def engine(model_dir, renderer):
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    ids = tokenizer.encode("an answer<|im_end|>", add_special_tokens=False).ids
    return ScriptedEngine(lambda request: ids, decode=renderer.decode)


@pytest.fixture
def stage(tmp_path, engine, renderer, provider):
    def make(rollout, score=None, resume="restart"):
        limits = GenerationLimits(16, 512)
        engines = {"replica-0": engine}
        return opened(tmp_path, engines, renderer, rollout, score, limits, resume, provider=provider)

    return make


def asked_again(events):
    """Return the attempts and scores that a scheduler asks for when it hears these events of the rollout."""
    settings = SchedulerSettings(
        queue=QueueSettings(group_size=2, batch_size=2, bound=0), eval=EvalSettings(num_tasks=0)
    )
    scheduler = Scheduler(settings)
    first = [
        RunStarted(), WorkerJoined("trainer", "t"), WorkerJoined("environment", "e0"),
        ReplicaJoined("replica-0", 0, 0, 0, 8), TaskOffered(0, "train/0", 0),
    ]  # fmt: skip
    for event in first:
        scheduler.handle(event, 1.0)
    asked, failures = [], []
    for number, event in enumerate(events):
        commands, notes = scheduler.handle(event, 2.0 + number)
        asked += [c for c in commands if isinstance(c, (StartRollout, Score)) and c.rollout == ROLLOUT]
        failures += [note for note in notes if isinstance(note, AttemptFailed)]
    return asked, failures


def handed_to_recovery(events):
    """Whether the scheduler tries the rollout again, and scores nothing of the lost attempt."""
    asked, failures = asked_again(events)
    again = [(type(command), command.attempt) for command in asked] == [(StartRollout, 1)]
    return again and [(note.owner, note.rollout) for note in failures] == [("infrastructure", ROLLOUT)]


async def two_turns(chat, sandbox):
    await chat.say(ASK)
    await sandbox.exec(["sh", "-c", "echo 1 > state"])
    await chat.say(ASK)
    result = await sandbox.exec(["cat", "state"])
    return Outcome({"state": result.stdout})


async def test_lost_between_turns_it_is_handed_to_recovery_before_the_next_one(stage, provider, engine):
    async def lost_between(chat, sandbox):
        await chat.say(ASK)
        await sandbox.exec(["sh", "-c", "echo 1 > state"])
        lose(provider)
        await chat.say(ASK)
        return Outcome({})

    async with stage(lost_between) as s:
        s.start(ROLLOUT, 0)
        failed = await s.until(RolloutFailed)
    assert (failed.owner, failed.cause) == ("infrastructure", "sandbox")
    assert len(engine.requests) == 1  # the model was not asked on what is gone
    assert (await s.until(SandboxLost)).failure == "gone"
    assert handed_to_recovery(s.events)


async def test_lost_while_parked_it_is_handed_to_recovery_before_the_next_turn(stage, provider, engine):
    async with stage(two_turns) as s:
        engine.pause_at[f"{ROLLOUT}.0.1"] = 1
        s.start(ROLLOUT, 0)
        await engine.until_paused(f"{ROLLOUT}.0.1")
        s.park(ROLLOUT, 0)
        await s.until(RolloutParked)
        lose(provider)
        before = len(engine.requests)
        s.resume(ROLLOUT, 0)
        failed = await s.until(RolloutFailed)
    assert (failed.owner, failed.cause) == ("infrastructure", "sandbox")
    assert len(engine.requests) == before
    assert handed_to_recovery([event for event in s.events if "Roll" not in type(event).__name__] + [failed])


async def test_a_sandbox_lost_while_it_is_paused_is_not_resumed(provider):
    if not getattr(provider, "pauses", False):
        pytest.skip("this provider does not pause")
    sandbox = await provider.create("s", {"run": "r"})
    await sandbox.exec(["sh", "-c", "echo 1 > state"])
    await sandbox.pause()
    assert await provider.alive("s")
    lose(provider)
    assert not await provider.alive("s")
    with pytest.raises(SandboxError):
        await sandbox.resume()
    await sandbox.terminate()


async def test_a_rebuilt_sandbox_has_what_was_done_before_the_next_turn(stage, provider, engine):
    async with stage(two_turns, resume="replay") as s:
        engine.pause_at[f"{ROLLOUT}.0.1"] = 1
        s.start(ROLLOUT, 0)
        await engine.until_paused(f"{ROLLOUT}.0.1")
        lose(provider)
        engine.pause_at.clear()
        ended = await s.until(RolloutEnded)
        assert s.payload(ended.payload).outcome == {"state": "1\n"}
    assert [event.origin for event in s.events if type(event).__name__ == "SandboxReady"] == [
        "new",
        "rebuilt",
    ]


# --- infrastructure failures are never rewards


async def test_an_environment_that_catches_the_loss_scores_nothing(stage, provider):
    async def stubborn(chat, sandbox):
        await chat.say(ASK)
        await sandbox.exec(["true"])
        lose(provider)
        try:
            result = await sandbox.exec(["true"])
        except Exception:
            return Outcome({"passed": False})
        return Outcome({"passed": result.rc == 0})

    async with stage(stubborn) as s:
        s.start(ROLLOUT, 0)
        failed = await s.until((RolloutFailed, RolloutEnded))
    assert (failed.owner, failed.cause) == ("infrastructure", "sandbox")
    assert handed_to_recovery(s.events)


@pytest.mark.parametrize("way", ["raises", "says infra", "does not start"])
async def test_a_command_that_the_infrastructure_failed_is_no_outcome(stage, provider, monkeypatch, way):
    async def run(self, argv, **rest):
        if way == "says infra":
            return ExecResult(None, None, "", "the machine is gone", False, "infra", 0.1)
        raise SandboxError("the agent does not answer")

    async def create(sandbox_id, labels):
        raise SandboxError("a sandbox must be ready within sandbox.start_timeout_s")

    async def catches_all(chat, sandbox):
        await chat.say(ASK)
        if way == "does not start":
            monkeypatch.setattr(provider, "create", create)
        else:
            await sandbox.write("file", b"x")
            (made,) = provider._live.values()
            monkeypatch.setattr(type(made), "exec", run)
        with contextlib.suppress(SandboxError):
            await sandbox.exec(["true"])
        monkeypatch.undo()
        return Outcome({"passed": False})

    async with stage(catches_all) as s:
        s.start(ROLLOUT, 0)
        failed = await s.until((RolloutFailed, RolloutEnded))
    assert (failed.owner, failed.cause) == ("infrastructure", "sandbox")
    assert [event.cause for event in s.events if isinstance(event, ToolEnded)] in ([], ["infra"])
    assert handed_to_recovery(s.events)


@pytest.mark.parametrize("catches", [False, True])
async def test_a_verifier_whose_sandbox_is_lost_gives_no_reward(stage, provider, catches):
    async def run(chat, sandbox):
        await chat.say(ASK)
        return Outcome({})

    async def score(outcome, sandbox):
        await sandbox.exec(["true"])
        lose(provider)
        try:
            await sandbox.exec(["true"])
        except SandboxError:
            if not catches:
                raise
        return Reward(0.0, ("the tests failed",))

    async with stage(run, score) as s:
        s.start(ROLLOUT, 0)
        ended = await s.until(RolloutEnded)
        s.host.score(Score(ROLLOUT, 0, 1, TASK.id, ended.payload), TASK)
        failed = await s.until((Scored, ScoreFailed))
    assert (type(failed), failed.cause) == (ScoreFailed, "sandbox")
    asked, _ = asked_again(s.events)
    assert [(type(command), command.attempt) for command in asked][-1] == (Score, 0)  # the rollout is intact
    assert asked[-1].tries == 2


async def test_what_the_model_may_do_wrong_is_no_failure_of_the_infrastructure(stage, provider):
    async def works(chat, sandbox):
        await chat.say(ASK)
        seen = []
        for path in ("none", "../out", "/etc/passwd"):
            try:
                await sandbox.read(path)
            except SandboxError:
                seen.append(path)
        result = await sandbox.exec(["no-such-command"])
        return Outcome({"seen": seen, "failed": result.rc != 0})

    async with stage(works) as s:
        s.start(ROLLOUT, 0)
        ended = await s.until((RolloutFailed, RolloutEnded))
        assert s.payload(ended.payload).outcome == {"seen": ["none", "../out", "/etc/passwd"], "failed": True}


@pytest.mark.parametrize("argv", [[], ["python3", "-c", "print('a\0b')"]])
async def test_a_command_that_no_system_can_run_is_not_tried_again_for_ever(stage, argv):
    async def asks(chat, sandbox):
        await chat.say(ASK)
        await sandbox.exec(argv)

    async with stage(asks) as s:
        s.start(ROLLOUT, 0)
        failed = await s.until(RolloutFailed)
    assert failed.owner == "environment"
    assert [event for event in s.events if isinstance(event, TurnEnded)]
