"""What staleness and correction do to learning: the tiny model, all modes in turns, over several seeds.

    python benchmarks/learning.py [--seeds 5] [--steps 40] [--out runs/bench-learning] [--minutes 0] [--plot]
    python benchmarks/learning.py --table                 the kept result as Markdown

- sync: bound 0. Nothing is stale.
- bound 1, 4, 8: the default loss, whose ratio to the sampling policy is the correction. The tiny model's
  generator is quick, so a bound alone makes little stale; versions are published only every `bound` steps,
  and tokens are 0 to `bound` steps old. The mean age is measured.
- bound 1, 4, 8 uncorrected: the same with -A log pi (uncorrected.py).
- oversampled: bound 4, ten rollouts started for each group of eight, two groups more than depth allows.
- partial: bound 4, stragglers parked at each update, tokens beyond the bound masked.

The final reward is that of the train rollouts which were scored while the last quarter of the samples was
trained. These were sampled by versions up to `bound` steps old, so it lags behind the policy; `held-out` does
not: the final weights on the 48 held-out tasks, four answers each at temperature 1. Differences to sync
are paired by seed. Intervals are 95 %, Student's t over seeds.

Finished runs are kept in OUT/runs.jsonl and not made again: a benchmark that is stopped, by hand or by
--minutes, goes on where it was. Times of runs that shared the machine with others mean little; rewards do not
depend on that but through which rollouts meet in a batch. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from keep import keep
from spread import Interval, interval
from tiny_runs import SLICE_S, Kept, TinyRun

from headway.core.clock import stopwatch

HERE = Path(__file__).parent
BATCH = 64  # of examples/tiny.toml
BIN_SAMPLES = 2 * BATCH  # of the curve over samples
BIN_SLICES = 3  # of the curve over time
DIGITS = 4
PICTURE = "![Mean reward against rollouts trained and against seconds, for each mode](learning.svg)"
CLAIM = 0.05  # bound 8 with the default correction is to be so near to sync, of sync's reward
BASE = (
    "stop.wall_s=0",
    "eval.num_tasks=48",
    "eval.rollouts_per_task=4",
    "eval.temperature=1",
    "eval.at_start=false",
    "checkpoint.every_steps=0",
    "guard.action=off",
)


def stale(bound: int) -> tuple[str, ...]:
    """A bound that is used: versions are published so seldom that tokens are up to `bound` steps old."""
    return (f"queue.bound={bound}", f"queue.publish_every={bound}")


UNCORRECTED = (f"algorithm.loss={HERE / 'uncorrected.py'}:loss",)
MODES: dict[str, tuple[str, ...]] = {
    "sync": ("queue.bound=0",),
    "bound 1": stale(1),
    "bound 4": stale(4),
    "bound 8": stale(8),
    "bound 1, uncorrected": stale(1) + UNCORRECTED,
    "bound 4, uncorrected": stale(4) + UNCORRECTED,
    "bound 8, uncorrected": stale(8) + UNCORRECTED,
    "oversampled": (*stale(4), "oversampling.rollouts_extra=2", "oversampling.groups_extra=2"),
    "partial": (*stale(4), "partial.park=update", "staleness.token=mask"),
}


def curve_by_samples(run: TinyRun, bin_samples: float) -> list[float | None]:
    """Return the mean reward in each part of the trained samples."""
    sums = [[0, 0.0] for _ in range(int(run.by_step[-1][0] / bin_samples) + 1)]
    for trained, number, total in run.by_step[:-1]:
        place = sums[int(trained / bin_samples)]
        place[0] += number
        place[1] += total
    return [total / number if number else None for number, total in sums]


def curve_by_time(run: TinyRun) -> list[float | None]:
    """Return the mean reward in each BIN_SLICES slices of time that follow one another."""
    parts = [run.by_time[at : at + BIN_SLICES] for at in range(0, len(run.by_time), BIN_SLICES)]
    numbers = [sum(number for number, _ in part) for part in parts]
    return [
        sum(total for _, total in part) / number if number else None
        for part, number in zip(parts, numbers, strict=True)
    ]


def over_seeds(curves: list[list[float | None]]) -> list[tuple[float, float | None] | None]:
    """Return (mean, half of its interval) of each place that all of the curves have."""
    points: list[tuple[float, float | None] | None] = []
    for place in range(min(map(len, curves))):
        values = [value for curve in curves if (value := curve[place]) is not None]
        found = interval(values) if len(values) == len(curves) else None
        points.append(None if found is None else rounded(found))
    return points


def rounded(found: Interval) -> tuple[float, float | None]:
    """Return mean and half as they are kept."""
    return round(found.mean, DIGITS), None if found.half is None else round(found.half, DIGITS)


def paired(mode: list[TinyRun], sync: list[TinyRun], value: str) -> Interval | None:
    """Return the mean difference of a value to sync over the seeds that both have, None for none."""
    base = {run.seed: getattr(run, value) for run in sync}
    differences = [getattr(run, value) - base[run.seed] for run in mode if run.seed in base]
    return interval(differences) if differences else None


def mean_of(runs: list[TinyRun], key: str) -> float | None:
    """Return the mean of a summary's number, None where no run has it."""
    values = [value for run in runs if (value := run.summary[key]) is not None]
    return sum(values) / len(values) if values else None


