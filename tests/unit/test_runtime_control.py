"""The channel into a run: what it takes, what it refuses, and that nothing of it is left."""

import asyncio
import os
import pickle
import socket
import time
from pathlib import Path

import pytest

from headway.config.compose import Config
from headway.config.live import LIVE, NOT_LIVE
from headway.config.load import load_config
from headway.config.show import write_config
from headway.config.stages import FIXED
from headway.core.errors import ConfigError, HeadwayError, RunDirectoryError, UserError
from headway.core.events import EvalDue, SettingChanged, StopAsked
from headway.core.schema import keys_of, sections_of
from headway.queue.scheduler import SECTIONS
from headway.queue.settings import ELSEWHERE
from headway.runtime import control, directory
from headway.runtime.control import Control, ask, control_address


def wait_for(condition):
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


class Served:
    """A run directory and a control that listens for it, in the test's own loop."""

    def __init__(self, path, earlier=()):
        self.path = path
        write_config(
            load_config(None, ["model.path=tiny", "environment.name=arithmetic"]), path / "config.toml"
        )
        record = directory.LifeRecord(os.getpid(), path.name, str(path))
        directory.begin_life(path, record)
        self.at = control_address(record.run_id, record.pid)
        self.events = []
        self.control = Control(path / "config.toml", earlier, self.events.append)

    async def __aenter__(self):
        self._task = asyncio.create_task(self.control.serve(self.at))
        await asyncio.to_thread(wait_for, self.listens)
        return self

    def listens(self):
        return self.at in Path("/proc/net/unix").read_text()

    async def __aexit__(self, *_):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def ask(self, *request):
        return await asyncio.to_thread(ask, self.path, *request)

    async def refused(self, *request):
        with pytest.raises(HeadwayError) as caught:
            await self.ask(*request)
        return caught.value


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_is_headway", lambda pid: True)
    return Served(tmp_path)


async def test_settings_change_together_and_later_changes_know_of_them(served):
    async with served:
        assert await served.ask("set", ("queue.depth=1", "guard.paused=true")) == [
            "queue.depth = 1 from now on (was -1, the bound: 2)",
            "guard.paused = True from now on (was False)",
        ]
        assert await served.ask("set", ("queue.depth=1",)) == [
            "nothing changes: the settings have these values already"
        ]
        assert await served.ask("set", ("queue.depth=",)) == ["queue.depth = -1 from now on (was 1)"]
    assert served.events == [
        SettingChanged("queue.depth", 1, checked=True),
        SettingChanged("guard.paused", True, checked=True),
        SettingChanged("queue.depth", -1, checked=True),
    ]


async def test_every_problem_is_told_at_once_and_nothing_changes(served):
    overrides = (
        "queue.depth=1",
        "trainer.learning_rate=1e-3",
        "run.seed=3",
        "queue.bond=3",
        "checkpoint.keep=9",
        "stop.steps=-1",
        "nonsense",
    )
    async with served:
        error = await served.refused("set", overrides)
        assert isinstance(error, ConfigError)
        told = "\n".join(str(problem) for problem in error.problems)
        assert len(error.problems) == 6
        assert "trainer.learning_rate: takes effect at a resume only" in told
        assert "checkpoint.keep: takes effect at a resume only: the trainer learned it" in told
        assert "run.seed: may not change after the run began" in told
        assert "Did you mean queue.bound?" in told
        assert "stop.steps" in told
        assert await served.ask("set", ("queue.depth=2",)) == [
            "queue.depth = 2 from now on (was -1, the bound: 2)"
        ]
    assert served.events == [SettingChanged("queue.depth", 2, checked=True)]


async def test_what_pools_learned_when_they_started_is_refused(served):
    """Scheduler and pools must agree on the places: the one cannot grant what the others do not have."""
    overrides = ("max_live=64", "warm=1", "max_starting=2", "max_starts_per_s=3")
    async with served:
        error = await served.refused("set", tuple(f"sandbox.{override}" for override in overrides))
    told = [str(problem) for problem in error.problems]
    assert len(told) == len(overrides)
    assert all("takes effect at a resume only" in problem for problem in told)
    assert any("sandbox.max_live" in line and "divided its places when it started" in line for line in told)
    assert served.events == []


async def test_settings_that_clash_with_the_present_ones_are_refused(served):
    async with served:
        error = await served.refused("set", ("queue.depth=3",))
    assert "depth may not exceed bound (2)" in str(error.problems[0])
    assert served.events == []


async def test_changes_of_earlier_lives_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_is_headway", lambda pid: True)
    async with Served(tmp_path, [("queue.bound", 4)]) as served:
        assert await served.ask("set", ("queue.depth=3",)) == [
            "queue.depth = 3 from now on (was -1, the bound: 4)"
        ]


async def test_an_evaluation_and_a_stop(served):
    async with served:
        assert await served.ask("evaluate", ()) == [
            "the newest version is evaluated next, unless it was already"
        ]
        assert await served.ask("stop", ("headway stop",)) == [
            "the run finishes its step, then saves and ends"
        ]
        await served.ask("set", ("eval.num_tasks=0",))
        error = await served.refused("evaluate", ())
    assert isinstance(error, UserError)
    assert "eval.num_tasks: an evaluation needs tasks (got 0)" in str(error)
    assert served.events[:2] == [EvalDue(), StopAsked("headway stop")]


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x01",
        (5).to_bytes(8, "little") + b"trash",
        (lambda data: len(data).to_bytes(8, "little") + data)(pickle.dumps(("fly", ("away",)))),
        (lambda data: len(data).to_bytes(8, "little") + data)(pickle.dumps(7)),
    ],
)
async def test_whoever_says_nothing_or_nonsense_disturbs_nobody(served, sent):
    async with served:
        client = socket.socket(socket.AF_UNIX)
        client.connect("\0" + served.at)
        client.send(sent)
        client.shutdown(socket.SHUT_WR)
        assert await served.ask("set", ("queue.depth=1",)) == [
            "queue.depth = 1 from now on (was -1, the bound: 2)"
        ]
        client.close()
    assert len(served.events) == 1


async def test_a_process_of_another_user_is_not_heard(served, monkeypatch):
    async with served:
        monkeypatch.setattr("headway.runtime.wire.os.geteuid", lambda: 12345)
        assert "does not answer" in str(await served.refused("set", ("queue.depth=1",)))
    assert served.events == []


async def test_a_run_that_nobody_drives_is_named_and_nothing_is_left_behind(served, monkeypatch):
    before = set(os.listdir(served.path))
    async with served:
        await served.ask("evaluate", ())
    assert set(os.listdir(served.path)) == before
    assert not served.listens()
    error = await served.refused("evaluate", ())
    assert "does not answer" in str(error)
    monkeypatch.setattr(directory, "_is_headway", lambda pid: False)
    error = await served.refused("evaluate", ())
    assert isinstance(error, RunDirectoryError)
    assert "no process drives the run" in str(error)


def test_a_wait_for_the_end_ends_with_the_process(tmp_path):
    control.wait_for_the_end(tmp_path)


def test_what_changes_live_is_the_scheduler_s_and_every_name_is_a_key():
    keys = {f"{section}.{name}" for section, kind in sections_of(Config).items() for name in keys_of(kind)}
    live = {name for name in LIVE if "." not in name}
    assert live == {*SECTIONS, "control"}
    assert {name for name in LIVE if "." in name} <= ELSEWHERE.keys()
    assert NOT_LIVE.keys() <= keys
    assert not {name.partition(".")[0] for name in FIXED if "." not in name} & live
