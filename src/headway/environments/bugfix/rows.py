"""Tasks as lines of JSON in SWE-bench's columns, and recipes, which hold no package's text.

A row:     instance_id, repo, version, base_commit, patch, test_patch, problem_statement, hints_text,
           FAIL_TO_PASS, PASS_TO_PASS, and for tasks that were made here: source, roots, runner, level, bugs.
A recipe:  instance_id, package, bugs, fail, pass; the tests as positions in the list of their package, which
           packages.json holds with version and hash. A row is made again from it and from the package.

`patch` mends the bug: it takes the base state, sources with bugs, to the sources.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import EnvironmentSetupError, UserError
from headway.core.json_lines import json_object, text_lines
from headway.environments.bugfix.mutations import Mutation, apply

if TYPE_CHECKING:
    from headway.environments.bugfix.sources import Package, Tree

RUNNERS = ("pytest", "unittest")
TASKS, RECIPES, PACKAGES = "tasks.jsonl", "recipes.jsonl", "packages.json"


@dataclass(frozen=True, slots=True)
class Bug:
    """One mutation of one file."""

    path: str
    operator: str
    start: int  # bytes from the file's beginning
    end: int
    text: str
    line: int
    function: str

    @property
    def mutation(self) -> Mutation:
        """Without the file."""
        return Mutation(self.operator, self.start, self.end, self.text, self.line, self.function)


@dataclass(frozen=True, slots=True)
class Row:
    """One task."""

    instance_id: str
    repo: str
    version: str
    base_commit: str  # hash of the sources without bugs
    patch: str
    problem_statement: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    hints_text: str = ""  # what a failing test says
    test_patch: str = ""
    source: str = ""  # archive or folder, relative to the file of tasks
    roots: tuple[str, ...] = ("",)
    runner: str = "pytest"
    level: int = 0
    bugs: tuple[Bug, ...] = ()
    image: str = ""  # of the container that holds the repository

    def line(self) -> str:
        """Return it as a line of a file."""
        data = asdict(self)
        data["FAIL_TO_PASS"] = data.pop("fail_to_pass")
        data["PASS_TO_PASS"] = data.pop("pass_to_pass")
        if not data["image"]:
            del data["image"]
        return json.dumps(data)


def bugs_id(package: Package, bugs: Sequence[Bug]) -> str:
    """Return the id of a task: the same bugs in the same sources have the same one."""
    said = json.dumps([package.digest, [asdict(bug) for bug in bugs]])
    return f"{package.key}.{hashlib.sha256(said.encode()).hexdigest()[:10]}"


def with_bugs(tree: Tree, bugs: Iterable[Bug]) -> Tree:
    """Return a package's files with bugs."""
    by_path: dict[str, list[Mutation]] = {}
    for bug in bugs:
        by_path.setdefault(bug.path, []).append(bug.mutation)
    return tree | {path: apply(tree[path], found) for path, found in by_path.items()}


def mending(tree: Tree, bugs: Iterable[Bug]) -> str:
    """Return the patch that takes the files with bugs to those without."""
    broken, parts = with_bugs(tree, bugs), list[str]()
    for path in sorted({bug.path for bug in bugs}):
        before, after = (data.decode().splitlines(keepends=True) for data in (broken[path], tree[path]))
        parts += difflib.unified_diff(before, after, f"a/{path}", f"b/{path}")
    return "".join(parts)


def statement(name: str, bugs: Sequence[Bug]) -> str:
    """Return what is wrong, without any test's words."""
    places = sorted({(bug.path, bug.function) for bug in bugs})
    if len(places) == 1:
        ((path, function),) = places
        return f"`{function}` in `{path}` of {name} does not do what it should. Find the bug and mend it."
    paths = sorted({path for path, _ in places})
    return (
        f"{len(places)} functions in {', '.join(f'`{path}`' for path in paths)} of {name} do not do what "
        f"they should. Find the bugs and mend them."
    )


