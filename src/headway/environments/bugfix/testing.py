"""Runs tests of a package in a sandbox (inside.py) and reads what came of them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from headway.core.protocols import ExecLimits

if TYPE_CHECKING:
    from headway.core.protocols import Sandbox

Runner = Literal["pytest", "unittest"]
PYTEST = "pytest==9.2.0"  # what the sandboxes' Python needs for the runner of this name

_PROGRAM = (Path(__file__).with_name("inside.py")).read_text(encoding="utf-8")
_OUTPUT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """How a package's tests are run."""

    runner: Runner
    roots: tuple[str, ...]  # folders that come first on the import path
    root: str = "."  # the package's folder, below the work folder
    python: str = "python3"


@dataclass(frozen=True, slots=True)
class TestRun:
    """What came of one run of tests."""

    __test__ = False

    outcomes: dict[str, str] = field(default_factory=dict[str, str])  # test -> passed, failed or skipped
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    calls: dict[str, list[tuple[str, int]]] = field(default_factory=dict[str, list[tuple[str, int]]])
    said: dict[str, str] = field(default_factory=dict[str, str])  # of some failures: their last lines
    error: str = ""  # why there are no outcomes: the time was over, say

    def passed(self, tests: Collection[str]) -> list[str]:
        """Return those that passed; one that did not run has not."""
        return [test for test in tests if self.outcomes.get(test) == "passed"]

    def failed(self, tests: Collection[str]) -> list[str]:
        """Return those that did not pass."""
        return [test for test in tests if self.outcomes.get(test) != "passed"]


async def run_tests(
    sandbox: Sandbox, layout: Layout, tests: Sequence[str], *, trace: Sequence[str] = (), wall_s: float = 60.0
) -> TestRun:
    """Run tests, which lie in the sandbox already.

    Args:
        sandbox: holds the package.
        layout: how they are run.
        tests: files, or ids.
        trace: folders below the package's of whose functions the calls are told.
        wall_s: after which nothing is known of any of them.

    Raises SandboxError when the infrastructure failed.
    """
    job = {
        "runner": layout.runner,
        "root": layout.root,
        "paths": list(layout.roots),
        "tests": list(tests),
        "trace": list(trace),
    }
    done = await sandbox.exec(
        [layout.python, "-I", "-B", "-c", _PROGRAM],
        stdin=json.dumps(job).encode(),
        limits=ExecLimits(wall_s, _OUTPUT_BYTES),
    )
    answer = _answer(done.stdout)
    if done.cause != "exit" or answer is None:
        return TestRun(
            error=f"the tests did not end: {done.cause}{f' {done.stderr[-300:]}' if done.stderr else ''}"
        )
    calls = cast("Mapping[str, list[list[Any]]]", answer["calls"])
    return TestRun(
        answer["outcomes"],
        answer["seconds"],
        {test: [(str(file), int(line)) for file, line in found] for test, found in calls.items()},
        answer["said"],
        answer["error"] or ("" if answer["outcomes"] else "no test was found"),
    )


def _answer(stdout: str) -> dict[str, Any] | None:
    try:
        found: object = json.loads(stdout)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    answer = cast("dict[str, Any]", found)
    parts = ("outcomes", "seconds", "calls", "said")
    whole = all(isinstance(answer.get(part), dict) for part in parts) and isinstance(answer.get("error"), str)
    return answer if whole else None
