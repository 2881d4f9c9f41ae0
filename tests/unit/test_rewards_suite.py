"""Tests as a reward, in real sandboxes: hidden, counted, and never a 0 for what was nobody's fault."""

import subprocess
import sys

import pytest

from headway.core.errors import EnvironmentSetupError, RewardFault
from headway.core.protocols import ExecLimits
from headway.rewards.suite import Suite, read_junit, read_pattern, read_unittest
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.settings import SandboxSettings
from tests.unit.reward_parts import case

TESTS = """
import unittest, answer
class T(unittest.TestCase):
    def test_one(self): self.assertEqual(answer.f(1), 2)
    def test_two(self): self.assertEqual(answer.f(2), 4)
    def test_three(self): self.assertEqual(answer.f(3), 6)
    def test_four(self): self.assertEqual(answer.f(4), 8)
"""
JUNIT = """
import sys, unittest
from xml.sax.saxutils import quoteattr
result = unittest.TestResult()
suite = unittest.defaultTestLoader.loadTestsFromName("hidden_test")
names = [test.id() for group in suite for test in group]
suite.run(result)
bad = {test.id() for test, _ in result.failures + result.errors}
with open(sys.argv[1], "w") as file:
    file.write("<testsuites><testsuite>")
    for name in names:
        where, _, test = name.rpartition(".")
        inside = "<failure/>" if name in bad else ""
        file.write(f"<testcase classname={quoteattr(where)} name={quoteattr(test)}>{inside}</testcase>")
    file.write("</testsuite></testsuites>")
"""
HIDDEN = {"hidden_test.py": TESTS, "tools/junit.py": JUNIT}
UNITTEST = ("python3", "-B", "-m", "unittest", "hidden_test")


@pytest.fixture
async def sandbox(tmp_path):
    provider = BubblewrapProvider(SandboxSettings(directory=str(tmp_path)))
    made = await provider.create("s1", {"run": "test"})
    yield made
    await made.terminate()


def suite(**changes):
    return Suite(**({"argv": UNITTEST, "result": "unittest", "hidden": HIDDEN} | changes))


@pytest.mark.parametrize(
    ("code", "mode", "score"),
    [
        ("def f(x): return 2 * x", "all", 1.0),
        ("def f(x): return x * x if x != 4 else 8", "all", 0.0),
        ("def f(x): return x * x if x != 4 else 8", "fraction", 0.5),
        ("def f(x): return", "fraction", 0.0),
        ("not python", "fraction", 0.0),
        ("import os; os._exit(0)", "all", 0.0),
        ("import sys; sys.exit(0)", "all", 0.0),
    ],
)
async def test_hidden_tests_score_what_was_left(sandbox, code, mode, score):
    await sandbox.write("answer.py", code.encode())
    reward = await suite(mode=mode).run(sandbox)
    assert reward.score == score
    assert reward.metrics["passed"] == (score if mode == "fraction" or score else reward.metrics["passed"])


async def test_named_tests_count_and_a_missing_one_has_failed(sandbox):
    await sandbox.write("answer.py", b"def f(x): return x * x if x != 4 else 8")
    junit = ("python3", "-B", "-c", "import sys; sys.path[:0] = ['.']\n" + JUNIT, "{report}")
    names = ("hidden_test.T::test_two", "test_four", "test_gone")
    reward = await suite(argv=junit, result="junit", mode="fraction", expected=names)(
        case("a", sandbox=sandbox)
    )
    assert reward.score == pytest.approx(2 / 3)
    assert reward.reasons == ("2 of 3 tests passed; failed: test_gone",)
    assert reward.metrics == {"passed": pytest.approx(2 / 3), "num_tests": 3.0}
    everything = await suite(argv=junit, result="junit").run(sandbox)
    assert everything.score == 0.0
    assert everything.reasons == (
        "2 of 4 tests passed; failed: hidden_test.T::test_one, hidden_test.T::test_three",
    )


async def test_a_command_in_a_folder_writes_its_report_all_the_same(sandbox):
    await sandbox.write("deep/answer.py", b"def f(x): return 2 * x")
    hidden = {f"deep/{path}": text for path, text in HIDDEN.items()}
    junit = ("python3", "-B", "-c", "import sys; sys.path[:0] = ['.']\n" + JUNIT, "{report}")
    assert (await suite(argv=junit, result="junit", hidden=hidden, cwd="deep").run(sandbox)).score == 1.0


