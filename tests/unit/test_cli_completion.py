"""What the shell completes: commands, config keys with their choices, environments, runs."""

import os
import subprocess
import sys

import pytest


def completed(*words, cwd=None):
    environment = os.environ | {
        "_HEADWAY_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["headway", *words]),
        "COMP_CWORD": str(len(words)),
    }
    program = "from headway.cli.main import cli; cli(prog_name='headway')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, cwd=cwd
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["tr"], ["train"]),
        (["train", "--sm"], ["--smoke"]),
        (["train", "a.toml", "queue.bo"], ["queue.bound="]),
        (["train", "a.toml", "eval.st"], []),
        (["train", "a.toml", "trainer.full="], ["trainer.full=true", "trainer.full=false"]),
        (["train", "a.toml", "trainer.schedule=l"], ["trainer.schedule=linear"]),
        (["train", "a.toml", "no.such="], []),
        (["env", "try", "arith"], ["arithmetic"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_words_are_completed(words, wanted):
    assert completed(*words) == wanted


def test_runs_are_completed_and_other_directories_are_not(tmp_path):
    for name in ("one", "two"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "journal.jsonl").touch()
    (tmp_path / "runs" / "other").mkdir()
    assert completed("report", "runs/", cwd=tmp_path) == ["runs/one", "runs/two"]
    assert completed("report", "runs/t", cwd=tmp_path) == ["runs/two"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_the_command(shell):
    done = subprocess.run(
        [sys.executable, "-m", "headway", "completion", shell], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "_HEADWAY_COMPLETE" in done.stdout