def read_rows(path: Path) -> list[Row]:
    """Return the tasks of a file, SWE-bench's and SWE-smith's too.

    Raises EnvironmentSetupError when there is none, and naming the first line that is no task.
    """
    rows: list[Row] = []
    try:
        for number, line in text_lines(path, "environment.args.tasks"):
            try:
                rows.append(row_of(json_object(line)))
            except (ValueError, KeyError, TypeError, UserError) as error:
                said = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
                rule = f"line {number} of a file of tasks must be a task: {said}"
                raise EnvironmentSetupError(
                    rule, value=str(path), remedy="Mend the line, or make the tasks again (docs/bugfix.md)"
                ) from error
    except EnvironmentSetupError:
        raise
    except UserError as error:
        rule = f"a file of tasks must be there and be text: {error.rule}"
        remedy = "Make one with `headway env make bugfix` (docs/bugfix.md)"
        raise EnvironmentSetupError(rule, value=str(path), remedy=remedy) from error
    if not rows:
        raise EnvironmentSetupError(
            "a file of tasks must hold at least one",
            value=str(path),
            remedy="Make tasks: headway env make bugfix",
        )
    return rows


def row_of(data: Mapping[str, Any]) -> Row:
    """Return a task; SWE-bench writes lists of tests as text, SWE-smith as lists.

    Raises KeyError, TypeError or ValueError for what is none.
    """
    row = Row(
        instance_id=str(data["instance_id"]),
        repo=str(data["repo"]),
        version=str(data.get("version", "")),
        base_commit=str(data.get("base_commit", "")),
        patch=str(data.get("patch", "")),
        problem_statement=str(data.get("problem_statement", "")),
        fail_to_pass=_tests(data["FAIL_TO_PASS"]),
        pass_to_pass=_tests(data["PASS_TO_PASS"]),
        hints_text=str(data.get("hints_text") or ""),
        test_patch=str(data.get("test_patch") or ""),
        source=str(data.get("source", "")),
        roots=tuple(map(str, data.get("roots", ("",)))),
        runner=str(data.get("runner", "pytest")),
        level=int(data.get("level", 0)),
        bugs=tuple(Bug(**bug) for bug in data.get("bugs", ())),
        image=str(data.get("image") or data.get("image_name") or data.get("docker_image") or ""),
    )
    if row.runner not in RUNNERS:  # the sandbox would know no test of it
        raise ValueError(f"runner must be one of {', '.join(RUNNERS)}, not {row.runner!r}")
    for test in (*row.fail_to_pass, *row.pass_to_pass):
        if not test or test.startswith("-") or "\0" in test:
            raise ValueError(f"{test!r} is no name of a test")
    for bug in row.bugs:
        if not isinstance(bug.path, str) or not all(type(at) is int for at in (bug.start, bug.end, bug.line)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError("a bug must have a path, and integers as start, end and line")
    return row


def _tests(found: object) -> tuple[str, ...]:
    listed: object = json.loads(found) if isinstance(found, str) else found
    if not isinstance(listed, list):
        raise TypeError("FAIL_TO_PASS and PASS_TO_PASS must be lists of tests")
    return tuple(str(test) for test in listed)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


# --- recipes


def recipe_line(row: Row, package: str, tests: Sequence[str]) -> str:
    """Return a task without the package's text, nor that of its tests' names."""
    at = {test: number for number, test in enumerate(tests)}
    return json.dumps(
        {
            "instance_id": row.instance_id,
            "package": package,
            "level": row.level,
            "bugs": [asdict(bug) for bug in row.bugs],
            "fail": ranges([at[test] for test in row.fail_to_pass]),
            "pass": ranges([at[test] for test in row.pass_to_pass]),
        }
    )


def ranges(numbers: Iterable[int]) -> str:
    """Return positions as text, such as "3-7,9"."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def positions(text: str) -> list[int]:
    """Return what `ranges` wrote."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found
