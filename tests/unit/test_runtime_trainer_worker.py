"""The trainer's desk: what a rollback brings back, and what a checkpoint beside training contains."""

import sys
from array import array
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch

from headway.config.load import load_config
from headway.core.commands import Checkpoint, Publish, Rollback, Row, Train
from headway.core.events import CheckpointDone, RolledBack, StepEnded, VersionPublished
from headway.core.payload import Payload, PayloadWriter
from headway.core.records import FLAGS, FLOATS, TOKENS, TrainingSample, VersionSpan
from headway.models.fetch import fetch
from headway.runtime.job import Job, checkpoint_dir, payload_dir
from headway.runtime.trainer_worker import Desk
from headway.trainer.checkpoints import complete_checkpoints


@pytest.fixture
def job(tmp_path):
    config = load_config(
        None,
        [
            "model.path=tiny",
            "environment.name=arithmetic",
            "trainer.learning_rate=0.01",
            "trainer.lora_rank=4",
            "checkpoint.keep=2",
        ],
    )
    (tmp_path / "checkpoints").mkdir()
    return Job(
        "trainer", "trainer", config, "test", tmp_path, fetch("tiny"), tmp_path / "weights", 0, None, 1,
        tuple(sys.path),
    )  # fmt: skip


@pytest.fixture
def desk(job):
    with ThreadPoolExecutor(1) as writer:
        yield Desk(job, writer)


@pytest.fixture
def train(job):
    payloads = PayloadWriter(payload_dir(job.run_dir), "p0")

    def command(step):
        rows = []
        for index, advantage in enumerate((1.0, -1.0)):
            ids = array(TOKENS, [1, 2, 3 + (step + index) % 5, 4])
            sample = TrainingSample(
                ids, array(FLAGS, [0, 0, 1, 1]), array(FLOATS, [0, 0, -1, -1]), [VersionSpan(0, 0, 2)], 1.0
            )
            reference = payloads.append(Payload(f"t{step}.{index}", "train/0", [sample], {}))
            rows.append(Row(f"t{step}.{index}", f"t{step}", reference, advantage))
        return Train(step, step, tuple(rows))

    return command


def obey(desk, command):
    answer = desk.obey(command)
    return answer.result() if isinstance(answer, Future) else answer


def weights(desk):
    return {name: tensor.detach().clone() for name, tensor in desk.trainer._policy.trainable().items()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def steps(desk, train, numbers):
    return [obey(desk, train(step)).metrics for step in numbers]


def saved(job):
    return [int(path.name[-6:]) for path in complete_checkpoints(checkpoint_dir(job.run_dir))]


def test_a_step_may_end_before_the_checkpoint_before_it(job, desk, train):
    steps(desk, train, [1])
    then = weights(desk)
    written = desk.obey(Checkpoint(1))
    assert isinstance(obey(desk, train(2)), StepEnded)
    assert isinstance(written.result(), CheckpointDone)
    assert isinstance(obey(desk, Rollback(1, 1)), RolledBack)
    assert equal(weights(desk), then)


@pytest.mark.parametrize("step", [0, 2])
def test_a_rollback_goes_on_as_if_nothing_had_been_after_it(job, desk, train, step):
    first = weights(desk)
    steps(desk, train, [1, 2])
    at = {0: first, 2: weights(desk)}
    obey(desk, Checkpoint(2))
    expected = steps(desk, train, [3, 4])
    obey(desk, Checkpoint(4))
    assert obey(desk, Rollback(step, 1)) == RolledBack(1, step)
    assert equal(weights(desk), at[step])
    assert saved(job) == ([2] if step else [])
    if not step:
        steps(desk, train, [1, 2])
    published = obey(desk, Publish(1, 2))
    assert isinstance(published, VersionPublished)
    assert "/0001-00000002/" in published.manifest
    assert steps(desk, train, [3, 4]) == expected


def test_what_may_be_rolled_back_to_is_there_until_the_next_checkpoint_is_begun(job, desk, train):
    for step in (1, 2, 3):
        steps(desk, train, [step])
        obey(desk, Checkpoint(step))
    assert saved(job) == [1, 2, 3]  # a Rollback to 1 may be on its way
    steps(desk, train, [4])
    obey(desk, Checkpoint(4))
    assert saved(job) == [2, 3, 4]
    desk.retain()
    assert saved(job) == [3, 4]
