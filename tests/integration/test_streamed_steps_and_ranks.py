"""Whole runs whose trainer begins steps early, and whose trainer is two processes."""

import os
import signal

import pytest

from .conftest import processes

SLOW_ONES = "import asyncio; await asyncio.sleep(1.5 if index % 2 else 0)"  # every other group is late
STREAMED = ("queue.stream=true", "queue.bound=0", "queue.group_size=2", "queue.batch_size=8")


def ranks_of(trainer):
    """Process ids of the other ranks that a trainer's process started."""
    return [
        pid
        for pid, words in processes()
        if "headway.runtime.rank_worker" in words and words[-1] == str(trainer)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_run_that_begins_steps_early_trains_whole_batches_and_replays(bench, num_ranks):
    own = bench.environment(rollout=SLOW_ONES)
    ended = bench.train(*own, *STREAMED, f"trainer.ranks={num_ranks}")
    assert ended.code == 0, ended.text
    summary = bench.check()
    parts = bench.entries("TrainPart")
    assert parts
    assert len(bench.entries("PartEnded")) == len(parts)
    for train in bench.entries("Train"):
        handed = [row for part in parts if part["batch"] == train["batch"] for row in part["rows"]]
        assert train["rows"][: train["num_gathered"]] == handed
        assert len(train["rows"]) == 8
    assert {row for rows in bench.trained().values() for row in rows} == {
        row[0] for train in bench.entries("Train") for row in train["rows"]
    }
    assert 0 < summary["rl.trainer.streamed_fraction"] < 1
    assert not (bench.run_dir / "ranks").exists()


@pytest.mark.slow
def test_a_dead_rank_is_a_dead_trainer_that_comes_back_with_all_its_ranks(bench):
    own = bench.environment(rollout=SLOW_ONES)
    command = bench.start(
        "train", bench.config, *own, *STREAMED, "trainer.ranks=2", "stop.steps=3"
    ).until_step(1)
    (rank,) = ranks_of(bench.worker(command, "trainer"))
    os.kill(rank, signal.SIGKILL)
    command.until("trainer is started anew")
    ended = command.ended()
    assert ended.code == 0, ended.text
    assert "rank 1 of the trainer was ended by SIGKILL" in ended.out + ended.err
    bench.check()
    assert sorted(bench.trained()) == [1, 2, 3]
