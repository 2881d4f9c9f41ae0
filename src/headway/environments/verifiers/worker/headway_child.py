"""The process that runs a package of verifiers, in the package's own virtual environment.

Consumes JSON objects, one a line of stdin, each with an `id` and what to `do`; answers each by one line on
stdout, in the order in which they are done. Rollouts run at the same time, on one event loop; `cancel` ends
one. Waits for the next line; ends with stdin, at once, whatever runs: its parent is gone then. What the
package started, such as tool servers in sessions of their own, ends before.

It is no module of Headway's: only the standard library and what the virtual environment holds is imported. A
failure is answered by whose it is (`environment`, `infrastructure`, `reward`, `setup`) and in words; it is
never a reward.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import glob
import json
import os
import signal
import sys
import threading
from importlib import import_module
from typing import Any, Protocol


class Fault(Exception):
    """A failure, and whose it is."""

    def __init__(self, owner: str, text: str) -> None:
        super().__init__(text)
        self.owner = owner


class Half(Protocol):
    """What a major version of verifiers has a class for, in headway_v0.py or headway_v1.py."""

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load the package; return its version and the keys of its tasks."""
        ...

    def row(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a task's first messages and its key."""
        ...

    async def rollout(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a rollout and score it."""
        ...

    async def score(self, request: dict[str, Any]) -> dict[str, Any]:
        """Score a rollout once more whose rewards failed."""
        ...


class Server:
    """Answers requests."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._half: Half | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def take(self, request: dict[str, Any]) -> None:
        """Begin with a request."""
        number = request["id"]
        if request["do"] == "cancel":
            if number in self._tasks:
                self._tasks[number].cancel()
            return
        self._tasks[number] = asyncio.get_running_loop().create_task(self._serve(number, request))

    async def _serve(self, number: int, request: dict[str, Any]) -> None:
        try:
            answer = {"ok": await self._done(request)}
        except Fault as fault:
            answer = {"error": {"owner": fault.owner, "text": str(fault)}}
        except asyncio.CancelledError:
            answer = {"error": {"owner": "cancelled", "text": "it was cancelled"}}
        except Exception as error:  # the package's code may raise anything
            answer = {"error": {"owner": "environment", "text": in_words(error)}}
        finally:
            self._tasks.pop(number, None)
        try:
            line = json.dumps({"id": number, **answer}, default=str)
        except Exception as error:  # what str() of some object raises
            line = json.dumps({"id": number, "error": {"owner": "environment", "text": in_words(error)}})
        self._answers.write(line + "\n")
        self._answers.flush()

    async def _done(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["do"]:
            case "load":
                self._half = _half(request)
                return self._half.load(request)
            case "row":
                return self._loaded().row(request)
            case "rollout":
                return await self._loaded().rollout(request)
            case "score":
                return await self._loaded().score(request)
            case other:
                raise Fault("setup", f"there is no such request: {other}")

    def _loaded(self) -> Half:
        if self._half is None:
            raise Fault("setup", "the first request must load the package")
        return self._half


def in_words(error: BaseException) -> str:
    """Return an exception, the line that raised it, and those that it came of."""
    parts: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(parts) < 4:
        place, at = "", seen.__traceback__
        while at is not None:
            place = f" at {os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}"
            at = at.tb_next
        parts.append(f"{type(seen).__name__}: {seen}"[:600] + place)
        seen = seen.__cause__
    return "; because of ".join(parts)


def _half(request: dict[str, Any]) -> Half:
    try:
        module = import_module(request["module"])
    except Exception as error:
        rule = f"the module {request['module']} must be importable: {in_words(error)}"
        raise Fault("setup", rule) from error
    name = "headway_v0" if hasattr(module, "load_environment") else "headway_v1"
    return import_module(name).Half(module)


def _read(loop: asyncio.AbstractEventLoop, server: Server) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        loop.call_soon_threadsafe(server.take, request)
    _end_children(os.getpid())
    os._exit(0)


def _end_children(parent: int) -> None:
    """Kill what descends from a process, from below; where the system does not tell, nothing."""
    for path in glob.glob(f"/proc/{parent}/task/*/children"):
        with contextlib.suppress(OSError):
            with open(path) as file:
                children = [int(word) for word in file.read().split()]
            for child in children:
                _end_children(child)
                os.kill(child, signal.SIGKILL)


async def _serve(answers: Any) -> None:
    loop = asyncio.get_running_loop()
    server = Server(answers)
    threading.Thread(target=_read, args=(loop, server), daemon=True).start()
    await asyncio.Event().wait()


def main() -> None:
    """Serve on stdin and stdout; whatever else is printed goes to stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # says where it is stuck before it is ended
    sys.modules["headway_child"] = sys.modules[__name__]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asyncio.run(_serve(answers))


if __name__ == "__main__":
    main()
