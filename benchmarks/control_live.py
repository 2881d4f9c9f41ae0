"""[control] on a real run that tool latency dominates, in turns with the default."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

from queue_efficiency import CONFIG, START_S, loop_rates, make_model, run

from headway.core.events import SettingChanged
from headway.telemetry.journal import read_journal

LOOP_S = 60.0  # seconds after the first score
MODES: dict[str, dict[str, object]] = {"default": {"control.mode": "off"}, "control": {"control.mode": "on"}}


def live(rounds: int, tool_s: float = 0.5) -> dict[str, object]:
    """Run both in turns; return rollouts trained a second of each, their ratio, and what control changed."""
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    changes: list[list[str]] = []
    environment = Path(__file__).parent / "slow_tool" / "environment.py"
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as name:
        folder = Path(name)
        config = folder / "slow.toml"
        model = make_model(folder / "model")
        config.write_text(CONFIG.format(model=model, environment=environment, tool_s=tool_s, batch=32))
        for number in range(rounds):
            for mode in sorted(MODES, reverse=bool(number % 2)):
                limits = {"stop.wall_s": START_S + LOOP_S}
                run_dir = run(config, folder, f"{mode}-{number}", MODES[mode] | limits)
                rate, _ = loop_rates(run_dir)
                rates[mode].append(rate)
                print(f"live, round {number + 1}, {mode}: {rate:.2f} rollouts/s", flush=True)
                if mode == "control":
                    made = [entry.event for entry in read_journal(run_dir).entries()]
                    changes.append([f"{e.key} = {e.value}" for e in made if isinstance(e, SettingChanged)])
    ratios = [on / off for on, off in zip(rates["control"], rates["default"], strict=True)]
    return {
        "rollouts_per_s": {mode: median(values) for mode, values in rates.items()},
        "ratio": median(rates["control"]) / median(rates["default"]),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "changes": changes,
    }
