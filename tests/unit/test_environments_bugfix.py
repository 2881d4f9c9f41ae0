"""Bug-fixing tasks: what is mutated, how tasks are proven, what the environment counts as mended."""

import ast
import json
import shutil
from pathlib import Path

import pytest

from headway.core.errors import EnvironmentSetupError
from headway.core.protocols import Outcome, Reply
from headway.core.records import Message, ToolCall
from headway.environments.bugfix.edits import edits_of, with_edits
from headway.environments.bugfix.environment import Bugfix, BugfixSettings, judged
from headway.environments.bugfix.make import Maker, MakerSettings
from headway.environments.bugfix.mutations import apply, functions, mutations, parse
from headway.environments.bugfix.rows import positions, ranges, read_rows, row_of, with_bugs
from headway.environments.bugfix.settings import sandbox_settings
from headway.environments.bugfix.single import answered, function_around, replaced, shown
from headway.environments.bugfix.sources import is_code, is_test, read_tree
from headway.environments.bugfix.testing import TestRun
from headway.environments.registry import build
from headway.sandbox.bubblewrap import BubblewrapProvider
from headway.sandbox.settings import SandboxSettings

EXAMPLES = Path(__file__).parents[2] / "examples" / "bugfix"
SOURCE = b'''"""A module: x < y."""
LIMIT = 3  # left alone: no function

class Box:
    @property
    def size(self) -> "int | None":
        """Say 1 + 1."""
        return self.n + 1  # caf\xc3\xa9

def pick(items, n=2, *, strict=False):
    if n < 0 and not strict:
        return items[n:]
    found = [item for item in items if item is not None]
    found += [f"{n + 1}"]
    return min(found, n)
'''


@pytest.fixture
def provider(tmp_path):
    return BubblewrapProvider(sandbox_settings(SandboxSettings(directory=str(tmp_path / "boxes")), 4))


def environment(level, **more):
    return Bugfix(BugfixSettings(tasks=str(EXAMPLES / "tasks.jsonl"), levels=(level,), **more), 0)


# --- mutations


def test_only_the_span_of_a_mutation_changes_and_each_compiles():
    found = mutations(SOURCE)
    assert len({(one.start, one.end, one.text) for one in found}) == len(found)
    for one in found:
        after = apply(SOURCE, [one])
        assert after[: one.start] == SOURCE[: one.start]
        assert after[one.start + len(one.text.encode()) :] == SOURCE[one.end :]
        assert after.count(b"\n") == SOURCE.count(b"\n")
        assert ast.dump(ast.parse(after)) != ast.dump(ast.parse(SOURCE))


def test_every_kind_of_bug_is_found_where_it_is():
    texts = {(one.operator, one.function, one.text, one.line) for one in mutations(SOURCE)}
    assert ("comparison", "pick", "<=", 11) in texts
    assert ("boolean", "pick", "or", 11) in texts
    assert ("boolean", "pick", "", 11) in texts  # not strict -> strict
    assert ("arithmetic", "Box.size", "-", 8) in texts
    assert ("constant", "Box.size", "2", 8) in texts
    assert ("default", "pick", "3", 10) in texts or ("constant", "pick", "3", 10) in texts
    assert ("return", "pick", "", 15) in texts
    assert ("branch", "pick", "False", 11) in texts
    assert ("arguments", "pick", "n, found", 15) in texts
    assert ("method", "pick", "max", 15) in texts
    assert ("statement", "pick", "pass", 14) in texts
    assert {one.line for one in mutations(SOURCE)} <= {8, 10, 11, 12, 13, 14, 15}  # no docstring, no module
    assert not any(SOURCE[: one.start].endswith(b'f"{n + ') for one in mutations(SOURCE))


def test_functions_are_the_outermost_ones_with_their_decorators():
    assert [(one.name, one.first, one.last) for one in functions(parse(SOURCE))] == [
        ("Box.size", 5, 8),
        ("pick", 10, 15),
    ]


