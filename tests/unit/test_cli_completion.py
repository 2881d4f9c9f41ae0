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
        (["train", "a.toml", "algorithm.advantage=d"], ["algorithm.advantage=dr_grpo"]),
        (["set", "runs/a", "algorithm.correction=n"], ["algorithm.correction=none"]),
        (["set", "runs/a", "algorithm.loss=cross"], ["algorithm.loss=cross_entropy"]),
        (["train", "a.toml", "model.path="], ["model.path=smollm2", "model.path=tiny"]),
        (["train", "a.toml", "environment.name=a"], ["environment.name=arithmetic"]),
        (["env", "try", "arith"], ["arithmetic"]),
        (["completion", "z"], ["zsh"]),
    ],
)
def test_words_are_completed(words, wanted):
    assert completed(*words) == wanted


@pytest.mark.parametrize(
    ("words", "replies"),  # words as bash splits them at COMP_WORDBREAKS
    [
        (["headway", "set", "runs/a", "queue.bou"], "nospace queue.bound="),
        (["headway", "set", "runs/a", "trainer.full", "="], "true false"),
        (["headway", "set", "runs/a", "trainer.full", "=", "t"], "true"),
        (["headway", "set", "runs/a", "queue.bound", "=", "1", "trainer.schedule", "=", "l"], "linear"),
        (["headway", "set", "runs/a", "trainer.full=t"], "trainer.full=true"),  # where = breaks no words
        (["headway", "tr"], "train"),
    ],
)
def test_in_a_real_bash(tmp_path, words, replies):
    program = tmp_path / "headway"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headway "$@"\n')
    program.chmod(0o755)
    script = """
        eval "$(headway completion bash)"
        [[ $(complete -p headway) == *_headway_completion* ]] || exit 3
        compopt() { printf '%s ' "$2"; }  # the real one works only while readline completes
        COMP_WORDS=("$@") COMP_CWORD=$(( $# - 1 ))
        _headway_completion headway
        printf '%s' "${COMPREPLY[*]}"
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script, "bash", *words], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == replies


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
