"""A child process that runs the library, asked one thing at a time.

`ask` waits for the answer, at most so long as it says; a child that is overdue or died is ended, and the next
question starts another one. Safe to be called from several threads, which wait for one another.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from typing import Any, cast

from headway.core.clock import stopwatch
from headway.core.errors import EnvironmentFault, EnvironmentSetupError, HeadwayError
from headway.environments.reasoning_gym.child import WALL

START_S = 120.0  # for importing the library
_GRACE_S = 5.0  # between the child's own limit on the clock and ours
_ALARMS = (-signal.SIGPROF, -signal.SIGALRM)
NOT_INSTALLED = "The library reasoning-gym must be installed for environments reasoning-gym:NAME"
INSTALL = "pip install 'headway[reasoning-gym]'"


class ChildOverdueError(HeadwayError):
    """The library took longer than it may; its process was ended."""


class ChildDiedError(HeadwayError):
    """The library's process died while it was asked: out of memory, or a crash."""


class LibraryRaisedError(EnvironmentFault):
    """The library raised."""


class LibraryProcess:
    """One child.

    Args:
        name: of the dataset; "" for a child that is asked for names only.
        config: the dataset's own parameters.
    """

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        self._name = name
        self._config = config
        self._lock = threading.Lock()
        self._children: list[subprocess.Popen[bytes]] = []  # one, or none
        weakref.finalize(self, _end_all, self._children)
        self._rest = b""
        self.num_started = 0

    def ask(self, do: str, limit_s: float, **request: Any) -> dict[str, Any]:
        """Return the child's answer.

        Raises ChildOverdueError past `limit_s` seconds of its processor's time, a start apart;
        ChildDiedError; LibraryRaisedError for what the library raised.
        """
        with self._lock:
            if not self._children:
                self._start()
            return self._ask({"do": do, **request}, limit_s)

    def close(self) -> None:
        """End the child; another question starts one anew."""
        with self._lock:
            self._end()

    def _start(self) -> None:
        own = {"PATH": os.defpath, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        own["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        child = subprocess.Popen(
            [sys.executable, "-m", "headway.environments.reasoning_gym.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=own,
            start_new_session=True,
        )
        self._children.append(child)
        self._children.append(child)
        self._rest = b""
        self.num_started += 1
        first = {"do": "open", "name": self._name, "config": self._config} if self._name else {"do": "names"}
        try:
            self._ask(first, START_S)
        except LibraryRaisedError as error:
            self._end()
            if "No module named 'reasoning_gym'" in str(error):
                raise EnvironmentSetupError(NOT_INSTALLED, remedy=INSTALL, key="environment.name") from None
            raise

    def _ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        stdin = self._children[0].stdin
        assert stdin is not None
        line = json.dumps(request | {"limit_s": limit_s}).encode() + b"\n"
        try:
            stdin.write(line)
            stdin.flush()
            answer = self._line(WALL * limit_s + _GRACE_S)
        except (BrokenPipeError, EOFError):
            code = self._end(leave=True)
            if code in _ALARMS:
                rule = f"reasoning-gym must answer within {limit_s:g} s of the processor's time"
                raise ChildOverdueError(rule) from None
            raise ChildDiedError(f"the process of reasoning-gym ended meanwhile, {_in_words(code)}") from None
        except BaseException:  # overdue, or this process is interrupted: what comes would be another's answer
            self._end()
            raise
        found = cast("dict[str, Any]", json.loads(answer))
        if "error" in found:
            raise LibraryRaisedError(str(found["error"]))
        return found

    def _line(self, limit_s: float) -> bytes:
        stdout = self._children[0].stdout
        assert stdout is not None
        began, handle = stopwatch(), stdout.fileno()
        while b"\n" not in self._rest:
            left_s = limit_s - (stopwatch() - began)
            if left_s <= 0 or not select.select([handle], [], [], left_s)[0]:
                raise ChildOverdueError(f"reasoning-gym must answer within {limit_s:g} s")
            part = os.read(handle, 1 << 16)
            if not part:
                raise EOFError
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _end(self, *, leave: bool = False) -> int:
        return _end_all(self._children, leave=leave)


def _end_all(children: list[subprocess.Popen[bytes]], *, leave: bool = False) -> int:
    """End what is left of the children, or let them die of what they die of; return the last exit code."""
    code = 0
    while children:
        child = children.pop()
        if leave:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_S)
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        code = child.wait()
    return code


def _in_words(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"with exit code {code}"
