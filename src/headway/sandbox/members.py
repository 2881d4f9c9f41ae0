"""The processes of a pid namespace, seen and stopped from outside of it.

A process is told by its namespace, which it cannot leave, and held by a pidfd while it is signalled, so that
no process that got its number in the meantime is meant.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import SandboxError

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOKS = 200  # at processes that shall stop; each look stops all that are there


@dataclass(frozen=True, slots=True)
class Member:
    """A process as /proc shows it."""

    pid: int
    state: str
    cpu_s: float  # its children that it waited for included
    memory_bytes: int


def members(init: int) -> list[Member]:
    """Return the processes in the namespace that process `init` is the first of, without it."""
    found: list[Member] = []
    for pid in _pids(init):
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found.append(
                Member(pid, fields[0], sum(map(int, fields[11:15])) * _TICK_S, int(fields[21]) * _PAGE)
            )
    return found


def stop(init: int) -> None:
    """Stop every process of a namespace but the first; blocks for some milliseconds.

    One that was told and sleeps in the kernel (a parent whose vfork is stopped, a slow disk) stops before it
    comes out of there. Raises SandboxError when some would not stop.
    """
    told: set[int] = set()
    for _ in range(_LOOKS):
        running = [
            member.pid
            for member in members(init)
            if member.state not in "TtZX" and not (member.state == "D" and member.pid in told)
        ]
        if not running:
            return
        _send(init, running, signal.SIGSTOP)
        told.update(running)
        time.sleep(0.001)
    raise SandboxError("a paused sandbox's processes must stop", value=len(members(init)))


def go_on(init: int) -> None:
    """Let every process of a namespace go on."""
    _send(init, [member.pid for member in members(init)], signal.SIGCONT)


def _pids(init: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        wanted = os.readlink(f"/proc/{init}/ns/pid")
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != init:
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{name}/ns/pid") == wanted:
                        yield int(name)


def _send(init: int, pids: list[int], what: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(pid)
            try:
                if os.readlink(f"/proc/{pid}/ns/pid") == os.readlink(f"/proc/{init}/ns/pid"):
                    signal.pidfd_send_signal(fd, what)
            finally:
                os.close(fd)
