"""Keep a benchmark's result: one JSON file a benchmark in benchmarks/results, with what it ran on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path


def keep(name: str, result: dict[str, object]) -> None:
    """Write the result beside the machine and the commit, then print it as the last line of output."""
    root = Path(__file__).parent
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.strip()
    machine = {"cores": len(os.sched_getaffinity(0)), "arch": platform.machine(), "load": os.getloadavg()[0]}
    folder = root / "results"
    folder.mkdir(exist_ok=True)
    record = {"commit": commit, "machine": machine, "result": result}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(result))
