"""Stands above one command of the unsafe provider: a script that needs only the standard library.

Run as `python -I -S -B keeper.py LIFE REPORT LIMITS FOLDER COMMAND...`, where LIFE and REPORT are descriptors
of pipes and LIMITS is JSON. It starts the command in a session of its own with resource limits, reports
`started PID`, and then reaps every process that it started. It waits for the first of: the command's exit, a
line or the end of LIFE (its controller wants it over, or is gone), more processes than allowed. Whatever
comes first, everything that is left is killed, and then it reports `ended STATUS CAUSE CPU_S MEMORY_BYTES`.

On Linux it is a subreaper: what a daemon does to leave its parent makes it a child of the keeper, and no
child left is the proof that nothing is. Elsewhere it remembers which processes it has seen below the command,
and a daemon that was never seen gets away.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable

_LOOK_S = 0.1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1
_ON_LINUX = sys.platform == "linux"


def below(root: int) -> set[int]:
    """Return the processes that descend from `root` now, itself left out."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    left = [root]
    while left:
        for pid in children.get(left.pop(), ()):
            if pid not in found:
                found.add(pid)
                left.append(pid)
    return found


def _parents() -> Iterable[tuple[int, int]]:
    """Yield (process, its parent) of all processes that can be seen."""
    if _ON_LINUX:
        for name in os.listdir("/proc"):
            if name.isdigit():
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        # A process may have any name; what follows its last parenthesis is numbers.
                        fields = file.read().rpartition(b")")[2].split()
                except OSError:  # it has ended
                    continue
                if fields and fields[0] != b"Z":
                    yield int(name), int(fields[1])
        return
    done = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        pid, parent = line.split()
        yield int(pid), int(parent)


def kill(pids: Iterable[int]) -> None:
    """Kill processes; those that are gone, or another user's, stay as they are."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _limit(limits: dict[str, int]) -> None:
    """Set the resource limits of this process; one that the system does not have is left out."""
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}", None)
        if kind is None:
            continue
        _, hard = resource.getrlimit(kind)
        soft = value if hard == resource.RLIM_INFINITY else min(value, hard)
        if name == "CPU":  # a second more until the signal that cannot be ignored
            value += 1
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS knows RLIMIT_AS and refuses it
            resource.setrlimit(kind, (soft, most))


def _begin(folder: str, command: list[str], limits: dict[str, int], keeper: int, closed: list[int]) -> None:
    """Become the command; never returns."""
    code, what = 126, "start"
    try:
        os.setsid()
        for fd in closed:
            os.close(fd)
        if _ON_LINUX:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:  # it ended before it could be noticed
                os._exit(126)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for signum in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD):  # Python ignores the first two
            signal.signal(signum, signal.SIG_DFL)
        _limit(limits)
        code, what = 126, folder
        os.chdir(folder)
        code, what = 127, command[0]
        os.execvpe(command[0], command, os.environ)
    except OSError as error:
        os.write(2, f"{what}: {error.strerror}\n".encode())
        os._exit(code)
    finally:
        os._exit(127)


def _prctl(option: int, value: int) -> None:
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _nothing(_signum: int, _frame: object) -> None:
    """Let a signal wake the loop and do nothing else."""


def _tell(report: int, line: str) -> None:
    """Report, to a controller that may be gone: what is left to do is done all the same."""
    with contextlib.suppress(BrokenPipeError):
        os.write(report, f"{line}\n".encode())


class _Watch:
    """What is known of the command and of what descends from it."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.status: int | None = None
        self.seen: set[int] = set()  # by looking; where children cannot get away it stays unused

    def reap(self) -> bool:
        """Take up every process that has ended; say whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.seen.discard(pid)
            if pid == self.first:
                self.status = status

    def look(self) -> int:
        """Return how many processes there are."""
        now = below(os.getpid())
        if not _ON_LINUX:
            self.seen = (self.seen & {pid for pid, _ in _parents()}) | now
        return len(now)

    def end(self) -> None:
        """Kill everything until nothing is left to wait for."""
        if not _ON_LINUX:
            self.look()
        while self.reap():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.first, signal.SIGKILL)
            found = below(os.getpid())
            for pid in found:  # one that is stopped starts no other
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGSTOP)
            kill(found)
            time.sleep(0.002)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.first, signal.SIGKILL)
        kill(self.seen)


def main(arguments: list[str]) -> None:
    """Run the command."""
    life, report = int(arguments[0]), int(arguments[1])
    limits: dict[str, int] = json.loads(arguments[2])
    folder, command = arguments[3], arguments[4:]
    max_processes = limits.pop("processes")
    if _ON_LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for fd in (life, report):
        os.set_inheritable(fd, False)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _nothing)
    keeper = os.getpid()
    first = os.fork()
    if first == 0:
        _begin(folder, command, limits, keeper, [life, report, woken, wake])
    for fd in (0, 1, 2):  # the command's; held here, they would never come to their end
        os.close(fd)
    _tell(report, f"started {first}")
    watch = _Watch(first)
    cause = "exit"
    due = time.monotonic() + _LOOK_S
    while watch.status is None:
        ready, _, _ = select.select([life, woken], [], [], _LOOK_S)
        if woken in ready:
            os.read(woken, 4096)
        watch.reap()
        if watch.status is not None:
            break
        if life in ready:
            cause = "asked"
            break
        if time.monotonic() >= due:  # orphans that end all the time must not put it off
            due = time.monotonic() + _LOOK_S
            if watch.look() > max_processes:
                cause = "pids"
                break
    watch.end()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # of all that was reaped, and its largest process
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    _tell(report, f"ended {watch.status or 0} {cause} {used.ru_utime + used.ru_stime:.6f} {memory}")


if __name__ == "__main__":
    main(sys.argv[1:])