async def test_what_was_left_in_the_way_of_hidden_tests_is_taken_away(sandbox):
    left = "ln -s /etc tests; mkdir -p run.sh/within"
    assert (await sandbox.exec(["sh", "-c", left])).rc == 0
    hidden = {"tests/deep/it.sh": "exit 0", "run.sh": "sh tests/deep/it.sh"}
    assert (await Suite(["sh", "run.sh"], result="exit", hidden=hidden).run(sandbox)).score == 1.0


async def test_what_cannot_be_run_is_no_score(sandbox):
    with pytest.raises(RewardFault, match="the tests of tests cannot be run"):
        await suite(argv=("no-such-program",), result="exit").run(sandbox)
    missing = ("python3", "-c", "import sys; sys.exit('/usr/bin/python3: No module named pytest')")
    with pytest.raises(RewardFault, match="No module named pytest"):
        await suite(argv=missing, result="exit").run(sandbox)


async def test_an_end_by_a_limit_is_the_programs(sandbox):
    await sandbox.write("answer.py", b"while True: pass")
    reward = await suite(limits=ExecLimits(wall_s=0.5)).run(sandbox)
    assert (reward.score, reward.reasons) == (0.0, ("the tests were ended: wall",))


async def test_an_exit_code_and_a_pattern_are_results_too(sandbox):
    assert (await suite(argv=("true",), result="exit").run(sandbox)).score == 1.0
    assert (await suite(argv=("false",), result="exit").run(sandbox)).score == 0.0
    said = ("echo", "ok 3 of 4")
    pattern = r"ok (?P<passed>\d+) of (?P<total>\d+)"
    made = suite(argv=said, result="pattern", pattern=pattern, mode="fraction")
    assert (await made.run(sandbox)).score == 0.75


def test_the_report_of_pytest_itself_is_read(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "class TestA:\n    def test_good(self): pass\n    def test_bad(self): assert 0\n"
        "@pytest.mark.parametrize('x', [1, 2])\ndef test_many(x): assert x == 1\n"
        "@pytest.mark.skip\ndef test_skipped(): pass\n"
    )
    (tmp_path / "test_broken.py").write_text("import no_such_module\n")
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir=.",
        "--junitxml=r.xml",
        "--continue-on-collection-errors",
    )
    subprocess.run([sys.executable, "-m", "pytest", *options], cwd=tmp_path, capture_output=True)
    assert read_junit((tmp_path / "r.xml").read_bytes()).names == {
        "test_broken": False,
        "test_it.TestA::test_good": True,
        "test_it.TestA::test_bad": False,
        "test_it::test_many[1]": True,
        "test_it::test_many[2]": False,
        "test_it::test_skipped": False,
    }


def test_reports_that_were_written_to_deceive_are_none():
    bomb = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><testcase name="&b;"/>'
    assert read_junit(bomb) is None
    assert read_junit(b"<testsuite><testcase") is None
    assert read_junit(b"") is None
    twice = b'<testcase name="a"/><testcase name="a"><failure/></testcase>'
    twice = b"<s>" + twice + b'<testcase name="b"><skipped/></testcase></s>'
    assert read_junit(twice).names == {"a": False, "b": False}
    assert (
        read_unittest("Ran 99 tests in 0.1s\n\nOK\nRan 2 tests in 0s\n\nFAILED (errors=1, skipped=1)").passed
        == 0
    )
    assert read_unittest("Ran 3 tests in 0.1s\n\nOK (skipped=1)").passed == 2
    assert read_unittest("Ran 3 tests in 0.1s\n") is None
    assert read_pattern(r"(?P<passed>\d+)/(?P<total>\d+)", "9/3").passed == 3
    assert read_pattern(r"(?P<passed>\d+) ok(?:, (?P<failed>\d+) bad)?", "2 ok, 1 bad").total == 3


def test_a_suite_is_checked_when_it_is_made():
    for changes, words in (
        ({"result": "junit"}, "{report}"),
        ({"expected": ("a",)}, "by name"),
        ({"result": "pattern", "pattern": "x"}, "groups passed"),
    ):
        with pytest.raises(EnvironmentSetupError, match=words):
            suite(**changes)
