"""A run that is stopped or loses a process: nothing is left, nothing finished is lost, resume goes on.

Lives are chained, because starting one is what takes the time here: every run is stopped in several ways,
one after the other, before it may finish.
"""

import os
import random
import shutil
import signal

import pytest

from tests.integration.conftest import wait_for

# Every rollout has a sandbox with a live process for a moment, so that there is something to leave behind.
SLEEPS = 'await sandbox.exec(["sleep", "0.2"])'
STEPS = 12


def begin(bench):
    """Start a run with sandboxes."""
    environment = bench.environment(SLEEPS, needs_sandbox=True)
    return bench.start("train", bench.config, *environment, f"stop.steps={STEPS}")


def resume(bench):
    return bench.start("resume", bench.run_dir)


def finishes(bench, num_resumes):
    """Resume to the end: every step once, and no rollout in two of them."""
    ended = resume(bench).ended()
    assert ended.code == 0, ended.text
    steps = bench.trained()
    assert sorted(steps) == list(range(1, STEPS + 1))
    rollouts = [rollout for rows in steps.values() for rollout in rows]
    assert len(rollouts) == len(set(rollouts))
    report = bench.check()
    assert (report["outcome"], report["steps"], report["num_resumes"]) == ("steps", STEPS, num_resumes)


def test_an_interrupted_run_ends_in_order_and_goes_on(bench):
    command = begin(bench).until("run directory")
    wait_for(command.workers, "workers")
    command.interrupt()  # before its workers are there
    ended = command.ended()
    assert ended.code == 130, ended.text
    assert ended.out.startswith("run directory: ")
    bench.check()

    command = resume(bench).until_step(2)
    refused = bench.headway("resume", bench.run_dir).refused()
    assert f"process {command.pid} is still running" in refused
    command.interrupt()
    ended = command.ended()
    assert ended.code == 130, ended.text
    assert "once more ends at once" in ended.out
    assert bench.check()["outcome"] == "interrupted"
    done = bench.entries("StepEnded")[-1]["step"]
    assert bench.entries("CheckpointDone")[-1]["step"] == done

    finishes(bench, num_resumes=2)
    report = bench.check()
    again = bench.headway("resume", bench.run_dir)
    assert again.code == 0, again.text
    assert "is complete" in again.out
    assert bench.check() == report


@pytest.mark.slow
def test_two_interrupts_and_a_killed_driver_leave_nothing_and_the_run_goes_on(bench):
    command = begin(bench).until_step(2)
    command.interrupt()
    command.until("once more ends at once")
    command.interrupt()
    ended = command.ended(within_s=60)
    assert ended.code == 130, ended.text
    assert f"headway resume {bench.run_dir}" in ended.out
    assert "Traceback" not in ended.text
    bench.check()

    done = max(bench.trained())
    command = resume(bench).until_step(done + 1)
    wait_for(lambda: list(bench.sandboxes.glob("*/*")), "a sandbox")
    command.kill()
    wait_for(lambda: not command.workers(), lambda: f"the end of workers {command.workers()}", within_s=16)
    assert bench.leftovers(), "the killed run left nothing to sweep"

    finishes(bench, num_resumes=2)


@pytest.mark.slow
def test_a_killed_worker_is_started_anew_and_too_many_deaths_end_the_run(bench):
    command = begin(bench).until_step(1)
    os.kill(bench.worker(command, "generator0"), signal.SIGKILL)
    command.until("generator0 is started anew").until_step(3)
    os.kill(bench.worker(command, "trainer"), signal.SIGKILL)
    command.until("trainer is started anew").until_step(5)
    os.kill(bench.worker(command, "trainer"), signal.SIGKILL)
    ended = command.ended(within_s=60)
    assert ended.code == 1, ended.text
    assert "worker trainer died: it was ended by SIGKILL" in ended.err
    assert f"headway resume {bench.run_dir}" in ended.out
    assert bench.check()["outcome"] == "failed"

    done = max(bench.trained())
    command = bench.start("resume", bench.run_dir, "recovery.environment_restarts=1").until_step(done + 1)
    os.kill(bench.worker(command, "environment0"), signal.SIGKILL)
    command.until("environment0 is started anew").until_step(done + 3)
    failed = [note for note in bench.entries("AttemptFailed") if note["cause"] == "worker_lost"]
    assert failed
    assert all(note["owner"] == "infrastructure" and note["retried"] for note in failed)
    os.kill(bench.worker(command, "environment0"), signal.SIGKILL)
    ended = command.ended(within_s=60)
    assert ended.code == 1, ended.text
    assert "worker environment0 died: it was ended by SIGKILL" in ended.err
    assert bench.check()["outcome"] == "failed"
    finishes(bench, num_resumes=2)


def survives(bench, rng, num_kills):
    """Kill processes at random moments, then finish: every step once, nothing twice, nothing left."""
    command, resumes = begin(bench), 0
    for _ in range(num_kills):
        command.wait_a_while(rng.uniform(0.5, 12.0))
        bench.kill_one(command, rng.choice(["driver", "generator0", "trainer", "environment0"]))
        command.wait_a_while(1.0)
        if command.process.poll() is not None:
            wait_for(lambda: not command.workers(), "the end of its workers")  # noqa: B023
            if not (bench.run_dir / "journal.jsonl").exists():
                shutil.rmtree(bench.run_dir, ignore_errors=True)  # killed before it had begun
                command = begin(bench)
            else:
                command, resumes = resume(bench), resumes + 1
    code = command.ended().code
    while code != 0:
        ended, resumes = resume(bench).ended(), resumes + 1
        assert ended.code in (0, 1), ended.text
        code = ended.code
    steps = bench.trained()
    assert sorted(steps) == list(range(1, STEPS + 1))
    rollouts = [rollout for rows in steps.values() for rollout in rows]
    assert len(rollouts) == len(set(rollouts))
    assert bench.check()["outcome"] == "steps"


@pytest.mark.parametrize(
    ("seed", "num_kills"),
    [pytest.param(seed, 5, marks=pytest.mark.slow) for seed in range(20)],
)
def test_processes_killed_at_random_moments_cost_no_finished_rollout(bench, seed, num_kills):
    survives(bench, random.Random(seed), num_kills)
