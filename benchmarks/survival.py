"""How many steps a hostile setting survives: with nothing, with correction, with the guard, with both.

    python benchmarks/survival.py [--seeds 3] [--steps 80] [--out runs/bench-survival] [--minutes 0]
    python benchmarks/survival.py --table                 the kept result as Markdown

Hostile: versions are published every 8 steps with bound 8, so that tokens are four steps old in the mean, and
the tiny model's learning rate is multiplied by five (far in each of these steps, a slow decay) or by ten (too
far to learn at all: gone within the first version). Each of the two in four variants, all in turns:

- nothing: -A log pi (uncorrected.py), guard off.
- correction: the default loss, which clips the ratio to the policy that sampled each token.
- guard: nothing else, and `guard.action = "rollback"`: an alarm takes the trainer back to a checkpoint from
  before it, with 0.3 of the learning rate. It has a limit of its own, `min_reward`, below the reward that
  the model starts with, for the collapse comes before a baseline is there.
- both.

A run has collapsed at the first step taken from which the reward, a mean over the rollouts of 5 steps, stays
below half of its best until the end, or at the first step that is not finite; a run that ends for want of
signal or by the guard while its reward is above that has not collapsed, and what it ended by is told. Steps
that a rollback takes back count as taken. `held-out` is the final weights on 48 held-out tasks, four answers
each at temperature 1. Finished runs are kept in OUT/runs.jsonl; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from keep import keep
from learning import BASE, HERE, UNCORRECTED, make_missing, stale
from spread import Interval, interval
from tiny_runs import Kept, TinyRun

WINDOW = 5  # steps that a reward is a mean of
HOSTILE = {
    "x5": (*stale(8), "trainer.learning_rate=1.5e-3"),
    "x10": (*stale(8), "trainer.learning_rate=3e-3"),
}
GUARD = (
    "guard.action=rollback",
    "guard.window=3",
    "guard.baseline=12",
    "guard.min_reward=0.12",
    "guard.rollback_lr_scale=0.3",
    "guard.max_rollbacks=4",
    "checkpoint.every_steps=4",
    "checkpoint.keep=8",
)
VARIANTS: dict[str, tuple[str, ...]] = {
    f"{name}, {variant}": (*hostile, *more)
    for name, hostile in HOSTILE.items()
    for variant, more in (
        ("nothing", UNCORRECTED),
        ("correction", ()),
        ("guard", (*UNCORRECTED, *GUARD)),
        ("both", GUARD),
    )
}


def smoothed(run: TinyRun) -> list[float | None]:
    """Return for each step taken the mean reward of the rollouts scored in it and the steps before it."""
    taken = run.by_step if run.by_step[-1][1] else run.by_step[:-1]
    means: list[float | None] = []
    for end in range(1, len(taken) + 1):
        part = taken[max(0, end - WINDOW) : end]
        number = sum(number for _, number, _ in part)
        means.append(sum(total for *_, total in part) / number if number else None)
    return means


def collapsed_at(run: TinyRun) -> int | None:
    """Return the step taken, from 1, at which the run collapsed; None when it did not."""
    best, last_good = 0.0, 0
    course = smoothed(run)
    for step, reward in enumerate(course, start=1):
        if reward is None or reward >= best / 2:
            last_good = step
        best = max(best, reward or 0.0)
    found = last_good + 1 if last_good < len(course) else None
    return min((step for step in (found, run.nonfinite_at) if step is not None), default=None)


def result_of(runs: list[TinyRun], steps: int) -> dict[str, object]:
    """Return everything that is kept."""
    variants: dict[str, Any] = {}
    for name in VARIANTS:
        found = [run for run in runs if run.mode == name]
        if not found:
            continue
        falls = [collapsed_at(run) for run in found]
        taken = [len(run.by_step) - 1 for run in found]
        variants[name] = {
            "seeds": [run.seed for run in found],
            "collapsed_at": falls,
            "steps_taken": taken,
            "survived": interval(
                [fall - 1 if fall else all_ for fall, all_ in zip(falls, taken, strict=True)]
            ),
            "best_reward": interval([max(value or 0.0 for value in smoothed(run)) for run in found]),
            "final_reward": interval([run.final_reward for run in found]),
            "held_out": interval([run.held_out for run in found]),
            "rollbacks": [run.summary["rollbacks"] for run in found],
            "outcomes": dict(Counter(run.outcome for run in found)),
        }
    return {"steps": steps, "variants": variants}


def table(result: dict[str, Any]) -> str:
    """Return a kept result as Markdown."""
    lines = [
        "| Learning rate, variant | Survived, of steps taken, by seed | Best reward | Reward at the end "
        "| Held-out, final weights | Rollbacks | Ended by |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in result["variants"].items():
        cells = [
            name,
            ", ".join(
                f"all {taken}" if step is None else f"{step - 1} of {taken}"
                for step, taken in zip(found["collapsed_at"], found["steps_taken"], strict=True)
            ),
            Interval(*found["best_reward"]).text(2),
            Interval(*found["final_reward"]).text(2),
            Interval(*found["held_out"]).text(2),
            ", ".join(f"{number:g}" for number in found["rollbacks"]),
            ", ".join(f"{outcome} {number}" for outcome, number in found["outcomes"].items()),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Make the runs that are missing, print, keep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--config", type=Path, default=HERE.parent / "examples" / "tiny.toml")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-survival"))
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after this; 0 for no limit")
    parser.add_argument("--table", action="store_true", help="only print the kept result as Markdown")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads((HERE / "results" / "survival.json").read_text())["result"]))
        return
    base = [*BASE, f"stop.steps={options.steps}"]
    settings = {name: [*base, *variant] for name, variant in VARIANTS.items()}
    kept = Kept(options.out.resolve())
    runs = make_missing(kept, options.config, settings, options.seeds, options.minutes)
    plain = json.loads(json.dumps(result_of(runs, options.steps)))
    print(table(plain))
    keep("survival", plain)


if __name__ == "__main__":
    main()
