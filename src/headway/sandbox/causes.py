"""From a signal or an exit code to a cause."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.protocols import Cause


def signal_cause(signum: int) -> Cause:
    """Return the cause that a deadly signal stands for."""
    if signum == signal.SIGXCPU:
        return "cpu"
    return "disk" if signum == signal.SIGXFSZ else "killed"


def exit_cause(rc: int, stderr: str) -> Cause:
    """A limit that the program met as an error of its own; best effort, for people and statistics."""
    last = stderr.strip().rpartition("\n")[2]
    if rc == 0:
        return "exit"
    if last.startswith("MemoryError"):
        return "oom"
    if "Resource temporarily unavailable" in last or "can't start new thread" in last:
        return "pids"
    if "No space left on device" in last or "File too large" in last:
        return "disk"
    return "exit"


def status_cause(status: int, stderr: str) -> tuple[int | None, int | None, Cause]:
    """Return exit code, signal and cause of a program that ended by itself, from its status of wait(2)."""
    if os.WIFSIGNALED(status):
        signum = os.WTERMSIG(status)
        return None, signum, signal_cause(signum)
    rc = os.WEXITSTATUS(status)
    return rc, None, exit_cause(rc, stderr)