def result_of(runs: list[TinyRun], steps: int) -> dict[str, object]:
    """Return everything that is kept, from the runs of all modes."""
    by_mode = {mode: [run for run in runs if run.mode == mode] for mode in MODES}
    sync = by_mode["sync"]
    modes: dict[str, Any] = {}
    for mode, found in by_mode.items():
        if not found:
            continue
        modes[mode] = {
            "seeds": sorted(run.seed for run in found),
            "final_reward": interval([run.final_reward for run in found]),
            "mean_reward": interval([run.mean_reward for run in found]),
            "held_out": interval([run.held_out for run in found]),
            "final_minus_sync": paired(found, sync, "final_reward"),
            "mean_minus_sync": paired(found, sync, "mean_reward"),
            "held_out_minus_sync": paired(found, sync, "held_out"),
            "token_staleness": mean_of(found, "token_staleness"),
            "discarded": mean_of(found, "discarded"),
            "clipped": mean_of(found, "clipped"),
            "parked": mean_of(found, "parked"),
            "oversampled": mean_of(found, "oversampled"),
            "trained": sum(run.by_step[-1][0] for run in found) / len(found),
            "seconds": mean_of(found, "window_s"),
            "ended_early": sum(run.outcome != "steps" for run in found),
            "reward_by_samples": over_seeds([curve_by_samples(run, BIN_SAMPLES) for run in found]),
            "reward_by_time": over_seeds([curve_by_time(run) for run in found]),
        }
    return {
        "steps": steps,
        "batch": BATCH,
        "bin_samples": BIN_SAMPLES,
        "bin_s": BIN_SLICES * SLICE_S,
        "modes": modes,
        "claim": claim(modes),
    }


def claim(modes: dict[str, Any]) -> dict[str, object] | None:
    """Say whether bound 8 with the default loss is within CLAIM of sync, by the interval's lower end."""
    if "bound 8" not in modes or "sync" not in modes:
        return None
    base, difference = modes["sync"]["final_reward"].mean, modes["bound 8"]["final_minus_sync"]
    if difference is None:
        return None
    return {
        "relative": difference.mean / base,
        "relative_half": None if difference.half is None else difference.half / base,
        "within": difference.low > -CLAIM * base,
        "interval_wider_than_claim": difference.half is None or difference.half > CLAIM * base,
    }


