"""[control] against every fixed setting of a grid, on drifting simulated workloads."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from statistics import fmean
from typing import Any

from control_scenes import SCENES, STEPS, Scene

from headway.config.control import ControlSettings
from headway.core.events import SettingChanged
from headway.matching.simulate_models import ModelledDriver
from headway.matching.workload import DrawnWorkload
from headway.queue.entry_settings import OversamplingSettings
from headway.queue.settings import CheckpointSettings, EvalSettings, SchedulerSettings, StopSettings

DEPTHS, EXTRA, RUNNING = (1, 2), (0, 2, 5), (0, 128, 64)
Fixed = tuple[int, int, int]


def grid(scene: Scene) -> list[Fixed]:
    """Return (depth, groups_extra, max_running_rollouts) of every fixed setting."""
    depths = [depth for depth in DEPTHS if depth <= scene.queue.bound]
    return list(itertools.product(depths, EXTRA, RUNNING))


def run(
    scene: Scene, seed: int, fixed: Fixed | None, control: ControlSettings | None, steps: int = STEPS
) -> dict[str, Any]:
    """Simulate once; `fixed` None is the default."""
    queue, extra = scene.queue, 0
    if fixed is not None:
        queue = replace(queue, depth=fixed[0], max_running_rollouts=fixed[2])
        extra = fixed[1]
    settings = SchedulerSettings(
        queue=queue,
        oversampling=OversamplingSettings(groups_extra=extra),
        eval=EvalSettings(num_tasks=0),
        stop=StopSettings(steps=steps),
        checkpoint=CheckpointSettings(every_steps=0),
        rollout_timeout_s=1e5,
        max_sandboxes=100_000,
        verify_sandboxes=1000,
    )
    driver = ModelledDriver(
        settings, engine=scene.engine, replicas=scene.replicas, trainer=scene.trainer,
        workload=DrawnWorkload(scene.workload), seed=seed, control=control,
    )  # fmt: skip
    changes: list[tuple[int, str, Any, str]] = []
    began = time.perf_counter()
    if control is not None:
        watch(changes)
    found = driver.run()
    metrics = found.metrics
    return {
        "samples_per_s": metrics["rl.consumption.wall_samples_per_s"],
        "wait": metrics["rl.trainer.wait_fraction"],
        "staleness": metrics["rl.staleness.token"]["mean"],
        "preemptions": metrics["rl.generator.preemptions"],
        "cancelled": metrics.get("rl.discard.cancelled.tokens"),
        "trained": metrics.get("rl.production.samples_per_s"),
        "outcome": found.outcome,
        "events": found.num_events,
        "cpu_s": time.perf_counter() - began,
        "changes": changes,
    }


def watch(changes: list[tuple[int, str, Any, str]]) -> None:
    """Note every setting that the next controller changes."""
    from headway.matching import simulate

    class Noting(simulate.Controller):
        def feed(self, entry: Any) -> Any:
            if isinstance(entry.event, SettingChanged) and entry.event.by == "control":
                changes.append(
                    (self._signals.num_cycles, entry.event.key, entry.event.value, entry.event.reason)
                )
            return super().feed(entry)

    from headway.matching import simulate_models

    simulate_models.Controller = Noting


def job(args: tuple[Scene, int, Fixed | None, ControlSettings | None, int]) -> dict[str, Any]:
    """Run in a process of its own."""
    return run(*args)


def main() -> None:
    """Measure; print a table, and JSON last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", default=",".join(scene.name for scene in SCENES))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only-control", action="store_true", help="no grid: control against the default")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--changes", action="store_true", help="print what control changed")
    args = parser.parse_args()
    scenes = [scene for scene in SCENES if scene.name in args.scenes.split(",")]
    on = ControlSettings(mode="on")
    table: dict[str, Any] = {}
    with ProcessPoolExecutor(args.processes) as pool:
        for scene in scenes:
            fixed = [] if args.only_control else grid(scene)
            todo = [(scene, seed, setting, control, args.steps)
                    for seed in range(args.seeds)
                    for setting, control in [(None, on), (None, None), *((one, None) for one in fixed)]]  # fmt: skip
            results = list(pool.map(job, todo))
            rows: dict[Any, list[dict[str, Any]]] = {}
            for (_, _, setting, control, _), result in zip(todo, results, strict=True):
                rows.setdefault("control" if control else setting, []).append(result)
            table[scene.name] = report(scene, rows, args.changes)
    print(json.dumps(table))


def report(scene: Scene, rows: dict[Any, list[dict[str, Any]]], changes: bool) -> dict[str, Any]:
    """Print one scene's outcome and return it."""
    rate = {name: fmean(r["samples_per_s"] for r in found) for name, found in rows.items()}
    fixed = {name: value for name, value in rate.items() if name not in ("control", None)}
    best = max(fixed, key=lambda name: fixed[name], default=None)
    print(f"{scene.name}: {scene.words}")
    for name in ("control", None, *([best] if best else [])):
        one = rows[name]
        label = {"control": "control", None: "default"}.get(name, f"best fixed {name}")
        print(
            f"  {label:28} {rate[name]:7.3f}/s  wait {fmean(r['wait'] for r in one):5.1%}  stale "
            f"{fmean(r['staleness'] for r in one):.2f}  preempted {fmean(r['preemptions'] for r in one):.0f}  "
            f"{len(one[0]['changes'])} changes  {one[0]['outcome']} {one[0]['cpu_s']:.1f} s {one[0]['events']}"
        )
    if changes:
        for cycle, key, value, reason in rows["control"][0]["changes"]:
            print(f"    {cycle:4d} {key} = {value}: {reason}")
    for name, value in sorted(fixed.items(), key=lambda item: -item[1])[:6]:
        print(f"    {name}: {value:.3f}")
    print(
        f"  against default {rate['control'] / rate[None] - 1:+.1%}"
        + (f", against best fixed {rate['control'] / rate[best] - 1:+.1%}" if best else ""),
        flush=True,
    )
    return {
        "control": rate["control"], "default": rate[None],
        "best_fixed": rate.get(best), "best_setting": best,
        "grid": {str(name): value for name, value in fixed.items()},
    }  # fmt: skip


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    main()