def test_bugs_of_one_file_are_put_in_together():
    chosen = [one for one in mutations(SOURCE) if (one.line, one.text) in {(8, "-"), (15, "max")}]
    after = apply(SOURCE, chosen)
    assert b"self.n - 1" in after
    assert b"max(found, n)" in after


# --- rows


def test_positions_are_written_short():
    assert ranges([9, 3, 4, 5]) == "3-5,9"
    assert positions("3-5,9") == [3, 4, 5, 9]
    assert positions(ranges([])) == []


def test_columns_of_swe_bench_and_swe_smith_are_read():
    of_bench = {"instance_id": "a", "repo": "o/r", "FAIL_TO_PASS": '["t::a"]', "PASS_TO_PASS": "[]"}
    of_smith = {
        "instance_id": "a",
        "repo": "o/r",
        "FAIL_TO_PASS": ["t::a"],
        "PASS_TO_PASS": [],
        "image_name": "i",
    }
    assert row_of(of_bench).fail_to_pass == ("t::a",)
    assert (row_of(of_smith).fail_to_pass, row_of(of_smith).image) == (("t::a",), "i")


ONE = {"instance_id": "a", "repo": "o/r", "FAIL_TO_PASS": ["t.py::a"], "PASS_TO_PASS": []}
BUG = {"path": "a.py", "operator": "o", "start": 3, "end": 4, "text": "", "line": 1, "function": "f"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "at least one"),
        ("{}", "line 1.*lacks 'instance_id'"),
        ("nothing", "line 1"),
        (None, "must be there"),
        (ONE | {"runner": "nose"}, "line 1.*runner must be one of pytest, unittest, not 'nose'"),
        (ONE | {"FAIL_TO_PASS": ["-p evil"]}, "line 1.*'-p evil' is no name of a test"),
        (ONE | {"FAIL_TO_PASS": "no list"}, "line 1"),
        (ONE | {"bugs": [{"path": 1}]}, "line 1"),
        (ONE | {"bugs": [BUG | {"start": "3"}]}, "line 1.*integers as start, end and line"),
    ],
)
def test_a_file_of_tasks_that_is_none_is_named(tmp_path, text, why):
    path = tmp_path / "tasks.jsonl"
    if text is not None:
        path.write_text(text if isinstance(text, str) else json.dumps(text))
    with pytest.raises(EnvironmentSetupError, match=why):
        read_rows(path)


