"""Headway's whole loop against TRL's synchronous GRPOTrainer, and against its own synchronous mode.

    python benchmarks/loop.py [--scenes micro,tiny,...] [--rounds 5] [--steps N] [--seeds 5]

Scenes against TRL, in turns, each run its own processes; key `SCENE.ratio` is Headway's median of samples a
second over TRL's:

- micro: 0.09M parameters, prompts of 16 tokens, answers of 16.
- tiny: 0.6M parameters (hidden 128, 4 layers), prompts of 16 tokens, answers of 64.
- smollm2.short, smollm2.long: SmolLM2-135M, LoRA, prompts of 64 and of 512 tokens, answers of 64.

Both sides: the same model directory, prompts and order of prompts, token ids and reward; 4 prompts times 8
answers a step, every answer trained; answers of exactly the same length, since no end token is ever sampled;
temperature 1, no truncation; f32; AdamW with the same constant rate, no weight decay, gradients clipped at 1;
LoRA of rank 16, alpha 32, on all linear layers, or every weight; advantages divided by the group's standard
deviation, ratio clipped at 0.2, the mean over all tokens of the batch, no KL; no evaluation, no checkpoints
on the way. All processes are held to two cores:

- Headway: `headway train`, queue.bound 2 (SmolLM2: 1), KV kept over updates (generator.kv_on_update),
  defaults otherwise: one thread each for generator and trainer, two for one while the other waits. Samples a
  second from its journal, between ends of steps; the first bound + 1 steps are left out, and the last
  `bound`, in which generation has nothing left to do.
- TRL: see loop_trl.py. Two threads; with the random models one thread too, two that sleep while they wait and
  two that spin are tried in every round, and the best median counts. Its first step is left out; with
  SmolLM2, where a step takes a minute and more, it counts, from the moment at which training begins.

Start-up (until the first step's end) and the peak memory of all processes are printed beside them.

Further scenes:

- reward: the micro scene at equal numbers of samples, `--seeds` seeds: the mean reward of the last tenth of
  the samples, Headway's less TRL's, with a 95 % interval (Welch): keys reward.difference, .low, .high.
- tool_latency: three answers with a slow tool call after each, Headway asynchronous (bound 2) over
  synchronous (bound 0): key async_over_sync.tool_latency.ratio.

Results are merged into benchmarks/results/loop.json; the last line is what this call measured, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

from keep import merge
from loop_models import make_model
from loop_scenes import BATCH, LEARNING, SCENES, Scene, Threads, make_prompts, write_slow_tool
from loop_sides import Measured, run_headway, run_ours, run_theirs
from spread import difference

if TYPE_CHECKING:
    from collections.abc import Sequence

CORES = 2
OTHERS = ("reward", "tool_latency")
REWARD_STEPS = 110
LATENCY_STEPS = 9
LATENCY_BOUNDS = (0, 2)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; `scenes` is a list of names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    every = [*SCENES, *OTHERS]

    def names(text: str) -> list[str]:
        chosen = [name.strip() for name in text.split(",")]
        if unknown := [name for name in chosen if name not in every]:
            raise argparse.ArgumentTypeError(f"no scene {unknown[0]}; there are {', '.join(every)}")
        return chosen

    parser.add_argument("--scenes", type=names, default=every, help=", ".join(every))
    parser.add_argument("--rounds", type=int, default=5, help="of each scene, both sides in turns")
    parser.add_argument(
        "--steps", type=int, help="measured in each run; take a multiple of the scene's bound + 1"
    )
    parser.add_argument("--seeds", type=int, default=5, help="of the scene reward")
    return parser.parse_args(arguments)


def against_trl(scene: Scene, rounds: int, steps: int, folder: Path) -> dict[str, object]:
    """Run both sides in turns; return medians and their ratio."""
    model = make_model(scene.model, folder)
    prompts = make_prompts(scene, model, folder)
    ours: list[Measured] = []
    theirs: dict[Threads, list[Measured]] = {threads: [] for threads in scene.their_threads}
    for number in range(rounds):
        ours.append(run_ours(scene, model, prompts, folder, steps=steps))
        _say(scene, number, "headway", ours[-1])
        for threads, runs in theirs.items():
            runs.append(run_theirs(scene, model, prompts, folder, steps=steps, threads=threads))
            _say(scene, number, f"trl, {threads}", runs[-1])
    best = max(theirs, key=lambda threads: median(run.samples_per_s for run in theirs[threads]))
    found: dict[str, object] = {}
    for side, runs in (("headway", ours), ("trl", theirs[best])):
        found[f"{side}.samples_per_s"] = round(median(run.samples_per_s for run in runs), 3)
        found[f"{side}.start_s"] = round(median(run.start_s for run in runs), 2)
        found[f"{side}.peak_mib"] = round(median(run.peak_bytes for run in runs) / 2**20)
    found |= {f"headway.{label}": round(value, 3) for label, value in ours[-1].shown.items()}
    found["trl.threads"] = str(best)
    pairs = zip(ours, theirs[best], strict=True)
    ratios = [our.samples_per_s / their.samples_per_s for our, their in pairs]
    found["ratio"] = round(
        median(r.samples_per_s for r in ours) / median(r.samples_per_s for r in theirs[best]), 3
    )
    found["ratio_low"], found["ratio_high"] = round(min(ratios), 3), round(max(ratios), 3)
    found["rounds"], found["steps"] = rounds, steps
    return {f"{scene.name}.{key}": value for key, value in found.items()}


def _say(scene: Scene, number: int, side: str, run: Measured) -> None:
    shown = "".join(f", {label} {value:.2f}" for label, value in run.shown.items())
    print(
        f"{scene.name}, round {number + 1}, {side}: {run.samples_per_s:.2f} samples/s, first step after "
        f"{run.start_s:.1f} s, {run.peak_bytes / 2**20:.0f} MiB{shown}",
        flush=True,
    )


def rewards(seeds: int, steps: int, folder: Path) -> dict[str, object]:
    """Compare the final rewards of both sides at equal numbers of samples."""
    scene = LEARNING
    model = make_model(scene.model, folder)
    prompts = make_prompts(scene, model, folder)
    num = BATCH * steps
    finals: dict[str, list[float]] = {"headway": [], "trl": []}
    for seed in range(1, seeds + 1):
        ours = run_ours(scene, model, prompts, folder, steps=steps, seed=seed).rewards[:num]
        theirs = run_theirs(
            scene, model, prompts, folder, steps=steps, threads=scene.their_threads[0], seed=seed
        ).rewards[:steps]
        for side, found in (("headway", ours), ("trl", theirs)):
            finals[side].append(fmean(found[-max(1, len(found) // 10) :]))
        print(
            f"reward, seed {seed}: headway {fmean(ours[:BATCH]):.3f} -> {finals['headway'][-1]:.3f}, "
            f"trl {theirs[0]:.3f} -> {finals['trl'][-1]:.3f}",
            flush=True,
        )
    result: dict[str, object] = {f"reward.{side}": round(fmean(found), 4) for side, found in finals.items()}
    result |= {"reward.seeds": seeds, "reward.samples": num}
    if seeds > 1:
        between = difference(finals["headway"], finals["trl"])
        result["reward.difference"] = round(between.mean, 4)
        result["reward.low"], result["reward.high"] = round(between.low, 4), round(between.high, 4)
    return result


def tool_latency(rounds: int, steps: int, folder: Path) -> dict[str, object]:
    """Run asynchronous and synchronous in turns on a task that waits for a tool."""
    found: dict[int, list[float]] = {bound: [] for bound in LATENCY_BOUNDS}
    config = write_slow_tool(make_model("micro", folder), folder)
    for number in range(rounds):
        for bound in LATENCY_BOUNDS:
            overrides = {"queue.bound": bound, "stop.steps": bound + 1 + steps + bound}
            run = run_headway(config, folder, f"bound{bound}", overrides, bound)
            found[bound].append(run.samples_per_s)
            print(
                f"tool_latency, round {number + 1}, bound {bound}: {run.samples_per_s:.2f} samples/s",
                flush=True,
            )
    sync, asynchronous = (median(found[bound]) for bound in LATENCY_BOUNDS)
    key = "async_over_sync.tool_latency"
    return {
        f"{key}.sync_per_s": round(sync, 3),
        f"{key}.async_per_s": round(asynchronous, 3),
        f"{key}.ratio": round(asynchronous / sync, 3),
    }


def main() -> None:
    """Measure and print."""
    options = parse()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])  # what is started inherits it
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as name:
        folder = Path(name)
        result: dict[str, object] = {}
        for part in options.scenes:
            if part == "reward":
                found = rewards(options.seeds, options.steps or REWARD_STEPS, folder)
            elif part == "tool_latency":
                found = tool_latency(options.rounds, options.steps or LATENCY_STEPS, folder)
            else:
                scene = SCENES[part]
                found = against_trl(scene, options.rounds, options.steps or scene.steps, folder)
            for key, value in found.items():
                print(f"{key:<40} {value}")
            result |= found
            merge("loop", part, found)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
