"""Tests as a reward: a command in a sandbox, and what it says of each test.

Hidden tests are uploaded for scoring only, into the sandbox that `score` gets; the rollout never sees them.
What the command tells is worth as much as what runs in it: code of the policy in the process of the tests can
change what they report. Naming the tests that must pass (`expected`) keeps it from getting away with fewer of
them, not from forging them; where that matters, let the tests call the policy's code in another process.

A command that cannot be run at all (exit code 126 or 127, no pytest) is a fault of the reward; one that a
limit ended is the program's, and scores 0.
"""

from __future__ import annotations

import io
import re
import secrets
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headway.core.errors import EnvironmentSetupError, RewardFault, SandboxError
from headway.core.protocols import ExecLimits
from headway.core.records import Reward
from headway.rewards.hidden import make_way
from headway.rewards.patterns import compiled, last_match

if TYPE_CHECKING:
    from headway.core.protocols import ExecResult, Sandbox
    from headway.rewards.case import Case

_MAX_REPORT = 4 << 20  # bytes
_NO_MODULE = re.compile(r"No module named '?(pytest|unittest)'?\s*$", re.MULTILINE)
_RAN = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
_BAD = re.compile(r"\b(?:failures|errors|skipped|unexpected successes)=(\d+)")


@dataclass(frozen=True, slots=True)
class Results:
    """What a run of tests said."""

    passed: int
    total: int
    names: Mapping[str, bool] = field(default_factory=dict[str, bool])  # test -> whether it passed, if known


@dataclass(frozen=True, slots=True)
class Suite:
    """A command that tests what a rollout left.

    Attributes:
        argv: the command. With result junit, "{report}" in it stands for the file that it must write.
        result: junit (a JUnit XML file, as `pytest --junitxml={report}` writes), unittest (what
            `python -m unittest` prints), pattern, or exit (exit code 0 is one passed test).
        mode: all (1 when every test passed, else 0) or fraction (of the tests that passed).
        expected: names of the tests that count, as the report has them (`file.Class::test`, or their end);
            one that is missing has failed. Empty for all that ran.
        pattern: with result pattern, a regular expression with groups `passed` and `total`, or `passed` and
            `failed`; its last match counts.
        hidden: path below the work folder -> contents, uploaded before the command.
        env: of the command.
        cwd: where it runs.
        limits: of the command; None for the sandbox's own.
        name: of its metrics and reasons.
    """

    argv: Sequence[str]
    result: Literal["junit", "unittest", "pattern", "exit"] = "junit"
    mode: Literal["all", "fraction"] = "all"
    expected: Sequence[str] = ()
    pattern: str = ""
    hidden: Mapping[str, bytes | str] = field(default_factory=dict[str, bytes | str])
    env: Mapping[str, str] | None = None
    cwd: str = ""
    limits: ExecLimits | None = None
    name: str = "tests"

    def __post_init__(self) -> None:
        """Raise EnvironmentSetupError for parts that do not go together."""
        if self.result == "junit" and not any("{report}" in word for word in self.argv):
            rule = "the command of a suite with result junit must have {report} in it"
            raise EnvironmentSetupError(rule, value=list(self.argv), remedy="As --junitxml={report}")
        if self.expected and self.result != "junit":
            rule = "only a suite with result junit knows its tests by name, which `expected` needs"
            raise EnvironmentSetupError(rule, value=self.result, remedy='Use result="junit"')
        if self.result == "pattern":
            remedy = r"As in (?P<passed>\d+) of (?P<total>\d+)"
            try:
                groups = compiled(self.pattern).groupindex
            except ValueError as error:
                rule = f"the pattern of a suite must be a regular expression: {error}"
                raise EnvironmentSetupError(rule, value=self.pattern, remedy=remedy) from None
            if "passed" not in groups or not groups.keys() & {"failed", "total"}:
                rule = "the pattern of a suite must have groups passed, and failed or total"
                raise EnvironmentSetupError(rule, value=self.pattern, remedy=remedy)

    async def __call__(self, case: Case) -> Reward:
        """Return the reward of a case, as a part of a rubric."""
        return await self.run(case.sandbox)

    async def run(self, sandbox: Sandbox) -> Reward:
        """Upload the hidden tests, run the command, and return what it makes; metrics `passed`, `num_tests`.

        Raises RewardFault when the command cannot be run, SandboxError when the infrastructure failed.
        """
        if self.hidden:
            await make_way(sandbox, self.hidden)
            await sandbox.upload(".", archive_of(self.hidden))
        report = f".report-{secrets.token_hex(8)}.xml"  # a name that nothing could be left under
        above = "".join("../" for part in self.cwd.split("/") if part not in ("", "."))
        argv = [word.replace("{report}", above + report) for word in self.argv]
        done = await sandbox.exec(argv, env=self.env, limits=self.limits, cwd=self.cwd)
        text = done.stdout + "\n" + done.stderr
        missing = _NO_MODULE.search(done.stderr) if done.rc == 1 else None
        if done.rc in (126, 127) or missing:
            raise RewardFault(
                f"the tests of {self.name} cannot be run: {text.strip()[-200:] or f'exit code {done.rc}'}",
                value=" ".join(argv),
                remedy="Let sandbox.image hold what they need",
            )
        if done.cause != "exit":
            return self._reward(Results(0, len(self.expected)), f"the tests were ended: {done.cause}")
        found = await self._results(sandbox, report, done, text)
        if found is None:
            return self._reward(Results(0, len(self.expected)), f"no test reported: {_tail(text)}")
        return self._reward(found, "")

    async def _results(self, sandbox: Sandbox, report: str, done: ExecResult, text: str) -> Results | None:
        if self.result == "exit":
            return Results(int(done.rc == 0), 1)
        if self.result == "unittest":
            return read_unittest(text)
        if self.result == "pattern":
            return read_pattern(self.pattern, text)
        try:
            written = await sandbox.read(report, _MAX_REPORT)
        except SandboxError:
            return None
        return read_junit(written)

    def _reward(self, results: Results, why: str) -> Reward:
        failed = [name for name, passed in results.names.items() if not passed]
        if self.expected:
            failed = [name for name in self.expected if not _passed(results.names, name)]
            results = Results(len(self.expected) - len(failed), len(self.expected))
        share = results.passed / results.total if results.total else 0.0
        score = share if self.mode == "fraction" else float(share == 1.0)
        words = why or f"{results.passed} of {results.total} tests passed"
        metrics = {"passed": share, "num_tests": float(results.total)}
        return Reward(
            score, (words + (f"; failed: {', '.join(failed[:3])}" if failed and not why else ""),), metrics
        )