def test_lines_of_tasks_hold_separators_that_are_no_ends_of_lines(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(
        json.dumps(ONE | {"hints_text": "a\u2028b\x85c"}, ensure_ascii=False) + "\r\n", "utf-8-sig"
    )
    assert read_rows(path)[0].hints_text == "a\u2028b\x85c"


def test_a_task_that_nothing_judges_is_refused(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(ONE | {"FAIL_TO_PASS": []}))
    with pytest.raises(EnvironmentSetupError, match="a task must have a test in FAIL_TO_PASS"):
        Bugfix(BugfixSettings(tasks=str(path)), 0)


def test_a_separator_within_a_comment_ends_no_line():
    data = b"a = 1  # \xe2\x80\xa8\n\ndef f(x):\n    return x - 1\n"
    (function,) = functions(parse(data))
    assert shown(data, function, marked=4) == "def f(x):\n    return x - 1  # BUG"


def test_edits_hold_what_changed_only():
    tree = {"a.py": b"1\n2\n3\n4\n", "b.py": b"x\n", "c.py": b"same\n"}
    changed = {"a.py": "1\ntwo\n3\n4\n", "b.py": None, "new.py": "n\n"}
    edits = edits_of(tree, changed)
    assert edits == {"a.py": [1, 2, "two\n"], "b.py": None, "new.py": [0, 0, "n\n"]}
    assert with_edits(tree, edits) == {"a.py": b"1\ntwo\n3\n4\n", "new.py": b"n\n", "c.py": b"same\n"}


def test_what_is_code_and_what_is_a_test():
    for path in ("tests/helper.py", "a/tests/x.py", "test_a.py", "a_test.py", "conftest.py", "setup.py"):
        assert is_test(path)
    assert is_code("pkg/core.py")
    assert not is_code("docs/conf.py")
    assert not is_code("pkg/data.txt")


# --- answers of one line


def test_a_function_is_shown_with_its_bug_marked_or_with_numbers():
    function = function_around(functions(parse(SOURCE)), 8)
    assert shown(SOURCE, function, marked=8).splitlines()[-1] == "    return self.n + 1  # café  # BUG"
    assert shown(SOURCE, function).splitlines()[:2] == ["1: @property", '2: def size(self) -> "int | None":']


@pytest.mark.parametrize(
    ("text", "line", "answer"),
    [
        ("```python\n    return 1  # BUG\n```", 8, (8, "return 1")),
        ("```python\nreturn 1", 8, (8, "return 1")),
        ("return 1", 8, (8, "return 1")),
        ("Sure:\n```\n\n4: return 1\n```\nDone", 0, (8, "return 1")),
        ("line 4: return 1", 0, (8, "return 1")),
        ("5: return 1", 0, None),  # the function has four lines
        ("return 1", 0, None),
        ("", 8, None),
        ("```python\n```", 8, None),
        ("```python\ndef size(self):\n    return 1\n```", 8, None),  # which of them?
        ("return 1\nThe number was wrong.", 8, None),
        ("```\n4: return 1\n3: pass\n```", 0, None),
        ("Wrong:\n```\nreturn 1\n\n```\nRight:\n```\nreturn 2\n```", 8, (8, "return 1")),
    ],
)
def test_answers(text, line, answer):
    assert answered(text, function_around(functions(parse(SOURCE)), 8), line) == answer


def test_a_line_keeps_its_indentation():
    assert replaced(SOURCE, 8, "return 2").split(b"\n")[7] == b"        return 2"


# --- the maker


def files(folder):
    return {name: (folder / name).read_text() for name in ("tasks.jsonl", "recipes.jsonl", "packages.json")}


async def made(out, provider, package=EXAMPLES / "wordkit", **more):
    out.mkdir(exist_ok=True)
    settings = MakerSettings(num_tasks=5, several=0.2, runner="unittest", **more)
    return await Maker(out, provider, settings, lambda line: None).make([str(package)])


async def test_tasks_are_proven_and_the_same_however_they_are_made(tmp_path, provider):
    (one,) = await made(tmp_path / "one", provider, workers=1)
    tree = read_tree(EXAMPLES / "wordkit")
    assert [len(row.bugs) for row in one.rows][:4] == [1, 1, 1, 1]
    assert len(one.rows[4].bugs) >= 2
    for row in one.rows:
        assert row.fail_to_pass
        assert row.pass_to_pass
        assert not set(row.fail_to_pass) & set(row.pass_to_pass)
        assert with_bugs(tree, row.bugs) != tree
        assert row.hints_text.partition("\n")[0] in row.fail_to_pass
        signs = [line[0] for line in row.patch.splitlines() if not line.startswith(("---", "+++"))]
        assert signs.count("+") == signs.count("-") == len({bug.line for bug in row.bugs})
    # Interrupted after two verdicts, and gone on with more at once.
    two = tmp_path / "two"
    two.mkdir()
    shutil.copytree(tmp_path / "one" / "prepared", two / "prepared")
    lines = (tmp_path / "one" / "proofs.jsonl").read_text().splitlines(keepends=True)
    (two / "proofs.jsonl").write_text("".join(lines[:2]) + lines[2][:20] + "\n")
    await made(two, provider, workers=3)
    assert files(two) == files(tmp_path / "one")
    # And again from the recipes, proven anew.
    three = tmp_path / "one" / "three"
    three.mkdir()
    shutil.copytree(EXAMPLES / "wordkit", tmp_path / "one" / "wordkit")
    maker = Maker(three, provider, MakerSettings(runner="unittest", workers=3), lambda line: None)
    (again,) = await maker.rebuild(tmp_path / "one" / "recipes.jsonl", verify=True)
    assert [row.patch for row in again.rows] == [row.patch for row in one.rows]
    assert [set(row.fail_to_pass) for row in again.rows] == [set(row.fail_to_pass) for row in one.rows]
    (tmp_path / "one" / "wordkit" / "wordkit" / "words.py").write_text("")
    with pytest.raises(EnvironmentSetupError, match="must have the hash"):
        await maker.rebuild(tmp_path / "one" / "recipes.jsonl", verify=False)


async def test_tests_that_flicker_or_fail_are_left_out(tmp_path, provider):
    package = tmp_path / "odd"
    (package / "tests").mkdir(parents=True)
    (package / "odd.py").write_text("def add(a, b):\n    return a + b\n")
    (package / "tests" / "test_odd.py").write_text(
        "import sys, unittest\nfrom odd import add\n"
        "class TestOdd(unittest.TestCase):\n"
        "    def test_good(self): self.assertEqual(add(1, 2), 3)\n"
        "    def test_other(self): self.assertEqual(add(0, 0), 0)\n"
        "    def test_bad(self): self.assertEqual(add(1, 2), 4)\n"
        "    def test_flickers(self): self.assertIsNone(sys.gettrace())\n"
        "    @unittest.skip('no')\n    def test_skipped(self): pass\n"
    )
    (one,) = await made(tmp_path / "out", provider, package)
    assert dict(one.left_out) == {"failed": 1, "flaky": 1, "skipped": 1}
    judging = {test for row in one.rows for test in (*row.fail_to_pass, *row.pass_to_pass)}
    assert judging == {f"tests/test_odd.py::TestOdd::{name}" for name in ("test_good", "test_other")}


async def test_a_package_whose_tests_do_not_run_is_refused(tmp_path, provider):
    package = tmp_path / "none"
    package.mkdir()
    (package / "none.py").write_text("def f():\n    return 1\n")
    with pytest.raises(EnvironmentSetupError, match="must run in the sandbox"):
        await made(tmp_path / "out", provider, package)


# --- the environment


class Script:
    """A chat that answers as it is told: text, or (tool, arguments)."""

    def __init__(self, *answers):
        self._answers, self.seen = list(answers), []

    async def say(self, messages, *, max_tokens=None, tools=()):
        self.seen.append(messages[-1].content)
        answer = self._answers.pop(0)
        calls = ()
        if not isinstance(answer, str):
            calls, answer = (ToolCall("c", answer[0], json.dumps(answer[1])),), ""
        return Reply(answer, "stop", 1, 1000, Message("assistant", answer, tool_calls=calls))


async def tried(env, task, provider, *answers):
    chat = Script(*answers)
    number = len(provider._live)
    first = await provider.create(f"r{number}", {"run": "test"})
    outcome = await env.rollout(task, chat, first)
    assert json.loads(json.dumps(outcome.data)) == outcome.data
    await first.terminate()
    fresh = await provider.create(f"v{number}", {"run": "test"})
    reward = await env.score(task, outcome, fresh)
    await fresh.terminate()
    return reward, outcome, chat


def parts(env, task):
    """The row, the file as it was, and with the bug."""
    row = env.row(task)
    before = (EXAMPLES / "wordkit" / row.bugs[0].path).read_bytes()
    return row, before, with_bugs(read_tree(EXAMPLES / "wordkit"), row.bugs)[row.bugs[0].path]


def line_of(data, number):
    return data.split(b"\n")[number - 1].decode().strip()


async def test_one_line_is_scored_by_the_hidden_tests(provider):
    env = environment(1)
    task = env.task("train", 0, None)
    row, before, broken = parts(env, task)
    number = row.bugs[0].line
    right, wrong = line_of(before, number), line_of(broken, number)
    prompt = env.prompt(task)[0].content
    assert f"{wrong}  # BUG" in prompt
    assert f"{right}  # BUG" not in prompt

    async def reward(answer):
        return (await tried(env, task, provider, f"```python\n{answer}\n```"))[0]

    assert (await reward(right)).metrics == {"exact": 1.0}
    assert (await reward(f"{right}  # mended")).metrics["solved"] == 1.0  # the tests ran
    assert (await reward(wrong)).metrics == {"unchanged": 1.0}
    assert (await reward("def (")).metrics == {"compiles": 0.0}
    assert (await reward(f"{wrong}  # the same")).metrics["solved"] == 0.0
    assert (await tried(env, task, provider, ""))[0].score == 0.0


async def test_a_line_is_named_at_the_second_level(provider):
    env = environment(2)
    task = env.task("train", 0, None)
    row, before, broken = parts(env, task)
    function = function_around(functions(parse(broken)), row.bugs[0].line)
    number = row.bugs[0].line - function.first + 1
    assert "# BUG" not in env.prompt(task)[0].content
    assert row.fail_to_pass[0] in env.prompt(task)[0].content
    answer = f"{number}: {line_of(before, row.bugs[0].line)}"
    assert (await tried(env, task, provider, answer))[0].score == 1.0


async def test_a_repository_is_mended_with_tools(provider):
    env = environment(3)
    task = env.task("train", 0, None)
    row, before, broken = parts(env, task)
    path, number = row.bugs[0].path, row.bugs[0].line
    lines = [data.decode().split("\n") for data in (broken, before)]
    old, new = ("\n".join(text[number - 2 : number + 1]) for text in lines)
    module, _, rest = row.hints_text.partition("\n")[0].partition("::")
    command = f"python3 -m unittest discover -s tests -k {rest.rpartition('::')[2]}"
    reward, outcome, chat = await tried(
        env, task, provider,
        ("list_files", {}),
        ("search", {"pattern": f"def {row.bugs[0].function.rpartition('.')[2]}"}),
        ("read_file", {"path": path, "first": number, "last": number}),
        ("read_file", {"path": "../etc/passwd"}),
        ("read_file", {"path": "none.py"}),
        ("run", {"command": command}),
        ("edit_file", {"path": path, "old": "no such text", "new": ""}),
        ("edit_file", {"path": path, "old": old, "new": new}),
        ("run", {"command": command}),
        "Mended.",
    )  # fmt: skip
    seen = chat.seen
    assert {"wordkit/words.py", module} <= set(seen[1].splitlines())
    assert seen[2].startswith(f"{path}:")
    assert seen[3].splitlines()[0] == f"{number}: {lines[0][number - 1]}"
    assert seen[4].startswith("Error: a path must be relative")
    assert seen[5].startswith("Error: cat:")
    assert seen[6].endswith("[exit code 1]")
    assert seen[7].startswith("Error: old must occur once")
    assert seen[9].endswith("[exit code 0]")
    assert (reward.score, outcome.data["ended"], outcome.data["calls"]) == (1.0, "answer", 9)
    assert list(outcome.data["edits"]) == [path]


async def test_edits_of_tests_do_not_count(provider):
    env = environment(3)
    task = env.task("train", 0, None)
    row = env.row(task)
    cheat = (
        "rm -rf tests; mkdir -p tests; echo 'raise SystemExit(0)' > sitecustomize.py; "
        "echo 'import os; os._exit(0)' > conftest.py; echo x > wordkit/test_new.py; rm -f wordkit/none.py"
    )
    reward, outcome, _ = await tried(env, task, provider, ("run", {"command": cheat}), "Done.")
    assert (reward.score, outcome.data["edits"]) == (0.0, {})
    path = row.bugs[0].path
    odd = (
        "mkfifo wordkit/pipe.py; touch \"$(printf 'wordkit/\\377.py')\"; ln -s /dev/zero wordkit/zero.py; "
        f"truncate -s 40M wordkit/big.py; rm {path}; mkfifo {path}; mkdir wordkit/folder.py"
    )
    reward, outcome, _ = await tried(env, task, provider, ("run", {"command": odd}), "Done.")
    assert (reward.score, outcome.data["edits"]) == (0.0, {path: None})
    gone = Outcome({"edits": {row.bugs[0].path: None}})
    fresh = await provider.create("gone", {"run": "test"})
    assert (await env.score(task, gone, fresh)).score == 0.0
    await fresh.terminate()


async def test_hard_levels_say_less_and_show_no_failing_test(provider):
    for level in (4, 5):
        env = environment(level)
        task = env.task("train", 0, None)
        row = env.row(task)
        assert (len(row.bugs) > 1) == (level == 5)
        prompt = env.prompt(task)[0].content
        assert "test" not in prompt
        assert row.hints_text not in prompt
        reward, _, chat = await tried(env, task, provider, ("list_files", {}), "Nothing to do.")
        hidden = {test.partition("::")[0] for test in row.fail_to_pass}
        assert not hidden & set(chat.seen[1].splitlines())
        assert reward.score == 0.0


def test_splits_share_no_function_and_tasks_come_in_another_order_each_time():
    env = environment(1)
    train = [env.task("train", index, None) for index in range(60)]
    held_out = [env.task("eval", index, None) for index in range(env.num_tasks("eval"))]
    assert held_out
    places = [{env.row(task).bugs[0].function for task in tasks} for tasks in (train, held_out)]
    assert not places[0] & places[1]
    names = [task.payload["instance"] for task in train]
    count = len(set(names))
    assert sorted(names[:count]) == sorted(names[count : 2 * count])
    assert names[:count] != names[count : 2 * count]
    assert [task.payload for task in train] == [
        environment(1).task("train", i, None).payload for i in range(60)
    ]


def test_the_kinds_of_bugs_that_are_posed():
    environment = build("bugfix", {"tasks": str(EXAMPLES / "tasks.jsonl"), "kinds": ["comparison", "return"]})
    tasks = [environment.task("train", index, None) for index in range(40)]
    tasks += [environment.task("eval", index, None) for index in range(environment.num_tasks("eval"))]
    assert {bug.operator for task in tasks for bug in environment.row(task).bugs} == {"comparison", "return"}


def test_levels_without_tasks_and_changed_sources_are_refused(tmp_path):
    lines = (EXAMPLES / "tasks.jsonl").read_text().splitlines()
    one = next(line for line in lines if len(json.loads(line)["bugs"]) == 1)
    path = tmp_path / "tasks.jsonl"
    path.write_text(one)
    with pytest.raises(EnvironmentSetupError, match="sources that a file of tasks names must be there"):
        build("bugfix", {"tasks": str(path)})
    shutil.copytree(EXAMPLES / "wordkit", tmp_path / "wordkit")
    with pytest.raises(EnvironmentSetupError, match="train tasks of level 5"):
        build("bugfix", {"tasks": str(path), "levels": [5]})
    other = "await" if json.loads(one)["bugs"][0]["operator"] != "await" else "name"
    with pytest.raises(EnvironmentSetupError, match=f"level 1 whose bugs are {other}"):
        build("bugfix", {"tasks": str(path), "kinds": [other]})
    (tmp_path / "wordkit" / "wordkit" / "words.py").write_text("")
    with pytest.raises(EnvironmentSetupError, match="must have the hash"):
        build("bugfix", {"tasks": str(path)})


def test_a_fraction_of_the_tests():
    row = row_of({"instance_id": "a", "repo": "r", "FAIL_TO_PASS": ["a", "b"], "PASS_TO_PASS": ["c", "d"]})
    half = TestRun({"a": "passed", "b": "failed", "c": "passed", "d": "passed"})
    assert [judged(row, half, how).score for how in ("all", "fraction")] == [0.0, 0.5]
    broken = TestRun({"a": "passed", "b": "passed", "c": "passed", "d": "skipped"})
    assert [judged(row, broken, how).score for how in ("all", "fraction")] == [0.0, 0.5]
    assert judged(row, TestRun(error="the tests did not end: wall"), "fraction").score == 0.0
