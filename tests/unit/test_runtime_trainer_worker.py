"""The trainer's desk: what a rollback brings back, and what a checkpoint beside training contains."""

import math
import os
import shutil
import signal
import sys
from array import array
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from headway.config.load import load_config
from headway.core.commands import Checkpoint, Publish, Rollback, Row, Train, TrainPart
from headway.core.errors import DiskFullError, HeadwayError, UserError
from headway.core.events import CheckpointDone, PartEnded, RolledBack, StepEnded, VersionPublished
from headway.core.payload import Payload, PayloadWriter
from headway.core.records import FLAGS, FLOATS, TOKENS, TrainingSample, VersionSpan
from headway.models.fetch import fetch
from headway.queue.settings import CheckpointSettings
from headway.runtime import rank_links
from headway.runtime.job import Job, checkpoint_dir, payload_dir, weights_dir
from headway.runtime.ranked import RankedTrainer
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


def fill(disk, kilobytes):
    """Leave so much room."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - (kilobytes << 10))
    return ballast


def test_versions_go_to_the_run_directory_once_shared_memory_is_full(job, small_disk, train):
    told = []
    fill(small_disk, 16)
    with ThreadPoolExecutor(1) as writer:
        desk = Desk(replace(job, weights_dir=small_disk), writer, told.append)
        steps(desk, train, [1])
        published = obey(desk, Publish(0, 1))
        again = (steps(desk, train, [2]), obey(desk, Publish(0, 2)))[1]
    assert published.manifest.startswith(f"{weights_dir(job.run_dir)}/")
    assert again.manifest.startswith(f"{weights_dir(job.run_dir)}/")
    (notice,) = [notice for notice in told if notice.code != "mismatch"]  # these log-probs are made up
    assert notice.code == "weights_moved"
    assert f"no room for {small_disk}/0000-00000001: it needs " in notice.text
    assert os.listdir(small_disk) == ["ballast"]


def test_without_room_anywhere_a_version_is_a_full_disk(job, small_disk, train):
    fill(small_disk, 16)
    (small_disk / "weights").mkdir()
    with ThreadPoolExecutor(1) as writer:
        desk = Desk(replace(job, weights_dir=small_disk / "weights"), writer)
        steps(desk, train, [1])
        desk._job = replace(desk._job, run_dir=small_disk)
        with pytest.raises(DiskFullError, match=r"no room for .*weights/0000-00000001"):
            obey(desk, Publish(0, 1))


def test_a_checkpoint_that_has_no_room_leaves_the_one_before_and_comes_once_there_is(job, small_disk, train):
    (small_disk / "checkpoints").mkdir()
    checkpoints = small_disk / "checkpoints"
    with ThreadPoolExecutor(1) as writer:
        desk = Desk(job, writer)
        desk.trainer._keeping.directory = checkpoints
        steps(desk, train, [1])
        done = obey(desk, Checkpoint(1))
        assert done.num_bytes == sum(p.stat().st_size for p in Path(done.path).rglob("*") if p.is_file())
        ballast = fill(small_disk, done.num_bytes // 2048)
        steps(desk, train, [2])
        with pytest.raises(DiskFullError, match=r"no room for .*/step-000002: it needs ") as caught:
            obey(desk, Checkpoint(2))
        assert "are free there (No space left on device)" in str(caught.value)
        assert os.listdir(checkpoints) == ["step-000001"]
        ballast.unlink()
        obey(desk, Checkpoint(2))
    assert [int(path.name[-6:]) for path in complete_checkpoints(checkpoints)] == [1, 2]


def test_the_best_checkpoint_and_milestones_outlive_the_newest(job, train):
    job = replace(job, config=replace(job.config, checkpoint=CheckpointSettings(keep=1, keep_every_steps=3)))
    with ThreadPoolExecutor(1) as writer:
        desk = Desk(job, writer)
        desk.keep = (2,)
        for step in range(1, 6):
            steps(desk, train, [step])
            obey(desk, Checkpoint(step))
        desk.retain()
    assert saved(job) == [2, 3, 5]


# --- parts and ranks ------------------------------------------------------------------------------


def grouped(command):
    """The same rows, each of a group of its own, so that a part may hold one of them."""
    return replace(command, rows=tuple(row._replace(group=row.rollout) for row in command.rows))


def begin(desk, command):
    """Hand over the first row, and return what is left to be said."""
    part = obey(desk, TrainPart(command.batch, command.step, command.step, command.rows[:1]))
    assert isinstance(part, PartEnded)
    assert (part.batch, part.part) == (command.batch, command.step)
    return part, replace(command, num_gathered=1)


def test_a_step_counts_the_computing_of_its_parts(desk, train):
    part, rest = begin(desk, grouped(train(1)))
    ended = obey(desk, rest)
    assert ended.gathered_s == part.compute_s > 0
    assert ended.compute_s > ended.gathered_s
    assert obey(desk, grouped(train(2))).gathered_s == 0


@pytest.mark.parametrize("step", [0, 1])
def test_a_rollback_forgets_the_step_that_was_begun(desk, train, step):
    first = grouped(train(1))
    expected = obey(desk, first).metrics
    obey(desk, Checkpoint(1))
    second = grouped(train(2))
    of_second = obey(desk, second).metrics
    begin(desk, grouped(train(3)))
    obey(desk, Rollback(step, 1))
    ended = obey(desk, second if step else first)
    assert ended.gathered_s == 0
    assert ended.metrics == (of_second if step else expected)


def test_a_run_that_streams_has_an_algorithm_that_can(job):
    config = replace(
        job.config,
        queue=replace(job.config.queue, stream=True),
        algorithm=replace(job.config.algorithm, advantage="magistral"),
    )
    with ThreadPoolExecutor(1) as writer, pytest.raises(UserError, match="advantage = magistral"):
        Desk(replace(job, config=config), writer)


def ranked(job, num):
    return replace(job, config=replace(job.config, trainer=replace(job.config.trainer, ranks=num)), threads=2)


def test_a_trainer_of_two_processes_takes_the_steps_of_one(job, train):
    commands = [grouped(train(step)) for step in (1, 2, 3)]
    found = []
    for num in (1, 2):
        with ThreadPoolExecutor(1) as writer:
            desk = Desk(ranked(job, num), writer)
            own = desk.trainer if num == 1 else desk.trainer._own
            results = [obey(desk, commands[0])]
            obey(desk, Publish(0, 1))
            saved_at = obey(desk, Checkpoint(1))
            desk.set_threads(1)
            results += [obey(desk, commands[1]), obey(desk, begin(desk, commands[2])[1])]
            obey(desk, Rollback(1, 1))
            results.append(obey(desk, commands[1]))
            weights = {name: p.detach().clone() for name, p in own._policy.trainable().items()}
            desk.leave()
        assert isinstance(saved_at, CheckpointDone)
        found.append((results, weights))
    (one, weights), (two, same) = found
    for expected, result in zip(one, two, strict=True):
        assert result.num_trained_tokens == expected.num_trained_tokens
        differs = {"num_micro_batches": result.metrics["num_micro_batches"]}
        assert result.metrics == pytest.approx(expected.metrics | differs, rel=1e-4, abs=1e-5)
    assert two[1].metrics == two[3].metrics  # the rollback came to every rank
    for name, weight in weights.items():
        torch.testing.assert_close(same[name], weight, rtol=1e-4, atol=1e-4)


def test_a_dead_rank_ends_the_trainer_and_is_named(job, train):
    with ThreadPoolExecutor(1) as writer:
        desk = Desk(ranked(job, 2), writer)
        obey(desk, train(1))
        desk.trainer._others.ranks[0].process.kill()
        with pytest.raises(HeadwayError, match="rank 1 of the trainer was ended by SIGKILL"):
            obey(desk, train(2))
        desk.trainer.close()


def test_rows_that_are_refused_stop_no_rank(job, train):
    with ThreadPoolExecutor(1) as writer:
        trainer = Desk(ranked(job, 2), writer).trainer
        rows = train(1).rows
        wide = trainer.batch_wide(rows)
        trainer.forward_backward(rows[:1], wide)
        with pytest.raises(HeadwayError, match="must be finite"):
            trainer.forward_backward([rows[0]._replace(advantage=float("nan"))], wide)
        trainer.forward_backward(rows[1:], wide)
        assert trainer.optim_step()["nonfinite"] == 0
        with pytest.raises(HeadwayError, match="needs a gradient"):
            trainer.optim_step()
        assert len(trainer.forward(rows)) == 2
        trainer.close()


def with_deadlines(job, **deadlines):
    return replace(job, config=replace(job.config, deadlines=replace(job.config.deadlines, **deadlines)))


@pytest.mark.slow  # ranks that hang as they start and ranks that die are tested here
def test_a_rank_that_hangs_is_named_before_the_step_s_deadline(job, train):
    with ThreadPoolExecutor(1) as writer:
        desk = Desk(with_deadlines(ranked(job, 3), train_s=5.0), writer)
        os.kill(desk.trainer._others.ranks[1].process.pid, signal.SIGSTOP)
        with pytest.raises(HeadwayError, match=r"rank 2 of the trainer did not answer for 4 s: ") as caught:
            obey(desk, train(1))
        assert "rank 1 of the trainer" not in str(caught.value)
        with pytest.raises(HeadwayError, match="must be started anew: step failed in the midst of them"):
            obey(desk, train(1))
        desk.trainer.close()


@pytest.mark.parametrize(
    ("number", "words", "start_s"),
    [
        (signal.SIGKILL, "rank 1 of the trainer was ended by SIGKILL: the trainer's ranks must start", 180.0),
        (
            signal.SIGSTOP,
            "rank 1 of the trainer did not answer for 0.8 s: the trainer's ranks must start",
            1.0,
        ),
    ],
)
def test_a_rank_that_does_not_start_is_named(job, monkeypatch, number, words, start_s):
    start = rank_links._start

    def start_and_end(*arguments):
        process, link = start(*arguments)
        os.kill(process.pid, number)
        return process, link

    monkeypatch.setattr(rank_links, "_start", start_and_end)
    with ThreadPoolExecutor(1) as writer, pytest.raises(HeadwayError, match=words) as caught:
        Desk(with_deadlines(ranked(job, 2), start_s=start_s), writer)
    assert "\n" not in str(caught.value)


def test_bad_input_of_a_rank_is_the_trainer_s_own(job):
    def make(own, ranks):
        return own

    spoiled = replace(job, model_dir=job.run_dir)  # nothing to load there
    with pytest.raises(UserError, match=r"must hold config\.json"):
        RankedTrainer(ranked(spoiled, 2), make)


def test_a_loss_s_mistake_that_only_another_rank_sees_is_bad_input(job, train, tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch\n\n\ndef loss(logp, behaviour_logp, advantages, settings):\n"
        "    each = -logp * advantages\n"
        "    wrong = torch.distributed.get_rank() == 1\n"
        "    return each.mean() if wrong else each, torch.zeros_like(logp, dtype=torch.bool)\n"
    )
    algorithm = replace(job.config.algorithm, loss=f"{tmp_path}/own.py:loss")
    own = replace(job, config=replace(job.config, algorithm=algorithm))
    with ThreadPoolExecutor(1) as writer:
        desk = Desk(ranked(own, 2), writer)
        with pytest.raises(UserError, match="must return per_token as a tensor"):
            obey(desk, train(1))
        desk.trainer.close()


def test_what_is_refused_leaves_every_rank_usable(job, train):
    rows = grouped(train(1)).rows
    spoiled = [rows[0]._replace(advantage=float("nan")), rows[1]]
    full = replace(job, config=replace(job.config, trainer=replace(job.config.trainer, full=True)))
    with ThreadPoolExecutor(1) as writer:
        trainer = Desk(ranked(full, 2), writer).trainer
        alone = Desk(full, writer).trainer
        wide = trainer.batch_wide(rows)
        for call, words in (
            (lambda: trainer.forward(rows, "reference"), "kept with LoRA only"),
            (lambda: trainer.step(spoiled), "must be finite"),
            (lambda: trainer.step(rows, math.nan), "lr_scale"),
            (lambda: trainer.step(rows, num_gathered=1), "handed over before it"),
            (lambda: trainer.load(str(job.run_dir / "nowhere")), "must have a readable"),
            (lambda: trainer.optim_step(), "needs a gradient"),
        ):
            with pytest.raises(HeadwayError, match=words):
                call()
        trainer.gather(rows[:1])
        for call, words in (
            (lambda: trainer.gather(rows[:1]), "in one part of a batch"),
            (lambda: trainer.forward_backward(rows, wide), "between gather and the step"),
            (lambda: trainer.optim_step(), "between gather and the step"),
            (lambda: trainer.step(rows[::-1], num_gathered=1), "handed over before it"),
        ):
            with pytest.raises(HeadwayError, match=words):
                call()
        found = trainer.step(rows, num_gathered=1)
        expected = alone.step(rows)
        assert found.num_trained_tokens == expected.num_trained_tokens
        assert found.metrics["grad_norm"] == pytest.approx(expected.metrics["grad_norm"], rel=1e-4)
        assert [other.process.poll() for other in trainer._others.ranks] == [None]
        trainer.close()
