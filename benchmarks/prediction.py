"""Whether a run that was measured predicts two others: `headway whatif` against runs with those settings.

All are dominated by the latency of tools, lognormal waits behind each of three answers, so that cores that
others use too do not drown the effect. One run is recorded; the others differ from it in batch, group, bound
and latency. What `whatif` says of them, before they run, is held against what they then do.

The tiny model, real processes, one thread for each side. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from keep import keep

from headway.matching.whatif import WhatIf, value_of, whatif
from headway.telemetry.journal import read_journal
from headway.telemetry.metrics import RunMetrics

TOOL_S = 1.0
START_S = 10.0  # for the processes to come up
RECORDED: dict[str, float] = {"queue.batch_size": 32, "queue.group_size": 8, "queue.bound": 2}
PREDICTED: dict[str, dict[str, float]] = {
    "larger": {"queue.batch_size": 64, "queue.group_size": 4, "queue.bound": 4, "tool_s": 2.0},
    "smaller": {"queue.batch_size": 16, "queue.group_size": 8, "queue.bound": 1, "tool_s": 0.5},
}
METRICS = {
    "samples_per_s": "rl.consumption.wall_samples_per_s",
    "wait_fraction": "rl.trainer.wait_fraction",
    "staleness": "rl.staleness.token.mean",
}
WITHIN = {"samples_per_s": 0.10, "wait_fraction": 0.05, "staleness": 0.3}
"""Relative, and in the metric's own unit for the other two: fixed before anything was measured."""
CONFIG = """
[model]
path = "tiny"

[environment]
name = "{environment}"
args = {{ tool_s = {tool_s}, sigma = 0.6, answer_tokens = 16 }}
rollout_timeout_s = 600

[generator]
max_running = 256
max_context_tokens = 256
max_answer_tokens = 16
threads = 1

[trainer]
full = true
learning_rate = 1e-6
threads = 1

[eval]
num_tasks = 0

[stop]
steps = 5000
"""


def run(folder: Path, name: str, settings: dict[str, float], seconds: float) -> Path:
    """Run once; return the run's directory."""
    settings = dict(settings)
    environment = Path(__file__).parent / "slow_tool" / "environment.py"
    config = folder / f"{name}.toml"
    config.write_text(CONFIG.format(environment=environment, tool_s=settings.pop("tool_s", TOOL_S)))
    overrides = [f"{key}={value:g}" for key, value in settings.items()]
    overrides += [f"stop.wall_s={START_S + seconds:g}", f"run.dir={folder}", f"run.name={name}"]
    command = [sys.executable, "-m", "headway", "train", str(config), *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder / name


def predicted(recorded: Path, settings: dict[str, float], seeds: int) -> WhatIf:
    """Return what the recorded run says of other settings; a tool's latency scales what was recorded."""
    from headway.matching.calibrate import calibrate

    settings = dict(settings)
    factor = settings.pop("tool_s", TOOL_S) / TOOL_S
    tool_s = calibrate(read_journal(recorded)).workload.tool_s * factor
    changes = [*(f"{key}={value:g}" for key, value in settings.items()), f"workload.tool_s={tool_s!r}"]
    return whatif(read_journal(recorded), changes, seeds)


def judged(found: WhatIf, measured: dict[str, object], name: str) -> dict[str, object]:
    """Return each metric as it was predicted and measured, how far they are, and whether that is enough."""
    result: dict[str, object] = {}
    for short, key in METRICS.items():
        told, was = found.of(key).after, value_of(measured, key)
        assert told is not None, key
        assert was is not None, key
        off = told / was - 1.0 if short == "samples_per_s" else told - was
        result |= {f"{name}.{short}.predicted": round(told, 4), f"{name}.{short}.measured": round(was, 4)}
        result |= {f"{name}.{short}.off": round(off, 4), f"{name}.{short}.ok": abs(off) <= WITHIN[short]}
        print(f"{name:8} {short:14} predicted {told:8.3f}  measured {was:8.3f}  off {off:+.3f}", flush=True)
    result[f"{name}.drawn_fraction"] = round(found.drawn, 3)
    return result


def own_error(found: WhatIf) -> dict[str, object]:
    """Return how far the simulated unchanged run is from the recorded one."""
    result: dict[str, object] = {}
    for short, key in METRICS.items():
        one = found.of(key)
        assert one.measured is not None, key
        assert one.replayed is not None, key
        result |= {
            f"recorded.{short}.replayed": round(one.replayed, 4),
            f"recorded.{short}.measured": round(one.measured, 4),
        }
        print(f"recorded {short:14} replayed  {one.replayed:8.3f}  measured {one.measured:8.3f}", flush=True)
    return result


def main() -> None:
    """Record, predict, run what was predicted, and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=75.0, help="of each run, after its start")
    parser.add_argument("--seeds", type=int, default=5, help="simulations of each prediction")
    parser.add_argument("--only", nargs="+", choices=list(PREDICTED), default=list(PREDICTED))
    parser.add_argument("--keep", type=Path, help="directory for the runs, which stay there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        recorded = run(folder, "recorded", RECORDED, arguments.seconds)
        result: dict[str, object] = {}
        for name in arguments.only:
            found = predicted(recorded, PREDICTED[name], arguments.seeds)
            if not result:
                result |= own_error(found)
            made = run(folder, name, PREDICTED[name], arguments.seconds)
            result |= judged(found, RunMetrics.of(read_journal(made)).summary(), name)
    result["ok"] = all(value for key, value in result.items() if key.endswith(".ok"))
    keep("prediction", result)


if __name__ == "__main__":
    main()
