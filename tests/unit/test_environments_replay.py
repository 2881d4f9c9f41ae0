"""A parked rollout goes on in another life, or on a rebuilt sandbox, as if nothing had happened."""

import asyncio
import shutil

import pytest
from tokenizers import Tokenizer

from headway.core.errors import SandboxError
from headway.core.events import (
    RolloutEnded,
    RolloutFailed,
    RolloutParked,
    SandboxLost,
    SandboxReady,
    SandboxWanted,
    ToolEnded,
    TurnEnded,
    VerdictGiven,
)
from headway.core.payload import PayloadWriter
from headway.core.protocols import Outcome
from headway.core.records import Message
from headway.environments.generation import GenerationLimits
from headway.environments.partial import read_partial
from headway.sandbox.store import Store
from tests.unit.host_stage import opened
from tests.unit.rollout_parts import ScriptedEngine

LIMITS = GenerationLimits(8, 512)
ASK = [Message("user", "hi")]


@pytest.fixture
def lives(tmp_path, model_dir, renderer):
    """Make lives: a stage and its own engine; all share payloads, tasks and the environment's answers."""
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))

    def life(name, rollout, resume="replay", version=0, **settings):
        def script(request):
            turn = int(request.request_id.split(".")[2])
            text = f"answer {turn}<|im_end|>"
            return tokenizer.encode(text, add_special_tokens=False).ids

        engine = ScriptedEngine(script, decode=renderer.decode)
        engine._version = (0, version)
        settings = {"limits": LIMITS, "resume": resume, "name": name} | settings
        return opened(tmp_path, {"replica-0": engine}, renderer, rollout, **settings), engine

    return life


async def work(chat, sandbox):
    """Three answers; between them files and commands whose results enter the next message."""
    seen = []
    await chat.say(ASK, max_tokens=7)
    await sandbox.write("log", b"start\n")
    for number in range(2):
        result = await sandbox.exec(["sh", "-c", f"echo {number} >> log; cat log"], stdin=b"x")
        seen.append(result.stdout)
        with pytest.raises(SandboxError):
            await sandbox.read("../out")
        reply = await chat.say([Message("user", result.stdout)])
        seen.append(reply.text)
    seen.append((await sandbox.read("log")).decode())
    return Outcome({"seen": seen})


def told(s, reference):
    """Everything that a payload says, but the names of versions."""
    payload = s.payload(reference)
    samples = [
        (list(x.token_ids), list(x.trainable), list(x.logprobs), x.temperature) for x in payload.samples
    ]
    return samples, payload.outcome, payload.transcript


@pytest.fixture
async def unbroken(lives):
    opening, _ = lives("whole", work)
    async with opening as s:
        s.start()
        ended = await s.until(RolloutEnded)
    return told(s, ended.payload), ended


POINTS = [(turn, tokens) for turn in range(3) for tokens in (0, 1, 4)]


@pytest.mark.parametrize(("turn", "tokens"), POINTS)
@pytest.mark.parametrize("resume", ["replay", "snapshot"])
async def test_another_life_ends_with_the_payload_of_an_unbroken_one(lives, unbroken, resume, turn, tokens):
    name = f"r1.1.{turn}"
    opening, engine = lives("first", work, resume)
    async with opening as s:
        parked = await s.parked_in(engine, name, tokens)
    partial = read_partial(s.payload_dir, parked.payload)
    assert len(partial.turns) == turn
    assert len(partial.record.calls) == [0, 3, 5][turn]
    assert bool(partial.record.snapshot) == (resume == "snapshot" and turn > 0)

    opening, engine = lives("second", work, resume, version=3)
    async with opening as s:
        s.start("r1", 2, partial=parked.payload)
        ended = await s.until(RolloutEnded)
    whole, whole_ended = unbroken
    assert Store(s.payload_dir / "snapshots").snapshots() == {}
    assert told(s, ended.payload) == whole
    assert (ended.num_tool_calls, ended.num_turns, ended.num_tokens) == (
        whole_ended.num_tool_calls,
        whole_ended.num_turns,
        whole_ended.num_tokens,
    )
    # What was sampled before keeps its version; nothing of the record is told or asked for again.
    old = sum(span.num_tokens for span in parked.spans)
    assert ended.spans[0] == (0, 0, old) if old else ended.spans[0][1] == 3
    assert [span[1] for span in ended.spans] == ([0, 3] if old else [3])
    assert [event.turn for event in s.events if isinstance(event, TurnEnded)] == list(range(turn, 3))
    assert [event.call for event in s.events if isinstance(event, ToolEnded)] == list(range(turn, 2))
    first = engine.requests[0]
    assert first.num_answer_tokens == tokens
    assert first.sampling.max_tokens == (7 if turn == 0 else 8) - tokens