def archive_of(files: Mapping[str, bytes | str]) -> bytes:
    """Return files as a tar archive, in the order of their paths."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path in sorted(files):
            content = files[path]
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def read_junit(report: bytes) -> Results | None:
    """Return what a JUnit XML file says; None for one that is none. A skipped test has not passed.

    A file with entities of its own is refused: no test runner writes any, and they can be made to explode.
    """
    if b"<!DOCTYPE" in report or b"<!ENTITY" in report:
        return None
    try:
        root = ElementTree.fromstring(report)
    except (ElementTree.ParseError, ValueError, RecursionError):
        return None
    names: dict[str, bool] = {}
    for test in root.iter("testcase"):
        name = "::".join(part for part in (test.get("classname", ""), test.get("name", "")) if part)
        passed = not any(child.tag in ("failure", "error", "skipped") for child in test)
        names[name] = passed and names.get(name, True)
    return Results(sum(names.values()), len(names), names)


def read_unittest(text: str) -> Results | None:
    """Return what unittest printed; None when it printed no end. A skipped test has not passed."""
    ran = _RAN.findall(text)
    if not ran:
        return None
    total = int(ran[-1])
    last = text.strip().rpartition("\n")[2]
    if not last.startswith(("OK", "FAILED")):
        return None
    bad = sum(map(int, _BAD.findall(last)))
    return Results(max(0, total - bad), total)


def read_pattern(pattern: str, text: str) -> Results | None:
    """Return what the last match of a pattern says; None without one."""
    found = last_match(compiled(pattern, multiline=True), text)
    if found is None:
        return None
    groups = found.groupdict()
    try:
        passed = int(groups["passed"] or 0)
        total = int(groups["total"]) if groups.get("total") else passed + int(groups.get("failed") or 0)
    except ValueError:
        return None
    return Results(min(passed, total), total)


def _passed(names: Mapping[str, bool], wanted: str) -> bool:
    found = [passed for name, passed in names.items() if name == wanted or name.endswith(f"::{wanted}")]
    return bool(found) and all(found)


def _tail(text: str) -> str:
    return " ".join(text.split())[-160:] or "it printed nothing"
