"""Proves tasks: tests pass in the sources, some of them fail with the bug, all pass without it again.

A package is prepared once: its tests run twice in the sources, traced the second time, so that what fails,
flickers or takes too long is left out and every other test has the functions that it calls. A bug is then
judged by the tests that call its function, and some others that call functions of its module: they run with
the bug, without it again in the same sandbox, and with it once more in another one.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.errors import EnvironmentSetupError
from headway.environments.bugfix.mutations import UnusableSourceError, functions, parse
from headway.environments.bugfix.rows import Bug, with_bugs
from headway.environments.bugfix.sources import Package, pack
from headway.environments.bugfix.testing import Layout, Runner, TestRun, run_tests

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headway.core.protocols import Sandbox

MakeSandbox = Callable[[], Awaitable["Sandbox"]]

_WHOLE_S = 300.0  # all tests of a package
_CALLING = 60  # tests at most that call a bug's function
_BESIDE = 40  # others of its module


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is known of a package's tests."""

    layout: Layout
    tests: tuple[str, ...]  # that pass twice and are quick, in order
    calls: dict[str, list[tuple[str, str]]]  # test -> (file, function) that it calls
    left_out: dict[str, str]  # test -> why

    def choose(self, bugs: Sequence[Bug], seed: str) -> list[str]:
        """Return the tests that judge these bugs, in order; none when no test calls their functions."""
        places, files = {(bug.path, bug.function) for bug in bugs}, {bug.path for bug in bugs}
        calling = [test for test in self.tests if not places.isdisjoint(self.calls[test])]
        known = set(calling)
        beside = [
            test
            for test in self.tests
            if test not in known and any(file in files for file, _ in self.calls[test])
        ]
        rng = random.Random(seed)
        chosen = set(rng.sample(calling, min(_CALLING, len(calling))))
        if chosen:
            chosen |= set(rng.sample(beside, min(_BESIDE, len(beside))))
        return [test for test in self.tests if test in chosen]


@dataclass(frozen=True, slots=True)
class Proof:
    """What came of a bug."""

    verdict: str  # proven; or why it is no task: survived, hangs, breaks, flaky, untested
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    said: str = ""  # the last lines of the first failure


async def prepare(package: Package, runner: Runner, make: MakeSandbox, max_test_s: float) -> Prepared:
    """Run a package's tests twice.

    Raises EnvironmentSetupError when none can be used, SandboxError when the infrastructure failed.
    """
    layout = Layout(runner, package.roots)
    runs: list[TestRun] = []
    for trace in ((), package.roots[:1]):
        async with holding(make, package.tree) as sandbox:
            run = await run_tests(sandbox, layout, package.tests, trace=trace, wall_s=_WHOLE_S)
        if run.error:
            said = next(iter(run.said.values()), "")
            rule = f"a package's tests must run in the sandbox: {f'{run.error} {said}'.strip()}"
            raise EnvironmentSetupError(
                rule, value=package.key, remedy="Install what they need (--runner), or choose another package"
            )
        runs.append(run)
    first, second = runs
    left_out: dict[str, str] = {}
    for test in first.outcomes.keys() | second.outcomes.keys():
        before, after = first.outcomes.get(test), second.outcomes.get(test)
        if before != after:
            left_out[test] = "flaky"
        elif before != "passed":
            left_out[test] = str(before)
        elif first.seconds.get(test, 0.0) > max_test_s:
            left_out[test] = "slow"
        elif not test.isascii() or not test.isprintable():
            left_out[test] = "name"
    names = _functions(package)
    calls = {
        test: sorted({place for call in found if (place := names.get(call)) is not None})
        for test, found in second.calls.items()
    }
    tests = tuple(test for test in first.outcomes if test not in left_out)
    if not tests:
        raise EnvironmentSetupError(
            "a package must have tests that pass", value=package.key, remedy="Choose another package"
        )
    return Prepared(layout, tests, {test: calls.get(test, []) for test in tests}, left_out)


async def prove(
    package: Package, prepared: Prepared, bugs: Sequence[Bug], make: MakeSandbox, seed: str
) -> Proof:
    """Judge bugs. Raises SandboxError when the infrastructure failed."""
    tests = prepared.choose(bugs, seed)
    if not tests:
        return Proof("untested")
    broken, wall_s = with_bugs(package.tree, bugs), 30.0
    async with holding(make, broken) as sandbox:
        first = await run_tests(sandbox, prepared.layout, tests, wall_s=wall_s)
        if first.error:
            return Proof("hangs")
        failing = first.failed(tests)
        if not failing:
            return Proof("survived")
        for path in {bug.path for bug in bugs}:
            await sandbox.write(path, package.tree[path])
        mended = await run_tests(sandbox, prepared.layout, tests, wall_s=wall_s)
    async with holding(make, broken) as sandbox:
        again = await run_tests(sandbox, prepared.layout, tests, wall_s=wall_s)
    steady = [test for test in tests if (test in failing) != (test in again.passed(tests))]
    steady = mended.passed(steady)
    failing = [test for test in steady if test in failing]
    passing = first.passed(steady)
    if not failing:
        return Proof("flaky")
    if not passing:
        return Proof("breaks")  # everything: an import, say
    return Proof("proven", tuple(failing), tuple(passing), _said(first, failing))


@asynccontextmanager
async def holding(make: MakeSandbox, tree: dict[str, bytes]) -> AsyncGenerator[Sandbox]:
    """Lend a new sandbox that holds these files."""
    sandbox = await make()
    try:
        await sandbox.upload(".", pack(tree))
        yield sandbox
    finally:
        await sandbox.terminate()


def _said(run: TestRun, failing: Sequence[str]) -> str:
    test = next((test for test in failing if test in run.said), failing[0])
    return f"{test}\n{run.said.get(test, '')}".strip()


def _functions(package: Package) -> dict[tuple[str, int], tuple[str, str]]:
    """Return, for the first line of each function, nested ones too, the outermost function that holds it."""
    found: dict[tuple[str, int], tuple[str, str]] = {}
    for path in package.sources:
        try:
            tree = parse(package.tree[path])
        except UnusableSourceError:
            continue
        for function in functions(tree):
            for line in range(function.first, function.last + 1):
                found[path, line] = (path, function.name)
    return found
