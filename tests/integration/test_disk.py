"""What a run keeps on disk, and how it ends when the disk is full: real runs on small file systems."""

import os
import shutil
import subprocess
from contextlib import contextmanager

import pytest

from headway.trainer.checkpoints import complete_checkpoints, step_of

STEPS = 12


@contextmanager
def small_disk(folder, megabytes):
    """A file system of its own; needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "headway-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True) if os.getuid() == 0 else None
    if mounted is None or mounted.returncode:
        pytest.skip("needs root: a small file system is mounted")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def fill():
    """Fill a disk but for so many kilobytes; returns the file that does so."""

    def filled(folder, kilobytes):
        ballast = folder / "ballast"
        size = shutil.disk_usage(folder).free - (kilobytes << 10)
        with ballast.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, size + ballast.stat().st_size)
        return ballast

    return filled


def steps_saved(bench):
    return [step_of(path) for path in complete_checkpoints(bench.run_dir / "checkpoints")]


def finishes(bench):
    """Resume to the end: every step once, and no rollout in two of them."""
    ended = bench.headway("resume", bench.run_dir)
    assert ended.code == 0, ended.text
    steps = bench.trained()
    assert sorted(steps) == list(range(1, max(steps) + 1))
    rollouts = [rollout for rows in steps.values() for rollout in rows]
    assert len(rollouts) == len(set(rollouts))
    assert bench.check()["outcome"] == "steps"


def ended_full(bench, ended, file):
    """The run said once which file had no room, and left nothing half done."""
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    (line,) = [line for line in ended.out.splitlines() if line.startswith("error: ")]
    assert "no room for" in line
    assert file in line
    assert "are free there" in line
    assert f"headway resume {bench.run_dir}" in ended.out
    assert not list((bench.run_dir / "checkpoints").glob(".partial*"))
    assert bench.check()["outcome"] == "disk_full"


def test_a_disk_that_is_full_while_checkpointing_ends_the_run_and_it_goes_on_once_there_is_room(bench, fill):
    with small_disk(bench.runs, 40):
        command = bench.start(
            "train", bench.config, f"stop.steps={STEPS}", *bench.environment("await asyncio.sleep(0.3)")
        ).until_step(2)
        ballast = fill(bench.runs, 300)
        ended = command.ended()
        ended_full(bench, ended, "checkpoints/step-")
        assert steps_saved(bench)
        ballast.unlink()
        finishes(bench)
