"""A run that is stopped or loses a process: nothing is left, nothing finished is lost, resume goes on.

Lives are chained, because starting one is what takes the time here: every run is stopped in several ways,
one after the other, before it may finish.
"""

import os
import signal

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


def test_a_killed_worker_ends_the_run_with_its_cause(bench):
    for life, role in enumerate(["trainer", "generator0", "environment0"]):
        command = resume(bench) if life else begin(bench)
        command.until_step(3 * life + 2)
        os.kill(bench.worker(command, role), signal.SIGKILL)
        ended = command.ended(within_s=30)
        assert ended.code == 1, ended.text
        assert f"worker {role} died: it was ended by SIGKILL" in ended.err
        assert f"headway resume {bench.run_dir}" in ended.out
        assert bench.check()["outcome"] == "failed"
    finishes(bench, num_resumes=3)
