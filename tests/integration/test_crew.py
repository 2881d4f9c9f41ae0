"""A worker process that dies is told by one event and can be started anew in its place."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from headway.config.load import load_config
from headway.core.commands import Rollback
from headway.core.events import ReplicaJoined, ReplicaLost, RolledBack, WorkerJoined, WorkerLost
from headway.runtime.crew import Crew
from headway.runtime.job import Job
from headway.runtime.wire import address, connect


@pytest.fixture
def job(tmp_path, tiny_model):
    overrides = ["model.path=tiny", "environment.name=arithmetic", "trainer.lora_rank=4"]
    for name in ("checkpoints", "logs", "weights"):
        (tmp_path / name).mkdir()

    def make(role, name, **more):
        return Job(
            role, name, load_config(None, overrides), "test", tmp_path, tiny_model, tmp_path / "weights",
            2, None, 1, tuple(sys.path), **more,
        )  # fmt: skip

    return make


async def life_of(job, killed_after, then):
    """Start a worker, kill it once it joined, start it anew, and return its events."""
    inbox = asyncio.Queue()
    crew = Crew(inbox.put_nowait)
    events = []
    try:
        async with asyncio.TaskGroup() as tasks:
            worker = await crew.start(job)
            tasks.create_task(crew.listen(worker))
            events.append(await inbox.get())
            os.kill(worker.process.pid, signal.SIGKILL)
            events.append(await inbox.get())
            assert worker.process.returncode == -signal.SIGKILL
            again = await crew.restart(job.name, killed_after + 1)
            tasks.create_task(crew.listen(again))
            events.append(await inbox.get())
            await then(again, inbox, events)
            await crew.stop(10.0)
            assert await crew.restart(job.name, killed_after + 2) is None
    finally:
        crew.kill()
    return events


def test_a_generator_that_was_killed_listens_at_the_same_address_again(job):
    at = address("test", "generator0")

    async def then(worker, inbox, events):
        link = await connect(at)
        assert link is not None
        link.close()

    events = asyncio.run(life_of(job("generator", "generator0", address=at, epoch=3), 3, then))
    size = events[0].max_running
    assert events == [
        ReplicaJoined("generator0", 3, 2, 0, size),
        ReplicaLost("generator0", 3, "it was ended by SIGKILL; the system may be out of memory"),
        ReplicaJoined("generator0", 4, 2, 0, size),
    ]


def test_a_trainer_that_was_killed_begins_again_and_rolls_back(job):
    async def then(worker, inbox, events):
        worker.link.send("command", Rollback(0, 5))
        events.append(await inbox.get())

    events = asyncio.run(life_of(job("trainer", "trainer"), 0, then))
    assert events == [
        WorkerJoined("trainer", "trainer"),
        WorkerLost("trainer", "trainer", "it was ended by SIGKILL; the system may be out of memory"),
        WorkerJoined("trainer", "trainer"),
        RolledBack(5, 0),
    ]


async def environment_of(job):
    """Start a worker and return the environment that its process was given."""
    crew = Crew(lambda _event: None)
    try:
        worker = await crew.start(job)
        data = Path(f"/proc/{worker.process.pid}/environ").read_text()  # noqa: ASYNC240 - not a file on a disk
    finally:
        crew.kill()
    return dict(item.partition("=")[::2] for item in data.split("\0") if item)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_generator_keeps_few_compiled_multiplications(job):
    """Each number of rows is one for every matrix: a thousand of them took more than a small model itself."""
    names = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    at = address("test", "generator0")
    given = asyncio.run(environment_of(job("generator", "generator0", address=at)))
    assert [given[name] for name in names] == ["64", "64"]
    given = asyncio.run(environment_of(job("trainer", "trainer")))
    assert [given.get(name) for name in names] == [os.environ.get(name) for name in names]
