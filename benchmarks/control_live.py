"""[control] on a real run of the tiny model that tool latency dominates, in turns with the default."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

from queue_efficiency import run

from headway.core.commands import Train
from headway.core.events import SettingChanged, StepEnded
from headway.telemetry.journal import read_journal

CONFIG = Path(__file__).parent.parent / "examples" / "control.toml"
WALL_S = 50.0  # of a run, its start included
LATER_S = 25.0  # of a run's end that is compared alone: by then control has settled
MODES: dict[str, dict[str, object]] = {"default": {"control.mode": "off"}, "control": {"control.mode": "on"}}
FIXED: dict[str, object] = {"stop.steps": 1_000_000, "stop.wall_s": WALL_S, "eval.num_tasks": 0}


def rate(run_dir: Path, last_s: float | None = None) -> float:
    """Return rollouts trained a second, from the first step's end to the last's; or of the last seconds."""
    rows: dict[int, int] = {}
    ends: list[tuple[float, int]] = []
    for entry in read_journal(run_dir).entries():
        rows |= {item.step: len(item.rows) for item in entry.commands if isinstance(item, Train)}
        if isinstance(entry.event, StepEnded):
            ends.append((entry.t, rows[entry.event.step]))
    if last_s is not None:
        ends = [(t, num) for t, num in ends if t >= ends[-1][0] - last_s]
    return sum(num for _, num in ends[1:]) / (ends[-1][0] - ends[0][0])


def live(rounds: int) -> dict[str, object]:
    """Run both in turns; return rollouts trained a second of each, their ratios, and what control changed."""
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    later: dict[str, list[float]] = {mode: [] for mode in MODES}
    changes: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as name:
        folder = Path(name)
        for number in range(rounds):
            for mode in sorted(MODES, reverse=bool(number % 2)):
                run_dir = run(CONFIG, folder, f"{mode}-{number}", MODES[mode] | FIXED)
                rates[mode].append(rate(run_dir))
                later[mode].append(rate(run_dir, LATER_S))
                said = f"live, round {number + 1}, {mode}: {rates[mode][-1]:.2f} rollouts/s"
                print(f"{said}, {later[mode][-1]:.2f} of the last {LATER_S:g} s", flush=True)
                if mode == "control":
                    made = [entry.event for entry in read_journal(run_dir).entries()]
                    changes.append([f"{e.key} = {e.value}" for e in made if isinstance(e, SettingChanged)])
    ratios = [on / off for on, off in zip(rates["control"], rates["default"], strict=True)]
    return {
        "rollouts_per_s": rates,
        "ratio": median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "ratio_of_the_end": median(
            on / off for on, off in zip(later["control"], later["default"], strict=True)
        ),
        "changes": changes,
    }
