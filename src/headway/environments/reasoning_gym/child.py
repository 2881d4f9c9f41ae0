"""The process that runs the library reasoning-gym: `python -m headway.environments.reasoning_gym.child`.

Consumes one JSON object a line on stdin, answers each by one on stdout, and ends with its stdin. What a
request raises is its answer. One that takes longer than its `limit_s` of the processor's time, or WALL times
as long on the clock, ends the process by the kernel's own alarm: how busy the machine is makes little
difference, and a child whose parent was killed does not compute for ever.

Some datasets draw from Python's global generator or depend on the order of sets: the former is seeded before
each item, the latter is fixed by PYTHONHASHSEED=0, which the parent sets. A verifier is asked with the
question that it is about; where this process makes another task of it, that is an error.

Several of the library's verifiers pass the policy's answer to `eval` or to sympy's parser, which evaluates
it. So this process has no environment variables of its own, a limit on memory, and an audit hook under which
it writes no file, starts no process and opens no connection. That keeps accidents off; it is no sandbox
against code that is written to break out.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import random
import resource
import signal
import sys
from importlib import import_module
from typing import IO, Any

WALL = 6.0  # a request may take so many times its limit on the clock
_MAX_MEMORY_BYTES = 4 << 30
_MAX_KEPT = 64  # items, for the answers of a group
_FINITE = {"acre": 2_000, "gsm_symbolic": 100_000, "list_functions": 100_000, "word_ladder": 20_000}
"""Datasets that decide at once what all their items are, or bound them, and how many are asked of them."""
_HARMFUL = (
    "os.", "shutil.", "socket.", "subprocess.", "ctypes.", "pty.", "ftplib.", "http.", "smtplib.", "urllib.",
    "webbrowser.", "winreg.", "fcntl.", "mmap.", "signal.", "syslog.", "tempfile.", "sys.addaudithook",
)  # fmt: skip
_HARMLESS = ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Shelf:
    """One dataset at all its levels, and the items that were asked for last."""

    def __init__(self, name: str, config: dict[str, Any]) -> None:
        registry: Any = import_module("reasoning_gym.factory")
        self._name = name
        self._config = config
        self._class: Any
        self._settings: Any
        self._class, self._settings = registry.DATASETS[name]
        self._curriculum: Any = registry.CURRICULA.get(name)
        self._datasets: dict[int, Any] = {}
        self._items: dict[tuple[int, int], dict[str, Any]] = {}

    @property
    def num_levels(self) -> int:
        """Levels of its curriculum, 0 without one."""
        if self._curriculum is None:
            return 0
        attributes = self._curriculum().attributes.values()
        return max((len(attribute.levels) for attribute in attributes), default=0)

    @property
    def parameters(self) -> list[str]:
        """What its configuration takes, without what the environment itself sets."""
        names = [field.name for field in dataclasses.fields(self._settings)]
        return [name for name in names if name not in ("seed", "size")]

    def dataset(self, level: int) -> Any:
        """Return the dataset at a level, 0 for the library's defaults."""
        if level not in self._datasets:
            own = {"seed": 0, "size": _FINITE.get(self._name, 2**31)}
            if level == 0:
                settings: Any = self._settings(**own, **self._config)
            else:
                curriculum = self._curriculum()
                curriculum.set_global_level(level - 1)
                settings = dataclasses.replace(curriculum.generate_configuration(own), **self._config)
            if hasattr(settings, "validate"):
                settings.validate()
            self._datasets[level] = self._class(config=settings)
        return self._datasets[level]

    def item(self, level: int, draw: int) -> dict[str, Any]:
        """Return the item of a number: the same one in every process."""
        if (level, draw) not in self._items:
            if len(self._items) >= _MAX_KEPT:
                del self._items[next(iter(self._items))]
            dataset = self.dataset(level)
            _seed(draw)
            found: Any = dataset[draw % _FINITE.get(self._name, 2**31)]
            if not isinstance(found, dict) or not isinstance(found.get("question"), str):  # pyright: ignore
                raise TypeError("an item must be a dict with a question")
            self._items[level, draw] = found
        return self._items[level, draw]

    def score(self, level: int, draw: int, question: str, answer: str) -> float:
        """Return what the dataset's own verifier says."""
        item = self.item(level, draw)
        if item["question"] != question:
            raise RuntimeError("the library makes another task each time")
        _seed(draw)
        value = self.dataset(level).score_answer(answer, copy.deepcopy(item))
        score = float(value)
        if not math.isfinite(score):
            raise ValueError(f"the verifier returned {score}")
        return score


def _seed(draw: int) -> None:
    """Make what draws from global generators repeat itself."""
    random.seed(draw)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(draw % 2**32)


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        writes = isinstance(flags, int) and flags & _WRITES
        if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
            raise PermissionError("a verifier may write no file")
    elif event.startswith(_HARMFUL) and event not in _HARMLESS:
        raise PermissionError(f"a verifier may not do this: {event}")


def _answer(shelf: Shelf | None, request: dict[str, Any]) -> dict[str, Any]:
    assert shelf is not None, "the first request names the dataset"
    match request["do"]:
        case "levels":
            return {"num_levels": shelf.num_levels, "parameters": shelf.parameters}
        case "item":
            item = shelf.item(request["level"], request["draw"])
            answer = item.get("answer")
            metadata: dict[str, Any] = item.get("metadata") or {}
            named = {key: str(metadata[key]) for key in request.get("named", ()) if key in metadata}
            return {
                "question": item["question"],
                "answer": None if answer is None else str(answer),
                "metadata": named,
            }
        case "score":
            return {
                "score": shelf.score(*(request[name] for name in ("level", "draw", "question", "answer")))
            }
        case other:
            raise ValueError(f"no such request: {other}")


def _names() -> dict[str, Any]:
    datasets: dict[str, Any] = import_module("reasoning_gym.factory").DATASETS
    lines = {name: (cls.__doc__ or "").strip().partition("\n")[0] for name, (cls, _) in datasets.items()}
    return {"names": lines}


def serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until there are no more."""
    shelf: Shelf | None = None
    for line in requests:
        request: dict[str, Any] = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["limit_s"])
        signal.setitimer(signal.ITIMER_REAL, WALL * request["limit_s"])
        try:
            match request["do"]:
                case "names":
                    answer = _names()
                case "open":
                    shelf = Shelf(request["name"], request["config"])
                    answer = {"num_levels": shelf.num_levels, "parameters": shelf.parameters}
                    sys.addaudithook(_guard)
                case _:
                    answer = _answer(shelf, request)
        except Exception as error:  # the library's code and what it evaluates may raise anything
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> int:
    """Serve on stdin and stdout; whatever else is printed goes to stderr."""
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(sys.stdin, answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
