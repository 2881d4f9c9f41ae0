"""Using it: what looking at a run costs the run, and how long a person waits.

    python benchmarks/using.py [--rollouts 100000] [--rounds 5] [--only frame page commands memory]

- frame: the live view's cost, for an event and for a frame, with 100 and with 10,000 rollouts in flight,
  beside that of the metrics which every run computes anyway.
- page: reading a long run's journal into metrics, into the table of rollouts, and into the report's page.
- commands: whole processes, from the shell and back, in turns.
- memory: the estimate of `headway check` against the peaks of a run's processes.

The last line is one JSON object. Seconds mean little on a shared machine; ratios come from one run.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from keep import keep

from headway.config.load import load_config
from headway.config.scheduler import scheduler_settings
from headway.core.codec import to_plain
from headway.matching.memory import estimate_memory
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.models.checkpoint import resolve
from headway.models.load import model_facts
from headway.queue.scheduler import Scheduler
from headway.runtime.life import calm_collector
from headway.telemetry.header import new_header
from headway.telemetry.journal import read_journal
from headway.telemetry.journal_writer import JournalWriter
from headway.telemetry.live_frame import frame
from headway.telemetry.live_state import LiveState
from headway.telemetry.metrics import RunMetrics
from headway.telemetry.page.collect import PageData
from headway.telemetry.page.render import render
from headway.telemetry.records import Entry
from headway.telemetry.rollout_table import rollout_table

ROOT = Path(__file__).parents[1]
PARTS = ("frame", "page", "commands", "memory")
IN_FLIGHT = (100, 10_000)


def simulated(num_steps: int, batch: int) -> tuple[SimRun, object]:
    """Play a steady run of groups of 8; return it and its header."""
    config = load_config(
        None,
        [
            "model.path=none", "environment.name=arithmetic", f"stop.steps={num_steps}", "eval.num_tasks=0",
            f"queue.batch_size={batch}", "queue.group_size=8", "queue.bound=1", "sandbox.max_live=100000",
        ],
    )  # fmt: skip
    settings = scheduler_settings(config)
    run = SimRun(Scheduler(settings))
    sim = SimSettings(max_running=batch, uses_sandbox=False, tool_s=1.0, tool_sigma=1.0, train_s=1.0)
    SimulatedDriver(run, sim, seed=0).play(max_events=50_000_000)
    return run, new_header(config=to_plain(config), seed=0, queue=to_plain(settings))


def timed(work: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of some rounds."""
    spent: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def frames(rounds: int) -> dict[str, object]:
    """Microseconds an event for metrics and live state, milliseconds a frame, by rollouts in flight."""
    result: dict[str, object] = {}
    for in_flight in IN_FLIGHT:
        run, header = simulated(4, max(8, in_flight // 2 // 8 * 8))
        metrics = RunMetrics(header)
        state = LiveState(metrics, header)
        half = len(run.entries) // 2  # in the middle of a run: everything is in flight
        metrics_s = state_s = 0.0
        for told in run.entries[:half]:
            entry = Entry(told.seq, told.t, told.event, tuple(told.commands), tuple(told.notes))
            began = time.perf_counter()
            metrics.feed(entry)
            middle = time.perf_counter()
            state.feed(entry)
            metrics_s += middle - began
            state_s += time.perf_counter() - middle
        now = run.entries[half].t
        draw = functools.partial(frame, state, name="run", now=now, width=120, height=40)
        took = timed(draw, 20 * rounds)
        result |= {
            f"frame.ms.{in_flight}": round(took * 1e3, 3),
            f"live_state.us_per_event.{in_flight}": round(state_s / half * 1e6, 2),
            f"metrics.us_per_event.{in_flight}": round(metrics_s / half * 1e6, 2),
        }
        print(f"{in_flight:>6} in flight: {result}", flush=True)
    result["frame.ratio"] = round(result[f"frame.ms.{IN_FLIGHT[1]}"] / result[f"frame.ms.{IN_FLIGHT[0]}"], 2)  # type: ignore[operator]
    return result


def page(num_rollouts: int) -> dict[str, object]:
    """Seconds to read a journal of so many rollouts in each way, and the page's size."""
    run, header = simulated(max(2, num_rollouts // 512), 512)
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        writer = JournalWriter(path)
        writer.write_header(header)  # type: ignore[arg-type]
        for entry in run.entries:
            writer.write_event(entry.seq, entry.t, entry.event, entry.commands, entry.notes)
        writer.close()
        run.entries.clear()
        result["journal.mb"] = round(path.stat().st_size / 1e6, 1)
        began = time.perf_counter()
        metrics = RunMetrics.of(read_journal(path.parent))
        result["journal.metrics_s"] = round(time.perf_counter() - began, 2)
        result["journal.rollouts"] = metrics.num_rollouts
        began = time.perf_counter()
        rollout_table(path.parent)
        result["journal.table_s"] = round(time.perf_counter() - began, 2)
        data = PageData.of(read_journal(path.parent))
        began = time.perf_counter()
        text = render(data, name="run", settings=[], state="unfinished", transcripts=[])
        result["page.render_s"] = round(time.perf_counter() - began, 2)
        result["page.mb"] = round(len(text.encode()) / 1e6, 2)
    print(result, flush=True)
    return result


def commands(rounds: int) -> dict[str, object]:
    """Median seconds of whole processes, in turns."""
    headway = [sys.executable, "-m", "headway"]
    with tempfile.TemporaryDirectory() as folder:
        train = ["train", str(ROOT / "examples" / "tiny.toml"), "stop.steps=5", f"run.dir={folder}"]
        subprocess.run([*headway, *train], check=True, capture_output=True)
        run = f"{folder}/tiny"
        asked = {
            "help": ["--help"],
            "check": ["check", str(ROOT / "examples" / "tiny.toml")],
            "report": ["report", run],
            "report_html": ["report", run, "--html", f"{folder}/report.html"],
            "rollouts": ["rollouts", run, "--worst"],
            "watch_once": ["watch", run, "--once"],
        }
        spent: dict[str, list[float]] = {name: [] for name in asked}
        for _ in range(rounds):
            for name, arguments in asked.items():
                began = time.perf_counter()
                subprocess.run([*headway, *arguments], check=True, capture_output=True)
                spent[name].append(time.perf_counter() - began)
    result: dict[str, object] = {
        f"command.{name}_s": round(statistics.median(times), 3) for name, times in spent.items()
    }
    print(result, flush=True)
    return result


def memory() -> dict[str, object]:
    """Estimate by measured peak of resident memory, of trainer and generator of examples/tiny.toml."""
    steps = "stop.steps=100"  # what grows shows late
    config = load_config(ROOT / "examples" / "tiny.toml", [steps])
    facts = model_facts(resolve(config.model.path))
    wanted = {"generator": 0.0, "trainer": 0.0}
    for part in estimate_memory(facts, config, needs_sandbox=False).parts:
        for role in wanted:
            if part.process.startswith(role):
                wanted[role] += part.num_bytes
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", str(ROOT / "examples" / "tiny.toml"), steps, f"run.dir={folder}"]
        process = subprocess.Popen([sys.executable, "-m", "headway", *command], stdout=subprocess.PIPE)
        peaks: dict[int, float] = {}
        while process.poll() is None:
            for child in _children(process.pid):
                peaks[child] = max(peaks.get(child, 0.0), _peak_bytes(child))
            time.sleep(0.05)
    measured = dict(zip(("generator", "trainer"), (peaks[pid] for pid in sorted(peaks)[:2]), strict=True))
    result: dict[str, object] = {}
    for role, estimate in wanted.items():
        result[f"memory.{role}.measured_mib"] = round(measured[role] / 2**20)
        result[f"memory.{role}.ratio"] = round(estimate / measured[role], 3)
    print(result, flush=True)
    return result


def _children(pid: int) -> list[int]:
    """Return the worker processes of a run, in the order in which they were started."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"headway.runtime.worker" in path.joinpath("cmdline").read_bytes():
                found.append(int(path.name))
        except (OSError, ValueError, IndexError):
            continue
    return sorted(found)


def _peak_bytes(pid: int) -> float:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024.0
    except OSError:
        pass
    return 0.0


def main() -> None:
    """Run the parts and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rollouts", type=int, default=100_000, help="of the long run's journal")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    calm_collector()
    result: dict[str, object] = {}
    if "frame" in arguments.only:
        result |= frames(arguments.rounds)
    if "page" in arguments.only:
        result |= page(arguments.rollouts)
    if "commands" in arguments.only:
        result |= commands(arguments.rounds)
    if "memory" in arguments.only:
        result |= memory()
    keep("using", result)


if __name__ == "__main__":
    main()
