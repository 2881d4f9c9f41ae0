"""[control] against every fixed setting of a grid, on simulated workloads that drift; and on a real run.

    python benchmarks/control.py [--scenes lengths tools ...] [--seeds 5] [--live 3] [--fixed FILE]

Each scene (control_scenes.py) is simulated with the real scheduler: with control from the default settings,
with the default settings alone, and with every fixed setting of a grid: queue.depth, both keys of
oversampling, queue.max_running_rollouts. Two seeds are for all of the grid, the others for the settings
that were best by those. Compared are rollouts trained a second of the whole run, at the same bound, as
medians over seeds; the best fixed setting is the one with the best median, known only afterwards.

A fixed setting may throw more away than control.max_waste lets control. So control is held against
- every fixed setting of the grid (the target: at least 0.97 of the best);
- every one that keeps to control's bounds: median waste of max_waste at most, and staleness within the same
  bound, which the scheduler keeps to in any case (the same target);
- the default (the target: at least 1.15);
and once more with the bound at WIDE, which hardly any setting of the grid goes beyond, against every one.

--live N adds N rounds of a real run that tool latency dominates, in turns with the default. --fixed FILE
keeps what fixed settings gave, which no change of the controller changes, and takes it from there next time.

The last line is one JSON object; results/control.json keeps each part of the newest call that made it.
Simulated seconds do not depend on the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import zlib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from control_live import live
from control_scenes import HELD_OUT, SCENES, STEPS, Scene
from keep import merge

from headway.config.control import ControlSettings
from headway.core.events import SettingChanged
from headway.matching.simulate_models import ModelledDriver
from headway.matching.workload import DrawnWorkload
from headway.queue.entry_settings import OversamplingSettings
from headway.queue.settings import CheckpointSettings, EvalSettings, SchedulerSettings, StopSettings

ON = ControlSettings(mode="on")
Fixed = tuple[int, int, int, int]
"""queue.depth, oversampling.groups_extra and rollouts_extra, queue.max_running_rollouts."""
DEFAULT: Fixed = (-1, 0, 0, 0)
GRID: list[Fixed] = [
    *itertools.product((-1,), (0, 3), (0, 1, 2, 3), (0,)),  # depth at the bound, with both oversamplings
    (-1, 0, 4, 0),
    *itertools.product((-1, 1), (0,), (0, 2), (64,)),  # fewer at once
    *itertools.product((1,), (0,), (0, 2), (0,)),
]
WIDE = replace(ON, max_waste=0.5)
TARGETS = {"default": 1.15, "best": 0.97, "best_within_bounds": 0.97}
FIRST, BEST = 2, 4  # seeds for all of the grid; settings that go on


@dataclass(frozen=True)
class Job:
    """One simulation."""

    scene: Scene
    seed: int
    steps: int
    fixed: Fixed = DEFAULT
    control: ControlSettings | None = None

    @property
    def name(self) -> str:
        """What is compared."""
        if self.control is not None:
            return "control" if self.control == ON else "wide"
        return "default" if self.fixed == DEFAULT else str(self.fixed)

    @property
    def key(self) -> str:
        """What a kept result is found under: what it depends on, but for engine and code."""
        scene = self.scene
        what = repr((scene.workload, scene.trainer, scene.replicas, scene.queue))
        return f"{self.name} {scene.name} {zlib.crc32(what.encode())} {self.steps} {self.seed}"


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
    depth, groups, rollouts, running = job.fixed
    settings = SchedulerSettings(
        queue=replace(job.scene.queue, depth=depth, max_running_rollouts=running),
        oversampling=OversamplingSettings(groups_extra=groups, rollouts_extra=rollouts),
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
        control=job.control,
    )
    metrics = driver.run().metrics
    thrown = (metrics[f"rl.oversampling.{kind}.token_fraction"] for kind in ("finished", "unfinished"))
    return {
        "samples_per_s": metrics["rl.consumption.wall_samples_per_s"],
        "wait": metrics["rl.trainer.wait_fraction"],
        "staleness": metrics["rl.staleness.token"]["mean"],
        "waste": sum(share or 0.0 for share in thrown),
        "changes": changes.found,
    }


class Kept:
    """Results of fixed settings in a file, so that they need not be simulated again."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.known: dict[str, Any] = json.loads(path.read_text()) if path and path.exists() else {}

    def simulate(self, jobs: list[Job], pool: ProcessPoolExecutor) -> dict[str, list[dict[str, Any]]]:
        """Return the results of all jobs by what is compared."""
        todo = [job for job in jobs if job.control is not None or job.key not in self.known]
        new: dict[str, Any] = {}
        for job, result in zip(todo, pool.map(simulate, todo), strict=True):
            new[job.key] = result
            if job.control is None:
                self.known[job.key] = result
            if self.path:
                self.path.write_text(json.dumps(self.known))
        found: dict[str, list[dict[str, Any]]] = {}
        for job in jobs:
            found.setdefault(job.name, []).append(new.get(job.key) or self.known[job.key])
        return found


