"""The driver: start-up, its share of a run, synchronous or not, and what its scheduler costs.

    python benchmarks/driver.py [--rounds 3] [--steps 60] [--config examples/tiny.toml]

- start-up: `headway --help` against a bare interpreter, interleaved, wall seconds of the whole process.
- runs: the same config synchronous (bound 0), one step off (1) and asynchronous (2), interleaved, each a real
  run with its own processes; consumption in samples per second of training time, wait fraction, and the
  driver's CPU seconds over wall time.
- scheduler: events per second through the simulated driver, which holds the scheduler's whole cost.

The last line is one JSON object with medians and ratios of medians. Absolute times mean little on a shared
machine; the ratios come from one interleaved run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from keep import keep

from headway.core.clock import stopwatch
from headway.matching.roles import SimSettings
from headway.matching.simulate import simulate
from headway.queue.settings import QueueSettings, SchedulerSettings, StopSettings

BOUNDS = (0, 1, 2)


def timed(command: list[str]) -> float:
    """Run a command and return its wall seconds."""
    began = stopwatch()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return stopwatch() - began


def start_up(rounds: int) -> dict[str, float]:
    """`headway --help` and a bare interpreter, in turns."""
    ours: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        ours.append(timed([sys.executable, "-m", "headway", "--help"]))
        bare.append(timed([sys.executable, "-c", "pass"]))
    return {
        "startup.help_s": median(ours),
        "startup.bare_python_s": median(bare),
        "startup.help_over_bare": median(ours) / median(bare),
    }


def one_run(config: Path, bound: int, steps: int, folder: Path, number: int) -> dict[str, Any]:
    """Run the config once and return its report."""
    name = f"bound{bound}-{number}"
    headway = [sys.executable, "-m", "headway"]
    overrides = [f"queue.bound={bound}", f"stop.steps={steps}", "stop.wall_s=0", "eval.num_tasks=0"]
    train = [*headway, "train", str(config), f"run.dir={folder}", f"run.name={name}", *overrides]
    subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
    report = subprocess.run(
        [*headway, "report", str(folder / name), "--json"], check=True, capture_output=True, text=True
    )
    return json.loads(report.stdout)


def runs(config: Path, steps: int, rounds: int) -> dict[str, float]:
    """Sync and async runs in turns."""
    reports: dict[int, list[dict[str, Any]]] = {bound: [] for bound in BOUNDS}
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
        for number in range(rounds):
            for bound in BOUNDS:
                reports[bound].append(one_run(config, bound, steps, Path(folder), number))
                print(f"round {number + 1}, bound {bound}: done", flush=True)
    result: dict[str, float] = {}
    for bound in BOUNDS:
        for key, name in (
            ("rl.consumption.wall_samples_per_s", "samples_per_s"),
            ("rl.trainer.wait_fraction", "wait_fraction"),
            ("rl.driver.overhead_fraction", "driver_fraction"),
        ):
            result[f"bound{bound}.{name}"] = median(report[key] for report in reports[bound])
    for bound in BOUNDS[1:]:
        rate = result[f"bound{bound}.samples_per_s"] / result["bound0.samples_per_s"]
        result[f"bound{bound}_over_bound0.samples_per_s"] = rate
    return result


def scheduler_rate(rounds: int) -> dict[str, float]:
    """Events per second through the scheduler under the simulated driver."""
    settings = SchedulerSettings(queue=QueueSettings(batch_size=64), stop=StopSettings(steps=40))
    rates: list[float] = []
    for seed in range(rounds):
        began = stopwatch()
        run = simulate(settings, SimSettings(max_running=256), seed)
        rates.append(len(run.entries) / (stopwatch() - began))
    return {"scheduler.events_per_s": median(rates)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--config", type=Path, default=Path("examples/tiny.toml"))
    options = parser.parse_args()
    result = {**start_up(2 * options.rounds + 1), **scheduler_rate(options.rounds)}
    result |= runs(options.config, options.steps, options.rounds)
    for key, value in result.items():
        print(f"{key:<40} {value:.4g}")
    keep("driver", dict(result))


if __name__ == "__main__":
    main()
