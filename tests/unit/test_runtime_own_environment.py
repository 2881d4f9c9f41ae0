"""A user's environment in the worker and in `headway env try`: what it raises, and how long it may take."""

import pytest

from headway.config.load import load_config
from headway.core.commands import RequestTask, Score, StartRollout
from headway.core.events import CommandRefused, RolloutFailed, ScoreFailed, TaskOffered
from headway.environments.host import HostSettings
from headway.environments.registry import build
from headway.runtime import tryout
from headway.runtime.environment_worker import _obey, host_settings
from tests.unit.rollout_parts import ScriptedEngine, write_tokenizer

MINE = '''
from __future__ import annotations

import asyncio
from dataclasses import dataclass

from headway.core.protocols import Outcome
from headway.core.records import Message, Task


@dataclass(frozen=True)
class Settings:
    broken: int = -1


class Mine:
    """Mine."""

    settings_type = Settings
    name, resume, needs_sandbox, stop_strings, system_prompt = "mine", "restart", False, (), None

    def __init__(self, settings, seed):
        self.broken = settings.broken

    def num_tasks(self, split):
        return None

    def task(self, split, index, level):
        if index == self.broken:
            raise KeyError("no such row")
        return Task(f"{split}/{index}", split, 1, {})

    def prompt(self, task):
        return [Message("user", "1+1=")]

    async def rollout(self, task, chat, sandbox):
        await chat.say(self.prompt(task))
        return Outcome({})

    async def score(self, task, outcome, sandbox):
        await asyncio.Event().wait()
'''


@pytest.fixture
def file(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


class Recorder:
    """Stands for the driver's link and for the host: keeps what each was told."""

    def __init__(self):
        self.sent, self.started, self.scored = [], [], []

    def send(self, kind, event):
        assert kind == "event"
        self.sent.append(event)

    def start(self, command, task):
        self.started.append(task.id)

    def score(self, command, task):
        self.scored.append(task.id)


def start(task):
    return StartRollout("g0.0", 2, "g0", task, "train", "policy", 0, 1.0, "generator0")


def score(task):
    return Score("g0.0", 2, 3, task, "p:0:1")


def test_an_environment_whose_task_raises_fails_the_command_and_not_the_worker(file):
    environment, seen = build(file, {"broken": 7}), Recorder()
    for command in (RequestTask(1, "", "train", 7, None), start("train/7"), score("train/7")):
        _obey({"": environment}, seen, seen, command)
    refused, failed, unscored = seen.sent
    assert isinstance(refused, CommandRefused)
    assert isinstance(failed, RolloutFailed)
    assert (failed.rollout, failed.attempt, failed.owner, failed.cause) == (
        "g0.0", 2, "environment", "exception",
    )  # fmt: skip
    assert failed.message.startswith("KeyError: 'no such row' at mine.py:")
    assert isinstance(unscored, ScoreFailed)
    assert (unscored.rollout, unscored.attempt, unscored.tries, unscored.cause) == ("g0.0", 2, 3, "exception")
    assert unscored.message == failed.message
    assert (seen.started, seen.scored) == ([], [])


def test_other_tasks_of_it_go_on(file):
    environment, seen = build(file, {"broken": 7}), Recorder()
    for command in (RequestTask(1, "", "train", 8, 2), start("train/8/2"), score("train/8")):
        _obey({"": environment}, seen, seen, command)
    assert seen.sent == [TaskOffered(1, "train/8/2", 1)]
    assert (seen.started, seen.scored) == (["train/8/2"], ["train/8"])


async def test_env_try_keeps_to_the_time_limits_of_the_config(file, tmp_path, monkeypatch):
    write_tokenizer(tmp_path)
    given = ("model.path=tiny", f"environment.name={file}", "reward.timeout_s=0.05")
    config = load_config(None, (*given, "environment.cancel_grace_s=3"))
    assert host_settings(config) == HostSettings(score_timeout_s=0.05, cancel_grace_s=3)
    monkeypatch.setattr(tryout, "build_engine", lambda *_: ScriptedEngine(lambda request: [1]))
    trial = await tryout._run(config, tmp_path, "train", 0, None, 1.0)
    assert isinstance(trial.score, ScoreFailed)
    assert trial.score.cause == "timeout"
    assert "(got 0.05)" in trial.score.message
