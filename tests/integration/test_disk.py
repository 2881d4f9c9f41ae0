"""What a run keeps on disk, and how it ends when the disk is full: real runs on small file systems."""

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.trainer.checkpoints import complete_checkpoints, step_of


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
        for left in reversed(range(20)):
            size = shutil.disk_usage(folder).free - (kilobytes << 10)
            with ballast.open("ab") as file:
                try:
                    os.posix_fallocate(file.fileno(), 0, size + ballast.stat().st_size)
                    break
                except OSError:  # the run wrote meanwhile, and there is less room than there was
                    if not left:
                        raise
        return ballast

    return filled


def steps_saved(bench):
    return [step_of(path) for path in complete_checkpoints(bench.run_dir / "checkpoints")]


def finishes(bench, *overrides):
    """Resume to the end: every step once, and no rollout in two of them."""
    ended = bench.headway("resume", bench.run_dir, *overrides)
    assert ended.code == 0, ended.text
    steps = bench.trained()
    assert sorted(steps) == list(range(1, max(steps) + 1))
    rollouts = [rollout for rows in steps.values() for rollout in rows]
    assert len(rollouts) == len(set(rollouts))
    assert bench.check()["outcome"] == "steps"


def ended_full(bench, ended, *files):
    """The run said once which file had no room, and left nothing half done."""
    assert ended.code == 1, ended.text
    assert "Traceback" not in ended.text
    (line,) = [line for line in ended.out.splitlines() if line.startswith("error: ")]
    assert "no room for" in line
    assert any(file in line for file in files)
    assert "are free there" in line
    assert f"headway resume {bench.run_dir}" in ended.out
    assert not list((bench.run_dir / "checkpoints").glob(".partial*"))
    assert bench.check()["outcome"] == "disk_full"


@pytest.mark.slow
def test_a_disk_that_is_full_while_checkpointing_ends_the_run_and_it_goes_on_once_there_is_room(bench, fill):
    slow = bench.environment("await asyncio.sleep(0.2)")
    with small_disk(bench.runs, 40):
        # none is let go for the next one, so that it is a checkpoint that has no room, and not the journal
        command = bench.start("train", bench.config, "stop.steps=40", "checkpoint.keep=50", *slow)
        command = command.until_step(2)
        fill(bench.runs, 7000)  # a checkpoint takes 5 MB
        command.until("^warning: .* are free where ")
        ballast = fill(bench.runs, 2000)  # enough for the journal meanwhile
        # What the checkpoint has written until it fails is missing to the journal, too.
        ended_full(bench, command.ended(), "checkpoints/step-", "journal.jsonl")
        assert steps_saved(bench)
        refused = bench.headway("resume", bench.run_dir).refused()
        assert f"{bench.run_dir} must have room for " in refused  # the reserve, or the next checkpoint
        ballast.unlink()
        finishes(bench, "checkpoint.keep=2")


def test_a_disk_that_is_full_while_payloads_and_journal_are_written(bench, fill):
    with small_disk(bench.runs, 30):
        command = bench.start("train", bench.config, "stop.steps=400", "checkpoint.every_steps=1000")
        command.until_step(2)
        ballast = fill(bench.runs, 30)
        ended_full(bench, command.ended(), "test/")
        assert "\ndisk_full: no room for" in bench.headway("report", bench.run_dir).out
        ballast.unlink()
        done = max(bench.trained())
        ended = bench.headway("resume", bench.run_dir, f"stop.steps={done + 2}")
        assert ended.code == 0, ended.text
        assert sorted(bench.trained()) == list(range(1, done + 3))
        assert bench.check()["outcome"] == "steps"


def test_full_shared_memory_moves_the_versions_to_the_run_directory(bench, fill):
    slow = bench.environment("await asyncio.sleep(0.2)")
    own_memory = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=16m x /dev/shm && exec "$@"', "sh"]
    if os.getuid() != 0 or subprocess.run([*own_memory, "true"], capture_output=True).returncode:
        pytest.skip("needs root: /dev/shm is mounted anew")
    command = bench.start("train", bench.config, "stop.steps=6", *slow, prefix=own_memory).until_step(2)
    fill(Path(f"/proc/{command.pid}/root/dev/shm"), 200)
    ended = command.ended()
    assert ended.code == 0, ended.text
    (warned,) = [note["text"] for note in bench.entries("Warned") if note["code"] == "weights_moved"]
    assert f"versions are handed over in {bench.run_dir}/weights from now on" in warned
    assert bench.entries("VersionPublished")[-1]["manifest"].startswith(f"{bench.run_dir}/weights/")
    assert bench.check()["outcome"] == "steps"
    assert not (bench.run_dir / "weights").exists()


def test_a_limit_on_file_sizes_is_refused_before_anything_begins(bench):
    ended = bench.start("train", bench.config, prefix=["sh", "-c", 'ulimit -f 2000; exec "$@"', "sh"]).ended()
    said = ended.refused()
    assert f"{bench.run_dir} must have room for 4.2 MB to begin with" in said
    assert "File too large" in said
    assert "run.dir=DIRECTORY" in said


@pytest.mark.slow
def test_retention_and_prune_leave_what_a_resume_needs(bench):
    policy = [
        "stop.steps=40", "checkpoint.every_steps=10", "checkpoint.keep_every_steps=20", "checkpoint.keep=1",
        "retention.payloads=10", "retention.sample_groups=20", "eval.num_tasks=2",
    ]  # fmt: skip
    ended = bench.train(*policy)
    assert ended.code == 0, ended.text
    report = bench.check()
    assert steps_saved(bench) == [20, 40]
    files = sorted(path.name for path in (bench.run_dir / "payloads").iterdir())
    kept = {
        kind: [int(f.partition("-t")[2][:6]) for f in files if f".{kind}-t" in f]
        for kind in ("train", "sample")
    }
    assert min(kept["train"]) >= 2  # groups of the newest steps, of 5 segments
    assert kept["sample"][0] == 0
    assert any(".eval-" in file for file in files)
    assert report["rl.disk.checkpoints_bytes"] > 2 * report["rl.disk.payloads_bytes"] > 0
    assert report["rl.disk.weights_bytes"] == 0
    assert bench.entries("CheckpointDone")[-1]["num_bytes"] == sum(
        path.stat().st_size
        for path in (bench.run_dir / "checkpoints" / "step-000040").rglob("*")
        if path.is_file()
    )
    assert "Disk\n----\n" in bench.headway("report", bench.run_dir).out

    arguments = ["prune", bench.run_dir, "checkpoint.keep_every_steps=0", "retention.payloads=none"]
    arguments += ["retention.sample_groups=0", "retention.evaluations=false"]
    tried = bench.headway(*arguments, "--dry-run")
    assert "would free" in tried.out
    assert "step-000020" in tried.out
    assert steps_saved(bench) == [20, 40]
    done = bench.headway(*arguments)
    assert done.out == tried.out.replace("would free", "freed")
    assert "One checkpoint is left" in done.out
    assert steps_saved(bench) == [40]
    assert not list((bench.run_dir / "payloads").iterdir())
    assert "nothing to remove" in bench.headway(*arguments).out
    assert (
        "takes settings of what is kept only"
        in bench.headway("prune", bench.run_dir, "queue.bound=2").refused()
    )
    ended = bench.headway("resume", bench.run_dir, "stop.steps=43")
    assert ended.code == 0, ended.text
    assert sorted(bench.trained()) == list(range(1, 44))
    assert bench.check()["outcome"] == "steps"
