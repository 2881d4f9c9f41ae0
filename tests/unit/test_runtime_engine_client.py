"""A generator behind an address: the same replica before and after its process was started anew."""

import asyncio
import itertools
import os
import socket

import pytest

from headway.core.errors import HeadwayError
from headway.core.protocols import EngineCapabilities
from headway.runtime import engine_client, wire
from headway.runtime.engine_client import RemoteEngine
from headway.runtime.generator_worker import serve_peers
from tests.contract.engine_contract import EngineContract, collect, request
from tests.unit.rollout_parts import ScriptedEngine

CAN = EngineCapabilities(4, 64, "sampling", True, True, False)
numbers = itertools.count()


class Generator:
    """A generator's process, as far as its connections go."""

    def __init__(self, at):
        self.engine = ScriptedEngine(context=64, max_running=4, manifests=lambda name: name.isdigit())
        self.serving = asyncio.create_task(self.serve(at))

    async def serve(self, at):
        async with asyncio.TaskGroup() as tasks, serve_peers(self.engine, at, tasks):
            await asyncio.get_running_loop().create_future()

    async def die(self):
        self.serving.cancel()
        await asyncio.wait([self.serving])


@pytest.fixture
def at():
    return wire.address("test", f"generator{next(numbers)}")


@pytest.fixture
async def remote(at):
    engine = RemoteEngine(at, "replica-0", CAN)
    running = asyncio.create_task(engine.run())
    yield engine
    running.cancel()
    await asyncio.wait([running])


@pytest.fixture
async def generator(at):
    generator = Generator(at)
    yield generator
    await generator.die()


class TestRemoteEngine(EngineContract):
    """What an environment worker sees keeps the contract; weights are the driver's business."""

    @pytest.fixture
    async def engine(self, remote, generator):
        remote.apply = generator.engine.apply
        remote.manifest = str
        return remote

    def manifest(self, number):
        return str(number)

    @pytest.mark.skip("one engine serves several workers; each sees its own load")
    async def test_stats_return_to_nothing(self, engine): ...


async def test_a_request_waits_for_a_generator_that_is_not_there_yet(at, remote):
    asked = asyncio.create_task(collect(remote, request("a", [1, 2])))
    await asyncio.sleep(0.15)
    generator = Generator(at)
    assert (await asked).finish == "length"
    await generator.die()


async def test_requests_of_a_dead_generator_are_lost_and_its_successor_takes_new_ones(at, remote):
    first = Generator(at)
    first.engine.pause_at = {"a": 3}
    tokens = []
    async for chunk in remote.generate(request("a", [1, 2])):
        tokens += chunk.token_ids
        if len(tokens) == 3 and chunk.finish is None:
            await first.die()
    assert chunk.finish == "lost"
    assert "generator replica-0" in chunk.message
    assert len(tokens) == 3
    second = Generator(at)
    rest = await collect(remote, request("a.p1", [1, 2, *tokens], max_tokens=5, num_answer_tokens=3))
    assert (rest.finish, len(rest.token_ids)) == ("length", 5)
    assert [item.request_id for item in second.engine.requests] == ["a.p1"]
    await second.die()


async def test_a_request_that_nobody_takes_is_lost(remote, monkeypatch):
    monkeypatch.setattr(engine_client, "_WAIT_S", 0.1)
    answer = await collect(remote, request("a", [1, 2]))
    assert answer.finish == "lost"
    assert "could not be reached for 0.1 s" in answer.message


async def test_a_request_that_was_not_sent_can_be_aborted(at, remote):
    asked = asyncio.create_task(collect(remote, request("a", [1, 2])))
    await asyncio.sleep(0.01)
    await remote.abort(["a"])
    assert (await asked).finish == "aborted"
    generator = Generator(at)
    await collect(remote, request("b", [1, 2]))
    assert [item.request_id for item in generator.engine.requests] == ["b"]
    await generator.die()


async def test_requests_of_a_worker_that_died_are_aborted(at, generator):
    worker = RemoteEngine(at, "replica-0", CAN)
    running = asyncio.create_task(worker.run())
    generator.engine.hold.clear()
    asked = asyncio.create_task(collect(worker, request("a", [1, 2])))
    while generator.engine.stats().num_running == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    running.cancel()
    while generator.engine.stats().num_running:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (await asked).finish == "lost"


async def test_a_taken_address_is_an_error_by_name(at, monkeypatch):
    monkeypatch.setattr(wire, "_TAKEN_TRIES", 2)
    server = await wire.listen(at, lambda link: link.close())
    with pytest.raises(HeadwayError, match="address must be free"):
        await wire.listen(at, lambda link: link.close())
    server.close()


async def test_another_users_process_is_not_spoken_to(at, monkeypatch):
    met = []
    server = await wire.listen(at, met.append)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert await wire.connect(at) is None
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect("\0" + at)
        await asyncio.sleep(0.05)
        assert stranger.recv(1) == b""
    assert met == []
    server.close()
