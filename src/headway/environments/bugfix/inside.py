"""Runs a package's tests in a sandbox and says how each of them ended. Needs Python 3.8 and none of ours.

Reads one job as JSON from stdin and writes one JSON object to stdout; whatever the tests print goes nowhere.

job: runner    "pytest", or "unittest", which needs nothing installed
     root      folder of the package, where the tests run
     paths     folders below it that come first on the import path
     tests     files, or ids such as tests/test_a.py::TestA::test_b
     trace     folders below it: which of their functions each test calls is told; [] for no trace
answer: outcomes  test id -> passed, failed or skipped
        seconds   test id -> how long it ran
        calls     test id -> sorted list of [file, first line of a function], with a trace
        said      test id -> the last lines of what a failure says
        error     why there are no outcomes, "" when there are
"""

# It is sent to other interpreters, old ones too.
# ruff: noqa: ANN001, ANN201, ANN202, ANN204, D102, D103
# pyright: basic, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportArgumentType=false, reportMissingImports=false

import json
import os
import sys
import time
import traceback

_SAID = 1500  # characters of a failure that are kept
_MAX_SAID = 3  # failures of which they are


class Trace:
    """Notes which functions of some folders are called. Calls only: lines are not traced."""

    def __init__(self, root, folders):
        self.root = root + os.sep
        self.folders = tuple(
            self.root if folder in ("", ".") else self.root + folder + os.sep for folder in folders
        )
        self.calls = set()
        self.known = {}

    def __call__(self, frame, event, arg):
        code = frame.f_code
        wanted = self.known.get(code)
        if wanted is None:
            name = os.path.realpath(code.co_filename) if os.path.isabs(code.co_filename) else ""
            inside = name.startswith(self.folders) and code.co_name != "<module>"
            wanted = self.known[code] = (name[len(self.root) :], code.co_firstlineno) if inside else ()
        if wanted:
            self.calls.add(wanted)
        return None

    def begin(self):
        self.calls = set()
        sys.settrace(self)

    def end(self):
        sys.settrace(None)
        return sorted(list(call) for call in self.calls)


class Report:
    """What becomes the answer."""

    def __init__(self, trace):
        self.trace = trace
        self.outcomes = {}
        self.seconds = {}
        self.calls = {}
        self.said = {}

    def ended(self, test, outcome, said=""):
        worse = {"passed": 0, "skipped": 1, "failed": 2}
        if worse[outcome] >= worse[self.outcomes.get(test, "passed")]:
            self.outcomes[test] = outcome
        if outcome == "failed" and said and len(self.said) < _MAX_SAID:
            self.said.setdefault(test, said[-_SAID:])


class PytestPlugin:
    """Listens to pytest."""

    def __init__(self, report, wanted):
        self.report = report
        self.wanted = wanted
        self.began = 0.0

    def pytest_collection_modifyitems(self, items):
        items[:] = [
            item
            for item in items
            if item.nodeid in self.wanted or item.nodeid.partition("::")[0] in self.wanted
        ]

    def pytest_runtest_logstart(self, nodeid, location):
        self.began = time.monotonic()
        if self.report.trace:
            self.report.trace.begin()

    def pytest_runtest_logfinish(self, nodeid, location):
        self.report.seconds[nodeid] = round(time.monotonic() - self.began, 3)
        if self.report.trace:
            self.report.calls[nodeid] = self.report.trace.end()

    def pytest_runtest_logreport(self, report):
        said = "" if report.longrepr is None or report.passed else str(report.longrepr)
        outcome = "skipped" if report.skipped else "passed" if report.passed else "failed"
        if report.when == "call" or outcome != "passed":
            self.report.ended(report.nodeid, outcome, said)

    def pytest_collectreport(self, report):
        if report.failed:
            self.report.said.setdefault(report.nodeid, str(report.longrepr)[-_SAID:])


def with_pytest(job, report):
    import pytest

    words = ["-q", "--no-header", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", job["root"]]
    words += ["--tb=short", "--continue-on-collection-errors", "-W", "ignore"]
    files = sorted({test.partition("::")[0] for test in job["tests"]})
    pytest.main(words + files, plugins=[PytestPlugin(report, set(job["tests"]))])


def with_unittest(job, report):
    import importlib.util
    import unittest

    class Result(unittest.TestResult):
        def startTest(self, test):
            super().startTest(test)
            test.began = time.monotonic()
            if report.trace:
                report.trace.begin()

        def stopTest(self, test):
            super().stopTest(test)
            if report.trace:
                report.calls[name(test)] = report.trace.end()
            report.seconds[name(test)] = round(time.monotonic() - test.began, 3)

        def addSuccess(self, test):
            report.ended(name(test), "passed")

        def addFailure(self, test, err):
            report.ended(name(test), "failed", self._exc_info_to_string(err, test))

        addError = addFailure

        def addSubTest(self, test, subtest, err):
            if err is not None:
                self.addFailure(test, err)

        def addSkip(self, test, reason):
            report.ended(name(test), "skipped")

    def name(test):
        words = getattr(test, "id", lambda: str(test))().split(".")
        return "::".join([files.get(words[0], words[0]), *words[1:]])

    files = {}
    loader = unittest.TestLoader()
    suite = unittest.TestSuite()
    for test in job["tests"]:
        path, _, rest = test.partition("::")
        module = "test_" + path[:-3].replace("/", "_")
        files[module] = path
        if module not in sys.modules:
            spec = importlib.util.spec_from_file_location(module, os.path.join(job["root"], path))
            sys.modules[module] = importlib.util.module_from_spec(spec)
            try:
                spec.loader.exec_module(sys.modules[module])
            except Exception:
                report.said[path] = traceback.format_exc()[-_SAID:]
        suite.addTests(
            loader.loadTestsFromName(rest.replace("::", "."), sys.modules[module])
            if rest
            else loader.loadTestsFromModule(sys.modules[module])
        )
    suite.run(Result())


def main():
    job = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    job["root"] = root = os.path.realpath(job["root"])
    os.chdir(root)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(os.path.join(root, path) for path in job["paths"])
    sys.path[:0] = [os.path.join(root, path) for path in job["paths"]]
    sys.argv[:] = ["tests"]
    report = Report(Trace(root, job["trace"]) if job.get("trace") else None)
    error = ""
    try:
        {"pytest": with_pytest, "unittest": with_unittest}[job["runner"]](job, report)
    except BaseException:
        error = traceback.format_exc()[-_SAID:]
    json.dump(
        {
            "outcomes": report.outcomes,
            "seconds": report.seconds,
            "calls": report.calls,
            "said": report.said,
            "error": error,
        },
        out,
    )
    out.flush()
    os._exit(0)  # threads of tests that will not end hold nothing up


if __name__ == "__main__":
    main()
