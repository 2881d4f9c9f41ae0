"""Keep a benchmark's result: one JSON file a benchmark in benchmarks/results, with what it ran on and how."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from headway.telemetry.machine import describe_machine

ROOT = Path(__file__).parent


def keep(name: str, result: dict[str, object]) -> None:
    """Write the result beside the machine and the commit, then print it as the last line of output."""
    _write(name, {**_circumstances(), "result": result})
    print(json.dumps(result))


def merge(name: str, part: str, result: dict[str, object]) -> None:
    """Put one part of a benchmark into its file, beside the parts that other calls measured."""
    path = ROOT / "results" / f"{name}.json"
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    parts = record.get("parts", {}) | {part: _circumstances()}
    merged = (record.get("result", {}) if "parts" in record else {}) | result
    _write(name, {"parts": parts, "result": merged})


def _circumstances() -> dict[str, object]:
    commit = _git("rev-parse", "--short", "HEAD")
    if _git("status", "--porcelain", "--untracked-files=no", ":/", ":(exclude)results"):
        commit += "-dirty"
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "processor": describe_machine(),
        "load": os.getloadavg()[0],
    }
    return {"commit": commit, "machine": machine, "arguments": sys.argv[1:]}


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()


def _write(name: str, record: dict[str, object]) -> None:
    folder = ROOT / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