def table(result: dict[str, Any]) -> str:
    """Return a kept result as Markdown."""
    seeds = max(len(mode["seeds"]) for mode in result["modes"].values())
    lines = [
        f"{seeds} seeds, {result['steps']} steps of {result['batch']} rollouts; means with 95 % intervals.",
        "",
        "| Mode | Tokens old, mean | Final reward | against sync | Held-out | against sync | Mean reward "
        "| Discarded | Seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, mode in result["modes"].items():
        early = f" ({mode['ended_early']} ended early)" if mode["ended_early"] else ""

        def against(key: str, name: str = name, mode: dict[str, Any] = mode) -> str:
            found = None if name == "sync" else mode[f"{key}_minus_sync"]
            return "" if found is None else Interval(*found).text(sign=True)

        cells = [
            name + early,
            f"{mode['token_staleness'] or 0.0:.2f}",
            Interval(*mode["final_reward"]).text(),
            against("final"),
            Interval(*mode["held_out"]).text(),
            against("held_out"),
            Interval(*mode["mean_reward"]).text(),
            f"{100 * (mode['discarded'] or 0.0):.0f} %",
            f"{mode['seconds']:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    found = result["claim"]
    if found is not None:
        half = found["relative_half"]
        width = "" if half is None else f" ± {100 * half:.1f}"
        lines += [
            "",
            "Final reward of bound 8 with the default loss, by that of sync: "
            f"{100 * found['relative']:+.1f}{width} %.",
        ]
    return "\n".join(lines)


def make_missing(
    kept: Kept, config: Path, settings: dict[str, list[str]], seeds: int, minutes: float
) -> list[TinyRun]:
    """Make the runs that are not kept yet, all modes of a seed before the next seed.

    Args:
        kept: where finished runs are found and put.
        config: the file that all modes change.
        settings: mode to its overrides.
        seeds: how many, from 0.
        minutes: after which no run is begun; 0 for no limit.
    """
    began, runs, missing = stopwatch(), list[TinyRun](), 0
    for seed in range(seeds):
        for mode, overrides in settings.items():
            run = kept.find(mode, seed, overrides)
            if run is None and minutes and stopwatch() - began > 60 * minutes:
                missing += 1
                continue
            if run is None:
                start = stopwatch()
                run = kept.make(config, mode, seed, overrides)
                held_out, age = run.summary["held_out"], run.summary["token_staleness"] or 0.0
                print(
                    f"seed {seed}, {mode}: final reward {run.final_reward:.3f}, held-out "
                    f"{'-' if held_out is None else f'{held_out:.3f}'}, tokens {age:.2f} steps old, "
                    f"ended by {run.outcome}, {stopwatch() - start:.0f} s",
                    flush=True,
                )
            runs.append(run)
    if missing:
        print(f"{missing} runs are missing; start again to make them")
    return runs


def main() -> None:
    """Make the runs that are missing; print, keep and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--config", type=Path, default=HERE.parent / "examples" / "tiny.toml")
    parser.add_argument("--modes", help="only these, separated by semicolons")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="in every mode")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-learning"))
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after this; 0 for no limit")
    parser.add_argument("--plot", action="store_true", help="write docs/learning.svg")
    parser.add_argument("--table", action="store_true", help="only print the kept result as Markdown")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads((HERE / "results" / "learning.json").read_text())["result"]))
        print(f"\n{PICTURE}")
        return
    base = [*BASE, f"stop.steps={options.steps}"]
    names = options.modes.split(";") if options.modes else list(MODES)
    settings = {mode: [*base, *MODES[mode], *options.set] for mode in names}
    runs = make_missing(Kept(options.out.resolve()), options.config, settings, options.seeds, options.minutes)
    plain = json.loads(json.dumps(result_of(runs, options.steps)))
    print(table(plain))
    if options.plot:
        from learning_plot import draw

        draw(plain, HERE.parent / "docs" / "learning.svg")
    keep("learning", plain)


if __name__ == "__main__":
    main()