async def test_a_parked_rollout_may_be_parked_again_while_it_is_told_its_record(lives, unbroken):
    opening, engine = lives("first", work)
    async with opening as s:
        first = await s.parked_in(engine, "r1.1.2", 3)
    opening, engine = lives("second", work)
    async with opening as s:
        s.start("r1", 2, partial=first.payload)
        await asyncio.sleep(0)
        s.park("r1", 2)
        again = await s.until(RolloutParked)
        assert (again.spans, again.num_unfinished_tokens) == (first.spans, first.num_unfinished_tokens)
    opening, engine = lives("third", work)
    async with opening as s:
        s.start("r1", 3, partial=again.payload)
        ended = await s.until(RolloutEnded)
    assert told(s, ended.payload) == unbroken[0]


async def test_a_lost_snapshot_is_made_up_for_by_the_whole_record(lives, unbroken):
    opening, engine = lives("first", work, "snapshot")
    async with opening as s:
        parked = await s.parked_in(engine, "r1.1.2", 3)
    shutil.rmtree(s.payload_dir / "snapshots")
    assert read_partial(s.payload_dir, parked.payload).record.num_calls_in_snapshot == 5
    opening, _ = lives("second", work, "snapshot")
    async with opening as s:
        s.start("r1", 2, partial=parked.payload)
        ended = await s.until(RolloutEnded)
    assert told(s, ended.payload) == unbroken[0]


async def test_a_snapshot_spares_the_calls_before_it(lives):
    """The first command leaves another result when it is run again: the snapshot holds what it left."""

    async def once(chat, sandbox):
        await chat.say(ASK)
        await sandbox.exec(["sh", "-c", "head -c 16 /dev/urandom | od -An -tx1 > dice"])
        await chat.say(ASK)
        await sandbox.write("after", b"1")
        await chat.say(ASK)
        seen = [(await sandbox.read(name)).decode() for name in ("dice", "after")]
        return Outcome({"seen": seen})

    opening, engine = lives("first", once, "snapshot")
    async with opening as s:
        engine.pause_at |= {"r1.1.1": 2, "r1.1.2": 2}
        s.start()
        await engine.until_paused("r1.1.1")
        s.park()
        await s.until(RolloutParked)
        (snapshot,) = Store(s.payload_dir / "snapshots").snapshots().values()
        labels = {
            "run": "run",
            "rollout": "r1",
            "purpose": "rollout",
            "attempt": "1",
            "turn": "1",
            "policy": "policy",
        }
        assert snapshot.labels == labels | {"version": "0.0", "oldest_version": "0.0"}
        (pack,) = (s.payload_dir / "snapshots" / "packs").iterdir()
        dice = pack.read_text()
        s.resume()
        await engine.until_paused("r1.1.2")
        # Without a newer snapshot the record is: this one, and the calls after it.
        (work_folder,) = next(s.provider.root().iterdir()).iterdir()
        shutil.rmtree(work_folder)
        s.park()
        await s.until(RolloutParked, 2)
        s.resume()
        ended = await s.until(RolloutEnded)
    assert s.payload(ended.payload).outcome["seen"] == [dice, "1"]


