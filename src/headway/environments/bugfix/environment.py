"""The `bugfix` environment: a bug in a real package, and tests that tell when it is mended.

Levels: 1, the bug's line is marked in its function, and the answer is that line, mended; 2, the function with
numbered lines and what a failing test says, the answer one line of it; 3, the repository in a sandbox with
tools, and what a failing test says; 4, the same with the function's name alone, and without the tests that
fail; 5, the same with bugs in several functions. The first two are one turn.

A score is made in a fresh sandbox from the task's own files: the policy's changes of code are put in, its
changes of tests are not, and the tests of FAIL_TO_PASS and PASS_TO_PASS run. A one-line answer that is the
line as it was before the bug has been proven, and needs no run; one that changes nothing or does not compile
has failed without one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from headway.core.errors import EnvironmentSetupError
from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.core.settings import Problem as SettingProblem
from headway.core.settings import setting
from headway.environments.bugfix.edits import edits_of, with_edits
from headway.environments.bugfix.mutations import functions, parse
from headway.environments.bugfix.operators import Kind
from headway.environments.bugfix.repository import changed, hashes, tools
from headway.environments.bugfix.rows import Row, read_rows, with_bugs
from headway.environments.bugfix.single import answered, function_around, replaced, shown
from headway.environments.bugfix.sources import Tree, load, pack
from headway.environments.bugfix.testing import Layout, Runner, TestRun, run_tests
from headway.environments.tasks import check_level, check_position, split_of, task_id
from headway.environments.tools import run_tools
from headway.rewards.check import checked

if TYPE_CHECKING:
    from headway.environments.bugfix.mutations import Function

LEVELS = range(1, 6)
_MARKED = (
    "This Python function has a bug in the line marked # BUG:\n\n```python\n{function}\n```\n\n"
    "Write that line without the bug. Reply with one ```python block that holds this line only."
)
_NUMBERED = (
    "This function of {repo} has a bug in one line:\n\n```python\n{function}\n```\n\n"
    "A test fails:\n\n```\n{said}\n```\n\n"
    "Reply with one ``` block that holds the number and the text of this line without the bug, "
    "as in `3: return x`."
)
_REPOSITORY = "{statement}{said}\n\nThe repository is your working folder. When the bug is mended, say so."
_SAID = "\n\nA test fails:\n\n```\n{said}\n```"


@dataclass(frozen=True, slots=True)
class BugfixSettings:
    """Arguments of `bugfix`."""

    tasks: str = setting(
        "bugfix/tasks.jsonl",
        "File of tasks, as `headway env make bugfix` writes it; relative to the config file.",
        names="file",
    )
    levels: tuple[int, ...] = setting((1,), "Levels of the train tasks, each as likely.", ge=1, le=5)
    kinds: tuple[Kind, ...] = setting(
        (), "Kinds of bugs that are posed, in both splits (docs/bugfix.md); empty for all."
    )
    num_eval: int = setting(32, "Held-out tasks at most.", ge=1)
    reward: Literal["all", "fraction"] = setting(
        "all", "1 when all tests pass, or the share of the failing ones that pass, less the share broken."
    )
    max_lines: int = setting(30, "Longest function of levels 1 and 2, lines.", ge=3)
    line_tokens: int = setting(96, "Longest answer of levels 1 and 2, tokens.", ge=8)
    turn_tokens: int = setting(512, "Longest answer between calls of tools, tokens.", ge=16)
    max_turns: int = setting(16, "Answers at most of levels 3 to 5.", ge=1)
    said_chars: int = setting(600, "Characters shown of what a failing test says.", ge=80)
    command_s: float = setting(30.0, "Seconds that a command of the policy may take.", gt=0)
    tests_s: float = setting(60.0, "Seconds that the tests of a score may take.", gt=0)

    def problems(self) -> list[SettingProblem]:
        """Return rules between settings that do not hold."""
        return [] if self.levels else [SettingProblem("levels", (), "must name at least one", "Use [1].")]


class Bugfix:
    """A bug in a real package: mend a line, or a repository with tools; hidden tests decide."""

    name = "bugfix"
    settings_type = BugfixSettings
    resume: Literal["replay", "snapshot", "restart"] = "replay"
    needs_sandbox = True
    stop_strings: tuple[str, ...]
    system_prompt: str | None = None

    def __init__(self, settings: BugfixSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._folder = Path(settings.tasks).expanduser().parent
        rows = read_rows(Path(settings.tasks).expanduser())
        if (unjudged := next((row for row in rows if not row.fail_to_pass), None)) is not None:
            raise EnvironmentSetupError(
                "a task must have a test in FAIL_TO_PASS: without one nothing tells whether it is solved",
                value=unjudged.instance_id,
                key="environment.args.tasks",
                remedy="Leave the line out, or make the tasks again (docs/bugfix.md)",
            )
        self._rows = {row.instance_id: row for row in rows}
        self._trees: dict[str, Tree] = {}  # of packages, without bugs
        self._functions: dict[tuple[str, str], list[Function]] = {}  # of their files
        self.stop_strings = ("\n```\n",) if max(settings.levels) < 3 else ()  # the closing fence
        self._train: dict[int, list[str]] = {}
        held_out: list[tuple[int, str]] = []
        for level in LEVELS:
            fitting = [row for row in self._rows.values() if self._fits(row, level)]
            self._train[level] = [row.instance_id for row in fitting if _split(row) == "train"]
            if level in settings.levels:
                held_out += [(level, row.instance_id) for row in fitting if _split(row) == "eval"]
        missing = [level for level in settings.levels if not self._train[level]]
        if missing:
            raise EnvironmentSetupError(
                f"a file of tasks must have train tasks of level {', '.join(map(str, missing))}"
                + (f" whose bugs are {', '.join(settings.kinds)}" if settings.kinds else ""),
                value=settings.tasks,
                key="environment.args.levels",
                remedy="Choose other levels or environment.args.kinds, or make more tasks",
            )
        random.Random("bugfix/eval").shuffle(held_out)
        self._eval = held_out[: settings.num_eval]

    def num_tasks(self, split: str) -> int | None:
        """Train tasks come again and again, in another order."""
        return len(self._eval) if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position; `level` applies to train tasks."""
        check_position(split, index, self.num_tasks(split))
        check_level(level, LEVELS)
        if split == "eval":
            chosen, name = self._eval[index]
        else:
            rng = random.Random(f"{self.name}/{self._seed}/{index}")
            chosen = rng.choice(self._settings.levels) if level is None else level
            names = self._train[chosen]
            if not names:
                raise EnvironmentSetupError(
                    "there is no train task of a level",
                    value=chosen,
                    remedy="Choose other levels (environment.args.levels, [curriculum]), or make more tasks",
                )
            epoch, at = divmod(index, len(names))
            name = random.Random(f"{self.name}/{self._seed}/{chosen}/{epoch}").sample(names, len(names))[at]
        return Task(task_id(split, index, level), split, chosen, {"instance": name})

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the one message of a task."""
        row, settings = self.row(task), self._settings
        said = _last(row.hints_text, settings.said_chars)
        if task.level < 3:
            data, function = self.shown(row)
            if task.level == 1:
                text = _MARKED.format(function=shown(data, function, marked=row.bugs[0].line))
            else:
                text = _NUMBERED.format(repo=row.repo, function=shown(data, function), said=said)
        else:
            hint = _SAID.format(said=said) if task.level == 3 else ""
            text = _REPOSITORY.format(statement=row.problem_statement, said=hint)
        return [Message("user", text)]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Ask for a line, or let the policy work on the repository."""
        row, settings = self.row(task), self._settings
        if task.level < 3:
            reply = await chat.say(self.prompt(task), max_tokens=settings.line_tokens)
            answer = answered(reply.text, self._function(row), row.bugs[0].line if task.level == 1 else 0)
            return Outcome({"line": None if answer is None else list(answer)})
        tree, layout = self._given(row, task.level), _layout(row)
        await sandbox.upload(".", pack(tree))
        talk = await run_tools(
            chat,
            self.prompt(task),
            tools(sandbox, layout, settings.command_s),
            max_turns=settings.max_turns,
            max_tokens=settings.turn_tokens,
        )
        edits = edits_of(tree, await changed(sandbox, layout, hashes(tree)))
        return Outcome(
            {"edits": edits, "ended": talk.ended, "calls": talk.num_calls, "refused": talk.num_refused}
        )

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Run the hidden tests on what the policy changed."""
        row = self.row(task)
        base = self._base(row)
        tree = with_bugs(base, row.bugs)
        if task.level < 3:
            answer = outcome.data["line"]
            if answer is None:
                return checked(Reward(0.0, ("the answer is not one line",)))
            path = row.bugs[0].path
            mended = replaced(tree[path], int(answer[0]), str(answer[1]))
            if mended == base[path]:
                return checked(Reward(1.0, ("the line is as it was before the bug",), {"exact": 1.0}))
            if mended == tree[path]:
                return checked(Reward(0.0, ("the line is the one with the bug",), {"unchanged": 1.0}))
            if not _compiles(mended):
                return checked(Reward(0.0, ("the function does not compile any more",), {"compiles": 0.0}))
            tree = tree | {path: mended}
        elif not outcome.data["edits"]:
            return checked(Reward(0.0, ("nothing was changed",)))
        else:
            tree = with_edits(tree, cast("dict[str, Any]", outcome.data["edits"]))
        await sandbox.upload(".", pack(tree))
        tests = [*row.fail_to_pass, *row.pass_to_pass]
        run = await run_tests(sandbox, _layout(row), tests, wall_s=self._settings.tests_s)
        return checked(judged(row, run, self._settings.reward))

    def row(self, task: Task) -> Row:
        """Return the row that a task is made of."""
        return self._rows[str(task.payload["instance"])]

    def answer(self, task: Task) -> str:
        """Return the right answer to a task of level 1, as the policy is to write it (for a warm start)."""
        bug = self.row(task).bugs[0]
        line = self._base(self.row(task))[bug.path].split(b"\n")[bug.line - 1]
        return f"```python\n{line.decode().strip()}\n```\n"

    def _base(self, row: Row) -> Tree:
        if row.source not in self._trees:
            self._trees[row.source] = load(row.source, self._folder, row.base_commit.removeprefix("sha256:"))
        return self._trees[row.source]

    def _given(self, row: Row, level: int) -> Tree:
        """Return the files that a policy is given."""
        hidden = {test.partition("::")[0] for test in row.fail_to_pass} if level > 3 else set[str]()
        tree = with_bugs(self._base(row), row.bugs)
        return {path: data for path, data in tree.items() if path not in hidden}

    def shown(self, row: Row) -> tuple[bytes, Function]:
        """Return the file with the first bug, and the function that holds it."""
        return with_bugs(self._base(row), row.bugs)[row.bugs[0].path], self._function(row)

    def _function(self, row: Row) -> Function:
        """Return the function that holds the first bug; no bug moves a line."""
        bug = row.bugs[0]
        known = self._functions.get((row.source, bug.path))
        if known is None:
            known = functions(parse(self._base(row)[bug.path]))
            self._functions[row.source, bug.path] = known
        return function_around(known, bug.line)

    def _fits(self, row: Row, level: int) -> bool:
        kinds = self._settings.kinds
        if not row.bugs or (kinds and not {bug.operator for bug in row.bugs} <= set[str](kinds)):
            return False
        if level >= 3:
            return (len(row.bugs) > 1) == (level == 5)
        if len(row.bugs) > 1:
            return False
        function = self._function(row)
        return function.last - function.first < self._settings.max_lines


def judged(row: Row, run: TestRun, how: Literal["all", "fraction"]) -> Reward:
    """Return the reward of a run of hidden tests; what did not run has not passed."""
    mended = len(run.passed(row.fail_to_pass)) / len(row.fail_to_pass)
    broken = run.failed(row.pass_to_pass)
    share_broken = len(broken) / len(row.pass_to_pass) if row.pass_to_pass else 0.0
    solved = mended == 1.0 and not broken
    score = float(solved) if how == "all" else max(0.0, mended - share_broken)
    if solved:
        reason = "all tests pass"
    elif run.error:
        reason = run.error
    elif broken:
        reason = f"{len(broken)} tests that passed fail now, such as {broken[0]}"
    else:
        still = run.failed(row.fail_to_pass)
        reason = f"{len(still)} of {len(row.fail_to_pass)} failing tests still fail, such as {still[0]}"
    return Reward(score, (reason,), {"solved": float(solved), "mended": mended, "broken": share_broken})


def _last(hint: str, max_chars: int) -> str:
    """Return a failing test's name and the end of what it says."""
    name, _, said = hint.partition("\n")
    return hint if len(hint) <= max_chars else f"{name}\n...{said[len(name) - max_chars :]}"


def _layout(row: Row) -> Layout:
    return Layout(cast("Runner", row.runner), row.roots)


def _split(row: Row) -> str:
    """Return where a task belongs: bugs of one function are all in one split; "" for those across both."""
    package = f"{row.repo}=={row.version}"
    found = {split_of("bugfix", (package, bug.path, bug.function)) for bug in row.bugs}
    return found.pop() if len(found) == 1 else ""


def _compiles(data: bytes) -> bool:
    try:
        compile(data, "answer", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
