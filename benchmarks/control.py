"""[control] against every fixed setting of a grid, on simulated workloads that drift; and on a real run.

    python benchmarks/control.py [--scenes lengths tools ...] [--seeds 2] [--live 2] [--changes]

Each scene (control_scenes.py) is simulated with the real scheduler: with control from the default settings,
with the default settings alone, and with every fixed setting of a grid: queue.depth, both keys of
oversampling, queue.max_running_rollouts. Compared are rollouts trained a second of the whole run, at the same
bound; the best fixed setting is known only afterwards. --live N adds N rounds of a real run that tool latency
dominates, in turns with the default.

The last line is one JSON object. Simulated seconds do not depend on the machine.
"""

from __future__ import annotations

import argparse
import itertools
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from control_live import live
from control_scenes import SCENES, STEPS, Scene
from keep import keep

from headway.config.control import ControlSettings
from headway.core.events import SettingChanged
from headway.matching.simulate_models import ModelledDriver
from headway.matching.workload import DrawnWorkload
from headway.queue.entry_settings import OversamplingSettings
from headway.queue.settings import CheckpointSettings, EvalSettings, SchedulerSettings, StopSettings

DEPTHS, GROUPS, ROLLOUTS, RUNNING = (1, 2), (0, 3), (0, 1, 2), (0, 64)
ON = ControlSettings(mode="on")
Fixed = tuple[int, int, int, int]
"""queue.depth, oversampling.groups_extra and rollouts_extra, queue.max_running_rollouts."""


@dataclass(frozen=True)
class Job:
    """One simulation; without a fixed setting the default one."""

    scene: Scene
    seed: int
    steps: int
    fixed: Fixed | None = None
    control: bool = False

    @property
    def name(self) -> str:
        """What is compared."""
        return "control" if self.control else "default" if self.fixed is None else str(self.fixed)


class Changes:
    """Takes what control changed from the journal; keeps no journal."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def write_event(self, seq: int, t: float, event: Any, commands: Any, notes: Any) -> None:
        """Look at one event."""
        if isinstance(event, SettingChanged):
            self.found.append(f"{t:6.0f} s  {event.key} = {event.value}: {event.reason}")


def simulate(job: Job) -> dict[str, Any]:
    """Simulate once."""
    queue, extra = job.scene.queue, OversamplingSettings()
    if job.fixed is not None:
        depth, groups, rollouts, running = job.fixed
        queue = replace(queue, depth=depth, max_running_rollouts=running)
        extra = OversamplingSettings(groups_extra=groups, rollouts_extra=rollouts)
    settings = SchedulerSettings(
        queue=queue,
        oversampling=extra,
        eval=EvalSettings(num_tasks=0),
        stop=StopSettings(steps=job.steps),
        checkpoint=CheckpointSettings(every_steps=0),
        rollout_timeout_s=1e5,
        max_sandboxes=100_000,
        verify_sandboxes=1000,
    )
    changes = Changes()
    driver = ModelledDriver(
        settings,
        engine=job.scene.engine,
        replicas=job.scene.replicas,
        trainer=job.scene.trainer,
        workload=DrawnWorkload(job.scene.workload),
        seed=job.seed,
        journal=changes,
        control=ON if job.control else None,
    )
    metrics = driver.run().metrics
    staleness = metrics["rl.staleness.token"]["mean"]
    return {
        "samples_per_s": metrics["rl.consumption.wall_samples_per_s"],
        "wait": metrics["rl.trainer.wait_fraction"],
        "staleness": staleness,
        "changes": changes.found,
    }


def measure(scene: Scene, seeds: int, steps: int, pool: ProcessPoolExecutor, changes: bool) -> dict[str, Any]:
    """Compare control with every fixed setting of a scene; print and return what came of it."""
    grid: list[Fixed] = list(itertools.product(DEPTHS, GROUPS, ROLLOUTS, RUNNING))
    jobs = [
        Job(scene, seed, steps, fixed, control)
        for seed in range(seeds)
        for fixed, control in [(None, True), (None, False), *((one, False) for one in grid)]
    ]
    found: dict[str, list[dict[str, Any]]] = {}
    for job, result in zip(jobs, pool.map(simulate, jobs), strict=True):
        found.setdefault(job.name, []).append(result)
    rate = {name: fmean(result["samples_per_s"] for result in rows) for name, rows in found.items()}
    best = max((name for name in rate if name != "control"), key=lambda name: rate[name])
    print(f"{scene.name}: {scene.words}")
    for name in dict.fromkeys(("control", "default", best)):
        wait, stale = (fmean(row[key] for row in found[name]) for key in ("wait", "staleness"))
        print(f"  {name:20} {rate[name]:7.3f} rollouts/s  trainer waits {wait:4.0%}  {stale:.2f} steps old")
    against = {"default": rate["control"] / rate["default"], "best": rate["control"] / rate[best]}
    print(f"  control / default {against['default']:.3f}, control / best fixed {against['best']:.3f}")
    if changes:
        print("\n".join(f"    {line}" for line in found["control"][0]["changes"]), flush=True)
    return {
        "against_default": against["default"],
        "against_best": against["best"],
        "best": best,
        "changes": fmean(len(row["changes"]) for row in found["control"]),
        "wait": {name: fmean(row["wait"] for row in found[name]) for name in ("control", "default", best)},
        "staleness": {n: fmean(row["staleness"] for row in found[n]) for n in ("control", "default", best)},
        "samples_per_s": rate,
    }


def main() -> None:
    """Measure; print, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [scene.name for scene in SCENES]
    parser.add_argument("--scenes", nargs="*", choices=names, default=names)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--live", type=int, default=2, help="rounds of the real run; 0 for none")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--changes", action="store_true", help="print what control changed, and why")
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    with ProcessPoolExecutor(arguments.processes) as pool:
        for scene in SCENES:
            if scene.name in arguments.scenes:
                steps, seeds = arguments.steps, arguments.seeds
                result[scene.name] = measure(scene, seeds, steps, pool, arguments.changes)
    scenes = list(result.values())
    for key in ("against_default", "against_best") if scenes else ():
        result[f"{key}_mean"] = math.exp(fmean(math.log(found[key]) for found in scenes))
    if arguments.live:
        result["live"] = live(arguments.live)
    keep("control", result)


if __name__ == "__main__":
    main()