async def test_a_rollout_that_asks_otherwise_is_a_failure_by_name(lives):
    opening, engine = lives("first", work)
    async with opening as s:
        parked = await s.parked_in(engine, "r1.1.1", 2)

    async def other_words(chat, sandbox):
        await chat.say([Message("user", "hello")], max_tokens=7)

    async def other_cap(chat, sandbox):
        await chat.say(ASK)

    async def other_call(chat, sandbox):
        await chat.say(ASK, max_tokens=7)
        await sandbox.write("log", b"begin\n")

    async def other_unfinished(chat, sandbox):
        await chat.say(ASK, max_tokens=7)
        await sandbox.write("log", b"start\n")
        result = await sandbox.exec(["sh", "-c", "echo 0 >> log; cat log"], stdin=b"x")
        with pytest.raises(SandboxError):
            await sandbox.read("../out")
        await chat.say([Message("user", result.stdout + "!")])

    async def leaves(chat, sandbox):
        await chat.say(ASK, max_tokens=7)
        return Outcome({})

    async def swallows(chat, sandbox):
        try:
            await chat.say([Message("user", "hello")])
        except Exception:
            return Outcome({})

    words = [
        "say 0 differs",
        "say 0 differs",
        "sandbox call 0 differs",
        "the last say differs",
        "1 says",
        "say 0",
    ]
    for number, rollout in enumerate(
        (other_words, other_cap, other_call, other_unfinished, leaves, swallows)
    ):
        opening, engine = lives(f"life{number}", rollout)
        async with opening as s:
            s.start("r1", 2, partial=parked.payload)
            failed = await s.until(RolloutFailed)
        assert (failed.owner, failed.cause) == ("environment", "replay_diverged")
        assert words[number] in failed.message
        assert engine.requests == []


async def test_an_environment_that_restarts_keeps_nothing_and_begins_anew(lives):
    opening, engine = lives("first", work, "restart")
    async with opening as s:
        parked = await s.parked_in(engine, "r1.1.1", 2)
        assert parked.payload == ""
        assert s.host._attempts["r1", 1].chat.record.calls == []


async def test_a_payload_that_is_gone_is_an_infrastructure_failure(lives, tmp_path):
    opening, _ = lives("first", work)
    async with opening as s:
        s.start("r1", 1, partial="nowhere:0:10")
        failed = await s.until(RolloutFailed)
    assert (failed.owner, failed.cause) == ("infrastructure", "payload")


async def test_a_refused_say_is_told_again(lives):
    async def stubborn(chat, sandbox):
        with pytest.raises(Exception, match="leave room"):
            await chat.say([Message("user", "x" * 2000)])
        first = await chat.say(ASK)
        second = await chat.say(ASK)
        return Outcome({"texts": [first.text, second.text]})

    opening, engine = lives("first", stubborn)
    async with opening as s:
        parked = await s.parked_in(engine, "r1.1.1", 2)
    opening, engine = lives("second", stubborn)
    async with opening as s:
        s.start("r1", 2, partial=parked.payload)
        ended = await s.until(RolloutEnded)
    assert s.payload(ended.payload).outcome["texts"] == ["answer 0", "answer 1"[:8]]
    assert len(engine.requests) == 1


async def test_a_report_that_was_told_is_not_told_again(lives):
    async def doubts(chat, sandbox):
        chat.report(1, "first")
        await chat.say(ASK)
        await chat.say(ASK)
        chat.report(2, "second")
        return Outcome({})

    opening, engine = lives("first", doubts)
    async with opening as s:
        parked = await s.parked_in(engine, "r1.1.1", 2)
    opening, engine = lives("second", doubts)
    async with opening as s:
        s.start("r1", 2, partial=parked.payload)
        await s.until(RolloutEnded)
    assert [event.reason for event in s.events if isinstance(event, VerdictGiven)] == ["second"]


# --- a sandbox that is lost


def lose_the_sandbox(s):
    (folder,) = next(s.provider.root().iterdir()).iterdir()
    shutil.rmtree(folder)


@pytest.mark.parametrize("resume", ["replay", "snapshot"])
async def test_a_sandbox_lost_while_parked_is_rebuilt_before_the_next_turn(lives, unbroken, resume):
    opening, engine = lives("first", work, resume)
    async with opening as s:
        await s.parked_in(engine, "r1.1.1", 2)
        lose_the_sandbox(s)
        s.resume()
        ended = await s.until(RolloutEnded)
        ready = [event.sandbox for event in s.events if isinstance(event, SandboxReady)]
    assert told(s, ended.payload) == unbroken[0]
    assert ready == ["r1.1", "r1.1"]
    assert s.kinds().count("SandboxWanted") == 1
    assert "SandboxLost" not in s.kinds()


