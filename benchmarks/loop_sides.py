"""One run of each side of benchmarks/loop.py, as its own processes, and what is measured in it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loop_scenes import BATCH, GROUP, Scene, Threads, write_config
from process_tree import run_watched

from headway.core.commands import Train
from headway.core.events import Scored, StepEnded
from headway.telemetry.journal import read_journal

_HEADWAY = [sys.executable, "-m", "headway"]
_SHOWN = {
    "wait": "rl.trainer.wait_fraction",
    "compute": "rl.trainer.compute_fraction",
    "publish": "rl.trainer.publish_fraction",
    "driver": "rl.driver.overhead_fraction",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run gave.

    Attributes:
        samples_per_s: rollouts trained a second between the ends of the first and the last measured step.
        start_s: from the process's start to the end of the first step.
        peak_bytes: of all its processes together.
        rewards: of the rollouts in the order in which they were trained; TRL's are means of whole steps.
        shown: shares of the trainer's time and of the driver's, Headway alone.
    """

    samples_per_s: float
    start_s: float
    peak_bytes: int
    rewards: list[float]
    shown: dict[str, float]


def rate(ends: list[float], lead: int, tail: int = 0) -> float:
    """Return samples a second between step ends, the first and last steps left out.

    Raises ValueError when no step is left.
    """
    kept = ends[lead - 1 : len(ends) - tail]
    if len(kept) < 2:
        raise ValueError(
            f"{len(ends)} steps leave none to measure after the first {lead} and the last {tail}"
        )
    return BATCH * (len(kept) - 1) / (kept[-1] - kept[0])


def run_headway(
    config: Path, folder: Path, name: str, overrides: dict[str, object], tail: int, tokens: int = 0
) -> Measured:
    """Train once with `headway train` and read its journal; its directory is deleted.

    `tail` is its staleness bound: that many + 1 batches are generated at once in the beginning, and the last
    `tail` steps are taken when generation has nothing left to do; both are left out. Raises RuntimeError when
    a step trained another number of tokens than `tokens`, unless that is 0.
    """
    run_dir = folder / name
    shutil.rmtree(run_dir, ignore_errors=True)  # of a benchmark that was stopped
    settings = [f"{key}={value}" for key, value in overrides.items()]
    train = [*_HEADWAY, "train", str(config), f"run.dir={folder}", f"run.name={name}", *settings]
    peak = run_watched(train).peak_bytes
    report = json.loads(run_watched([*_HEADWAY, "report", str(run_dir), "--json"]).output)
    ends: list[float] = []
    trained: list[str] = []
    rewards: dict[str, float] = {}
    for entry in read_journal(run_dir).entries():
        trained += itertools.chain.from_iterable(
            (row.rollout for row in command.rows) for command in entry.commands if isinstance(command, Train)
        )
        if isinstance(entry.event, StepEnded):
            ends.append(entry.t)
            if tokens not in (0, entry.event.num_trained_tokens):
                raise RuntimeError(
                    f"{name}: a step trained {entry.event.num_trained_tokens}, not {tokens} tokens"
                )
        elif isinstance(entry.event, Scored):
            rewards[entry.event.rollout] = entry.event.reward
    if len(trained) != BATCH * len(ends):
        raise RuntimeError(f"{name}: {len(ends)} steps trained {len(trained)} rollouts, not {BATCH} each")
    shown = {label: report[key] for label, key in _SHOWN.items() if report[key] is not None}
    shutil.rmtree(run_dir)
    return Measured(rate(ends, tail + 1, tail), ends[0], peak, [rewards[name] for name in trained], shown)


def run_ours(
    scene: Scene, model: Path, prompts: Path, folder: Path, *, steps: int, seed: int = 0
) -> Measured:
    """Measure `steps` steps of Headway."""
    total = scene.bound + 1 + steps + scene.bound
    config = write_config(scene, model, prompts, folder, total)
    tokens = BATCH * scene.answer_tokens if scene.fixed_length else 0
    return run_headway(config, folder, f"{scene.name}-{seed}", {"run.seed": seed}, scene.bound, tokens)


def run_theirs(
    scene: Scene, model: Path, prompts: Path, folder: Path, *, steps: int, threads: Threads, seed: int = 0
) -> Measured:
    """Measure `steps` steps of TRL, or the fewer that the scene allows it."""
    output = folder / "trl"
    job: dict[str, Any] = {
        "model": str(model),
        "prompts": str(prompts),
        "output": str(output),
        "seed": seed,
        "steps": scene.their_lead + (min(steps, scene.their_steps) if scene.their_steps else steps),
        "lead": scene.their_lead,
        "batch": BATCH,
        "group": GROUP,
        "rows": scene.their_rows,
        "answer_tokens": scene.answer_tokens,
        "rate": scene.rate,
        "full": scene.full,
        "threads": threads.num,
        "fixed_length": scene.fixed_length,
    }
    env = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads.num),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    env["OMP_WAIT_POLICY"] = {"sleeping": "PASSIVE", "spinning": "ACTIVE"}[threads.waiting]
    script = str(Path(__file__).parent / "loop_trl.py")
    ran = run_watched([sys.executable, script, json.dumps(job)], env)
    shutil.rmtree(output, ignore_errors=True)
    found = json.loads(ran.output.splitlines()[-1])
    ends = found["ends"]  # with the time at which the first step began, where it counts
    samples_per_s = rate(ends, max(1, scene.their_lead))
    return Measured(samples_per_s, ends[1 - scene.their_lead], ran.peak_bytes, found["rewards"], {})
