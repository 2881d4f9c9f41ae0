"""A broken run is the unbroken one to the bit: with bound 0, one request at a time and fixed threads.

Compared are the loss of every surviving step, what it trained, and the weights of the last checkpoint.
"""

import hashlib
import os
import random
import signal

import pytest

from headway.trainer.checkpoints import find_checkpoint

STEPS = 5
SETTINGS = (
    "queue.bound=0",
    "queue.drop_zero_advantage=true",
    "queue.group_size=6",
    "queue.batch_size=12",
    "generator.max_running=1",
    "generator.temperature=1.5",
    "trainer.full=false",
    "trainer.learning_rate=1e-3",
    f"stop.steps={STEPS}",
    "checkpoint.every_steps=2",
    "stop.wall_s=0",
)
CURVE = ("loss", "grad_norm", "entropy")


def outcome(bench, run_dir):
    """The loss curve of the surviving steps, and a digest of the weights at the end."""
    steps = {}
    bench.check(run_dir)
    for event in bench.events(run_dir):
        if event["kind"] in ("RunResumed", "RolledBack"):
            steps = {step: values for step, values in steps.items() if step <= event["step"]}
        elif event["kind"] == "StepEnded":
            steps[event["step"]] = [event["metrics"][name] for name in CURVE]
    last = find_checkpoint(run_dir / "checkpoints")[0]
    weights = last / "adapter" / "adapter_model.safetensors"
    assert last.name == f"step-{STEPS:06d}"
    return steps, hashlib.sha256(weights.read_bytes()).hexdigest()


@pytest.fixture
def whole(bench):
    ended = bench.train("run.name=whole", *SETTINGS)
    assert ended.code == 0, ended.text
    steps, weights = outcome(bench, bench.runs / "whole")
    assert list(steps) == list(range(1, STEPS + 1))
    assert len({loss for loss, *_ in steps.values()}) > 1
    return steps, weights


def test_a_run_whose_processes_are_killed_is_the_unbroken_one_to_the_bit(bench, whole):
    command = bench.start("train", bench.config, *SETTINGS).until_step(1)
    os.kill(bench.worker(command, "generator0"), signal.SIGKILL)
    command.until("generator0 is started anew").until_step(3)
    os.kill(bench.worker(command, "trainer"), signal.SIGKILL)
    command.until("trainer is started anew").until_step(4)
    command.kill()
    ended = bench.headway("resume", bench.run_dir)
    assert ended.code == 0, ended.text
    assert outcome(bench, bench.run_dir) == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_killed_at_random_moments_a_run_is_the_unbroken_one_to_the_bit(bench, whole, seed):
    rng = random.Random(seed)
    command = bench.start("train", bench.config, *SETTINGS)
    for _ in range(3):
        if command.process.poll() is None:
            command.wait_a_while(rng.uniform(2.0, 12.0))
        who = rng.choice(["driver", "generator0", "trainer"])
        bench.kill_one(command, who)
        if command.process.poll() is not None:
            command = bench.start("resume", bench.run_dir)
    ended = command.ended()
    while ended.code != 0:
        assert ended.code in (1, -signal.SIGKILL), ended.text
        ended = bench.headway("resume", bench.run_dir)
    assert outcome(bench, bench.run_dir) == whole