async def test_a_sandbox_lost_between_two_calls_is_rebuilt(lives, unbroken):
    opening, engine = lives("first", work)
    async with opening as s:
        engine.pause_at["r1.1.2"] = 2
        s.start()
        await engine.until_paused("r1.1.2")
        lose_the_sandbox(s)
        engine.pause_at.clear()
        ended = await s.until(RolloutEnded)
    assert told(s, ended.payload) == unbroken[0]


async def test_a_lost_sandbox_ends_a_rollout_that_restarts_before_it_asks_again(lives):
    opening, engine = lives("first", work, "restart")
    async with opening as s:
        await s.parked_in(engine, "r1.1.1", 2)
        lose_the_sandbox(s)
        s.resume()
        failed = await s.until(RolloutFailed)
        assert (await s.until(SandboxLost)).sandbox == "r1.1"
    assert (failed.owner, failed.cause) == ("infrastructure", "sandbox")
    assert len(engine.requests) == 2
    assert s.kinds()[-3:] == ["RolloutResumed", "SandboxLost", "RolloutFailed"]


async def test_a_provider_without_snapshots_is_rebuilt_by_its_calls(lives, unbroken, monkeypatch):
    opening, engine = lives("first", work, "snapshot")
    async with opening as s:
        monkeypatch.setattr(s.provider, "snapshots", False, raising=False)
        parked = await s.parked_in(engine, "r1.1.1", 2)
        assert read_partial(s.payload_dir, parked.payload).record.snapshot == ""
        lose_the_sandbox(s)
        s.resume()
        ended = await s.until(RolloutEnded)
    assert told(s, ended.payload) == unbroken[0]


@pytest.fixture
def no_room():
    with open("/dev/full", "wb", buffering=0) as file:
        yield file


async def test_a_full_disk_at_parking_fails_the_rollout_by_name(lives, monkeypatch, no_room):
    async def waits(chat, sandbox):
        await chat.say(ASK)
        await asyncio.sleep(30)

    opening, _ = lives("first", waits)
    async with opening as s:
        s.start()
        await s.until(TurnEnded)
        monkeypatch.setattr(PayloadWriter, "_open", lambda self, name: no_room)
        s.park()
        failed = await s.until(RolloutFailed)
        assert (failed.owner, failed.cause) == ("infrastructure", "disk_full")
        assert "no room for" in failed.message
    assert s.kinds() == ["TurnEnded", "RolloutParked", "RolloutFailed"]


async def with_server(chat, sandbox):
    """A long-lived process that outlasts an answer."""
    await chat.say(ASK, max_tokens=7)
    await sandbox.write("folder/file", b"x")
    await sandbox.spawn("server", ["sh", "-c", "echo up; exec sleep 600"], cwd="folder")
    said = ""
    while said != "up\n":
        said += (await sandbox.poll("server")).stdout
        await asyncio.sleep(0.01)
    seen = [said, (await sandbox.stats()).num_processes > 0]
    await chat.say([Message("user", said)])
    seen.append((await sandbox.exec(["ls"], cwd="folder")).stdout)
    seen.append((await sandbox.poll("server")).running)
    await chat.say([Message("user", "end it")])
    await sandbox.kill("server")
    ended = await sandbox.poll("server")
    seen += [ended.running, ended.cause]
    return Outcome({"seen": seen})


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("resume", ["replay", "snapshot"])
async def test_a_long_lived_process_is_started_again_for_another_life(lives, resume, turn):
    opening, engine = lives("first", with_server, resume)
    async with opening as s:
        parked = await s.parked_in(engine, f"r1.1.{turn}", 1)
    opening, _ = lives("second", with_server, resume)
    async with opening as s:
        s.start("r1", 2, partial=parked.payload)
        ended = await s.until(RolloutEnded)
    assert s.payload(ended.payload).outcome == {"seen": ["up\n", True, "file\n", True, False, "killed"]}


async def test_a_sandbox_is_wanted_only_beyond_the_record(lives):
    opening, engine = lives("first", work)
    async with opening as s:
        parked = await s.parked_in(engine, "r1.1.1", 2)
    opening, engine = lives("second", work)
    async with opening as s:
        engine.pause_at["r1.2.1.p1"] = 1
        s.start("r1", 2, partial=parked.payload)
        await engine.until_paused("r1.2.1.p1")
        assert [event for event in s.events if isinstance(event, SandboxWanted)] == []
