"""Short runs of the tiny model for benchmarks: one process tree each, read from its journal, then deleted.

What a run gave is kept as one line of JSON, so that a benchmark that is stopped goes on where it was.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.commands import StartRollout
from headway.core.events import Scored, StepEnded
from headway.core.notes import BatchReleased
from headway.telemetry.journal import read_journal

if TYPE_CHECKING:
    from collections.abc import Sequence

SLICE_S = 0.25
FINAL_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class TinyRun:
    """One run, as a benchmark needs it.

    Attributes:
        mode: which of the benchmark's settings.
        seed: of the run.
        settings: the overrides of the config, which the run is known by.
        outcome: why it ended.
        summary: what `headway report --json` says, a selection.
        by_step: for each optimizer step taken, in order, and what came after the last one: (rollouts trained
            before it, train rollouts scored while it was in progress, sum of their rewards). Steps that a
            rollback took back are in it too.
        by_time: (rollouts scored, sum of their rewards) in each slice of SLICE_S seconds since the first
            train rollout began.
        nonfinite_at: the first step taken whose loss or gradient was not finite, from 1; None for none.
    """

    mode: str
    seed: int
    settings: list[str]
    outcome: str
    summary: dict[str, float | None]
    by_step: list[tuple[int, int, float]]
    by_time: list[tuple[int, float]]
    nonfinite_at: int | None = None

    @property
    def mean_reward(self) -> float:
        """Of all train rollouts."""
        return sum(total for _, _, total in self.by_step) / sum(number for _, number, _ in self.by_step)

    @property
    def held_out(self) -> float:
        """Of the final weights on held-out tasks; 0 where the run was not evaluated."""
        return self.summary["held_out"] or 0.0

    @property
    def final_reward(self) -> float:
        """Of the train rollouts that were scored while the last quarter of the samples was trained."""
        start = (1 - FINAL_SHARE) * self.by_step[-1][0]
        late = [(number, total) for trained, number, total in self.by_step[:-1] if trained >= start]
        return sum(total for _, total in late) / max(1, sum(number for number, _ in late))


KEYS = {
    "steps": "steps",
    "held_out": "eval.last",
    "window_s": "window_s",
    "wall_s": "wall_s",
    "token_staleness": "rl.staleness.token.mean",
    "discarded": "rl.discard.rollout_fraction",
    "clipped": "rl.loss.clip_fraction.mean",
    "masked": "rl.loss.mask_fraction.mean",
    "mismatch_kl": "rl.loss.mismatch_kl.mean",
    "nonfinite": "rl.loss.nonfinite.max",
    "rollbacks": "num_rollbacks",
    "parked": "rl.partial.num_parked",
    "oversampled": "rl.discard.cancelled.rollouts",
}


class Kept:
    """The finished runs of a benchmark, in `runs.jsonl` of a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._file = folder / "runs.jsonl"

    def all(self) -> list[TinyRun]:
        """Return every run that was kept."""
        if not self._file.exists():
            return []
        lines = [json.loads(line) for line in self._file.read_text().splitlines()]
        return [
            TinyRun(**{
                **line,
                "by_step": [tuple(part) for part in line["by_step"]],
                "by_time": [tuple(part) for part in line["by_time"]],
            })
            for line in lines
        ]  # fmt: skip

    def find(self, mode: str, seed: int, settings: Sequence[str]) -> TinyRun | None:
        """Return the run of these settings, None when it was not made yet."""
        same = (
            run for run in self.all() if (run.mode, run.seed, run.settings) == (mode, seed, list(settings))
        )
        return next(same, None)

    def make(self, config: Path, mode: str, seed: int, settings: Sequence[str]) -> TinyRun:
        """Run the config and keep what it gave; the run's directory is deleted.

        Raises RuntimeError when the run left no summary, with the end of what it printed.
        """
        name = f"{mode}-{seed}".replace(" ", "-").replace(",", "")
        run_dir = self._folder / name
        shutil.rmtree(run_dir, ignore_errors=True)  # of a benchmark that was stopped
        command = [sys.executable, "-m", "headway", "train", str(config), f"run.dir={self._folder}"]
        command += [f"run.name={name}", f"run.seed={seed}", *settings]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if not (run_dir / "summary.json").exists():
            raise RuntimeError(f"{mode}, seed {seed} left no summary:\n{done.stdout[-2000:]}")
        run = read_run(run_dir, mode, seed, settings)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(run)) + "\n")
        shutil.rmtree(run_dir)
        return run


def read_run(run_dir: Path, mode: str, seed: int, settings: Sequence[str]) -> TinyRun:
    """Read what a run directory tells."""
    summary = json.loads((run_dir / "summary.json").read_text())
    train: set[str] = set()
    began: float | None = None
    batches: dict[int, int] = {}
    by_step: list[list[float]] = [[0, 0, 0.0]]
    by_time: list[list[float]] = []
    nonfinite_at: int | None = None
    for entry in read_journal(run_dir).entries():
        batches |= {note.batch: note.num_rollouts for note in entry.notes if isinstance(note, BatchReleased)}
        for command in entry.commands:
            if isinstance(command, StartRollout) and command.purpose == "train":
                began = entry.t if began is None else began
                train.add(command.rollout)
        event = entry.event
        if isinstance(event, StepEnded):
            if event.metrics.get("nonfinite", 0.0) and nonfinite_at is None:
                nonfinite_at = len(by_step)
            by_step.append([by_step[-1][0] + batches[event.batch], 0, 0.0])
        elif isinstance(event, Scored) and event.rollout in train and began is not None:
            number = int((entry.t - began) / SLICE_S)
            by_time += [[0, 0.0] for _ in range(number + 1 - len(by_time))]
            for place, at in ((by_step[-1], 1), (by_time[number], 0)):
                place[at] += 1
                place[at + 1] += event.reward
    picked = {name: _find(summary, key) for name, key in KEYS.items()}
    steps = [(int(trained), int(number), total) for trained, number, total in by_step]
    times = [(int(number), total) for number, total in by_time]
    outcome = str(summary["outcome"])
    return TinyRun(mode, seed, list(settings), outcome, picked, steps, times, nonfinite_at)


def _find(summary: dict[str, Any], key: str) -> float | None:
    """Return a metric, or a part of one: `rl.staleness.token.mean` is `mean` of `rl.staleness.token`."""
    if key in summary:
        return summary[key]
    whole, _, part = key.rpartition(".")
    found = summary.get(whole)
    return found.get(part) if isinstance(found, dict) else None
