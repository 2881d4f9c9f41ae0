"""The memory of a process and everything that it started, sampled while it runs. Linux alone."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import NamedTuple

PERIOD_S = 0.5


class Ran(NamedTuple):
    """A process that ended well."""

    output: str
    peak_bytes: int  # largest sum of proportional set sizes that was seen


def run_watched(command: list[str], env: dict[str, str] | None = None) -> Ran:
    """Run a command to its end, watching its memory.

    Proportional set size: a page that n processes share counts as a page / n in each.
    Raises RuntimeError with the end of its output when it fails.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, errors="replace"
    )
    ended = threading.Event()
    peak = 0

    def watch() -> None:
        nonlocal peak
        while not ended.wait(PERIOD_S):
            peak = max(peak, sum(map(_proportional_bytes, _tree(process.pid))))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        output, errors = process.communicate()
    finally:
        ended.set()
        watcher.join()
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode:
        raise RuntimeError(
            f"{command[:4]} ended with {process.returncode}:\n{output[-1500:]}{errors[-3000:]}"
        )
    return Ran(output, peak)


def _tree(pid: int) -> list[int]:
    """Return a process and its descendants, those that are still there."""
    found = [pid]
    for parent in found:
        try:
            threads = list(Path(f"/proc/{parent}/task").iterdir())
            for thread in threads:
                found += map(int, (thread / "children").read_text().split())
        except OSError:
            continue
    return found


def _proportional_bytes(pid: int) -> int:
    """Return a process's proportional set size, 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