def compete(
    scene: Scene, seeds: int, steps: int, kept: Kept, pool: ProcessPoolExecutor
) -> dict[str, list[dict[str, Any]]]:
    """Return the results of control, either bound, and of the fixed settings of the second round."""
    first = range(min(FIRST, seeds))
    jobs = [Job(scene, seed, steps, fixed) for seed in first for fixed in GRID]
    found = kept.simulate(jobs, pool)
    order = sorted(
        {job.fixed: job.name for job in jobs}.items(),
        key=lambda item: -sum(row["samples_per_s"] for row in found[item[1]]),
    )
    thrifty = [fixed for fixed, name in order if all(row["waste"] <= ON.max_waste for row in found[name])]
    best = dict.fromkeys([DEFAULT, *(fixed for fixed, _ in order[:BEST]), *thrifty[:2]])
    jobs = [Job(scene, seed, steps, control=mode) for seed in range(seeds) for mode in (ON, WIDE)]
    jobs += [Job(scene, seed, steps, fixed) for seed in range(seeds) for fixed in best]
    return kept.simulate(jobs, pool)


def compare(scene: Scene, found: dict[str, list[dict[str, Any]]], *, changes: bool) -> dict[str, Any]:
    """Compare control with every fixed setting of a scene; print and return what came of it."""

    def middle(name: str, key: str) -> float:
        return median(row[key] for row in found[name])

    fixed = [name for name in found if name not in ("control", "wide")]
    best = max(fixed, key=lambda name: middle(name, "samples_per_s"))
    thrifty = [name for name in fixed if middle(name, "waste") <= ON.max_waste]
    names = {
        "control": "control",
        "default": "default",
        "best": best,
        "wide": "wide",
        "best_within_bounds": max(thrifty, key=lambda name: middle(name, "samples_per_s")),
    }
    print(f"{scene.name}: {scene.words}")
    for name in dict.fromkeys(names.values()):
        rate = [row["samples_per_s"] for row in found[name]]
        print(
            f"  {name:14} {median(rate):7.3f} rollouts/s ({min(rate):.3f} to {max(rate):.3f}), trainer waits "
            f"{middle(name, 'wait'):.0%}, {middle(name, 'staleness'):.2f} steps old, "
            f"{middle(name, 'waste'):.0%} of the tokens thrown away"
        )
    result: dict[str, Any] = {}
    for mode, against in (*itertools.product(("control",), TARGETS), ("wide", "best")):
        pairs = zip(found[mode], found[names[against]], strict=True)
        ratios = [on["samples_per_s"] / off["samples_per_s"] for on, off in pairs]
        key = f"against_{against}" if mode == "control" else f"wide_against_{against}"
        result[key] = median(ratios)
        result[f"{key}_low"], result[f"{key}_high"] = min(ratios), max(ratios)
        met = "met" if median(ratios) >= TARGETS[against] else "missed"
        print(
            f"  {mode} / {against.replace('_', ' ')} {median(ratios):.3f} ({min(ratios):.3f} to "
            f"{max(ratios):.3f}); target {TARGETS[against]:g}: {met}"
        )
    if changes:
        print("\n".join(f"    {line}" for line in found["control"][0]["changes"]), flush=True)
    return result | {
        "best": best,
        "best_within_bounds": names["best_within_bounds"],
        "changes": median(len(row["changes"]) for row in found["control"]),
        **{
            key: {to: middle(name, key) for to, name in names.items()}
            for key in ("wait", "staleness", "waste")
        },
        "samples_per_s": {name: middle(name, "samples_per_s") for name in found},
    }


def main() -> None:
    """Measure; print, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    scenes = (*SCENES, *HELD_OUT)
    names = [scene.name for scene in scenes]
    parser.add_argument("--scenes", nargs="*", choices=names, default=names)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--live", type=int, default=3, help="rounds of the real run; 0 for none")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--changes", action="store_true", help="print what control changed, and why")
    parser.add_argument(
        "--fixed", type=Path, help="file for the results of fixed settings, kept between runs"
    )
    arguments = parser.parse_args()
    kept, found = Kept(arguments.fixed), dict[str, dict[str, Any]]()
    with ProcessPoolExecutor(arguments.processes) as pool:
        for scene in scenes:
            if scene.name in arguments.scenes:
                rows = compete(scene, arguments.seeds, arguments.steps, kept, pool)
                found[scene.name] = compare(scene, rows, changes=arguments.changes)
    result: dict[str, Any] = {}
    for part, members in (("scenes", SCENES), ("held_out", HELD_OUT)):
        if mine := {scene.name: found[scene.name] for scene in members if scene.name in found}:
            result[part] = {"seeds": arguments.seeds, "steps": arguments.steps} | mine
            for key in ("against_default", "against_best", "against_best_within_bounds"):
                result[part][f"{key}_mean"] = geometric_mean([one[key] for one in mine.values()])
            merge("control", part, {part: result[part]})
    if arguments.live:
        result["live"] = live(arguments.live)
        merge("control", "live", {"live": result["live"]})
    print(json.dumps(result))


if __name__ == "__main__":
    main()
