"""A dead environment worker: what it was doing is told as failed, and what it is to do waits for it."""

import pytest

from headway.core.commands import Cancel, Finish, RequestTask, RestartWorker, Score, StartRollout
from headway.core.events import (
    ReplicaJoined,
    ReplicaLost,
    RolloutEnded,
    RolloutFailed,
    RunStarted,
    SandboxLost,
    Scored,
    ScoreFailed,
    TaskOffered,
    WorkerJoined,
    WorkerLost,
)
from headway.core.notes import Warned
from headway.queue.recovery import RecoverySettings
from headway.queue.scheduler import Scheduler
from headway.queue.settings import EvalSettings, SchedulerSettings
from headway.queue.state import SandboxState
from headway.runtime.environments import Environments


class Link:
    def __init__(self):
        self.sent = []

    def send(self, kind, command):
        assert kind == "command"
        self.sent.append(command)


def start(rollout, attempt=0):
    group = rollout.rpartition(".")[0]
    return StartRollout(rollout, attempt, group, "train/0", "train", "p", 0, 1.0, "g0")


def score(rollout, attempt=0, tries=1):
    return Score(rollout, attempt, tries, "train/0", "w:0:1")


def ended(rollout, attempt=0):
    return RolloutEnded(rollout, attempt, "w:0:1", (), 1, 0, 1, 1, False)


@pytest.fixture
def crew():
    environments, links = Environments(), {name: Link() for name in ("environment0", "environment1")}
    for name, link in links.items():
        environments.connect(name, link)
    return environments, links


def test_a_group_s_rollouts_and_scores_are_on_one_worker(crew):
    environments, links = crew
    for command in (
        start("t000002.0"),
        start("t000003~1.0"),
        score("t000003~1.0"),
        Cancel("t000002.0", 0, "x"),
    ):
        environments.send(command)
    assert [c.rollout for c in links["environment0"].sent] == ["t000002.0", "t000002.0"]
    assert [c.rollout for c in links["environment1"].sent] == ["t000003~1.0", "t000003~1.0"]


def test_what_was_not_answered_is_told_and_tasks_are_asked_for_again(crew):
    environments, links = crew
    answered, open_task = RequestTask(2, "", "train", 2, None), RequestTask(4, "", "train", 4, None)
    for command in (answered, open_task, RequestTask(5, "", "train", 5, None)):
        environments.send(command)
    for rollout in ("t000000.0", "t000000.1", "t000002.0", "t000002.1", "t000001.0"):
        environments.send(start(rollout))
    environments.heard(TaskOffered(2, "train/2", 1))
    environments.heard(ended("t000000.1"))
    environments.send(score("t000000.1"))
    environments.heard(ended("t000002.0"))
    environments.heard(ended("t000002.0"))  # told twice
    environments.send(score("t000002.0"))
    environments.heard(ended("t000002.0", attempt=1))  # late, of another attempt
    environments.heard(Scored("t000002.0", 0, 1, 1.0, (), 0.1, 0.0))
    environments.settled("t000002.1")
    sandboxes = {
        "a": SandboxState("t000000.0", 0, "rollout", "ready"),
        "b": SandboxState("t000000.1", 0, "verify", "wanted"),
        "c": SandboxState("t000001.0", 0, "rollout", "ready"),
    }
    words = "environment worker environment0 died"
    assert environments.lost("environment0", sandboxes) == [
        SandboxLost("t000000.0", 0, "a", "worker_lost"),
        RolloutFailed("t000000.0", 0, "infrastructure", "worker_lost", words),
        ScoreFailed("t000000.1", 0, 1, "worker_lost", words),
    ]
    again = start("t000000.0", attempt=1)
    environments.send(again)
    assert again not in links["environment0"].sent
    new = Link()
    environments.connect("environment0", new)
    environments.send(start("t000004.0"))
    assert new.sent == [open_task, again, start("t000004.0")]


def test_the_scheduler_starts_it_anew_until_it_died_too_often():
    settings = SchedulerSettings(
        recovery=RecoverySettings(environment_restarts=1), eval=EvalSettings(num_tasks=0)
    )
    scheduler = Scheduler(settings)
    for event in (RunStarted(), WorkerJoined("trainer", "t"), WorkerJoined("environment", "e0")):
        scheduler.handle(event, 0.0)
    scheduler.handle(ReplicaJoined("g0", 0, 0, 0, 8), 0.0)
    commands, notes = scheduler.handle(WorkerLost("environment", "e0", "killed"), 1.0)
    assert RestartWorker("environment", "e0", 1) in commands
    text = "environment worker e0 was lost: killed; it is started anew (1 of at most 1 times)"
    assert notes == [Warned("environment_lost", text)]
    assert "restart:e0" in scheduler.state.deadlines
    scheduler.handle(WorkerJoined("environment", "e0"), 2.0)
    assert "restart:e0" not in scheduler.state.deadlines
    commands, _ = scheduler.handle(WorkerLost("environment", "e0", "killed"), 3.0)
    (finish,) = [command for command in commands if isinstance(command, Finish)]
    assert finish.failed
    assert "it was restarted 1 times before (recovery.environment_restarts)" in finish.message


@pytest.mark.parametrize(
    "lost",
    [
        WorkerLost("trainer", "t", "UserError: wrong shape", bad_input=True),
        WorkerLost("environment", "e0", "UserError: wrong shape", bad_input=True),
        ReplicaLost("g0", 0, "UserError: wrong shape", bad_input=True),
    ],
)
def test_a_worker_that_died_of_bad_input_is_not_started_anew(lost):
    scheduler = Scheduler(SchedulerSettings(eval=EvalSettings(num_tasks=0)))
    for event in (RunStarted(), WorkerJoined("trainer", "t"), WorkerJoined("environment", "e0")):
        scheduler.handle(event, 0.0)
    scheduler.handle(ReplicaJoined("g0", 0, 0, 0, 8), 0.0)
    commands, notes = scheduler.handle(lost, 1.0)
    assert not any(isinstance(command, RestartWorker) for command in commands)
    assert not any(isinstance(note, Warned) for note in notes)
    (finish,) = [command for command in commands if isinstance(command, Finish)]
    assert finish.failed
    assert finish.message.endswith("was lost: UserError: wrong shape")
