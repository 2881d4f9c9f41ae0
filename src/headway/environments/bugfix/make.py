"""Makes tasks: draws bugs by a seed, proves each in sandboxes, writes those that hold.

Consumes packages. Candidates of a package have a fixed order, so which of them become tasks depends on the
seed alone, however many are judged at once and however often the work is interrupted: verdicts are appended
to proofs.jsonl as they come, and are not asked for again. Waits for sandboxes, each of whose runs has a wall
limit; a sandbox that fails is tried again a few times, then raises.

Written to the folder: sources/ (archives as fetched), proofs.jsonl, tasks.jsonl (rows), recipes.jsonl and
packages.json (the same without any package's text), requirements.txt (what the sandboxes' Python needs).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.core.errors import EnvironmentSetupError, SandboxError
from headway.environments.bugfix.drawing import candidates, combined
from headway.environments.bugfix.prove import Prepared, Proof, prepare, prove
from headway.environments.bugfix.rows import (
    PACKAGES,
    RECIPES,
    TASKS,
    Bug,
    Row,
    bugs_id,
    mending,
    positions,
    recipe_line,
    statement,
)
from headway.environments.bugfix.sources import Package, obtain
from headway.environments.bugfix.testing import PYTEST, Layout, Runner

if TYPE_CHECKING:
    from headway.core.protocols import Sandbox, SandboxProvider

_TRIES = 3  # of a sandbox that fails


@dataclass(frozen=True, slots=True)
class MakerSettings:
    """How many tasks, and how they are drawn."""

    num_tasks: int = 100  # of each package
    several: float = 0.15  # share of them with more than one bug
    seed: int = 0
    workers: int = 2  # sandboxes at once
    per_function: int = 4  # tasks at most that mutate one function
    max_test_s: float = 1.0  # tests that take longer are left out
    runner: Runner = "pytest"
    max_tries: int = 12  # candidates judged for each task wanted


@dataclass(slots=True)
class Made:
    """What came of one package."""

    package: str
    rows: list[Row] = field(default_factory=list[Row])
    verdicts: Counter[str] = field(default_factory=Counter[str])
    num_tests: int = 0
    left_out: Counter[str] = field(default_factory=Counter[str])


class Maker:
    """Makes tasks in a folder.

    Args:
        out: the folder.
        provider: what makes sandboxes; their Python has what the runner needs.
        settings: how many, and how they are drawn.
        tell: called with a line for people now and then.
    """

    def __init__(
        self, out: Path, provider: SandboxProvider, settings: MakerSettings, tell: Callable[[str], None]
    ) -> None:
        self._out = out
        self._provider = provider
        self._settings = settings
        self._tell = tell
        self._number = 0
        self._gate = asyncio.Semaphore(settings.workers)
        self._proofs = _proofs(out / "proofs.jsonl")

    async def make(self, packages: Sequence[str]) -> list[Made]:
        """Make the tasks of all packages and write them; return what came of each.

        Raises EnvironmentSetupError for a package that cannot be used.
        """
        made: list[Made] = []
        lists: dict[str, dict[str, Any]] = {}
        recipes: list[str] = []
        for wanted in packages:
            package = await asyncio.to_thread(obtain, wanted, self._out)
            prepared = await self._prepared(package)
            one = await self._of(package, prepared)
            made.append(one)
            lists[package.key] = {
                "name": package.name,
                "version": package.version,
                "sha256": package.digest,
                "runner": prepared.layout.runner,
                "tests": list(prepared.tests),
            }
            recipes += [recipe_line(row, package.key, prepared.tests) for row in one.rows]
            _write(self._out / TASKS, [row.line() for each in made for row in each.rows])
            _write(self._out / RECIPES, recipes)
            _write(self._out / PACKAGES, [json.dumps(lists, indent=1)])
        return made

    async def rebuild(self, recipes: Path, *, verify: bool) -> list[Made]:
        """Make the tasks of recipes again and write them; `verify` proves each anew.

        Raises EnvironmentSetupError when a package's sources differ, or a task does not come out the same.
        """
        lists, by_package = _recipes(recipes)
        made: list[Made] = []
        for key, found in by_package.items():
            known = lists[key]
            package = await asyncio.to_thread(_known, known, recipes.parent, self._out)
            tests, one = known["tests"], Made(key)
            for recipe in found:
                bugs = tuple(Bug(**bug) for bug in recipe["bugs"])
                chosen = [[tests[at] for at in positions(recipe[part])] for part in ("fail", "pass")]
                layout = Layout(known["runner"], package.roots)
                one.rows.append(
                    _row(
                        package,
                        layout,
                        bugs,
                        Proof("recipe", tuple(chosen[0]), tuple(chosen[1])),
                        recipe["level"],
                    )
                )
            made.append(one)
            if verify:
                await self._verify(package, Layout(known["runner"], package.roots), one)
            _write(self._out / TASKS, [row.line() for each in made for row in each.rows])
        return made

    async def _verify(self, package: Package, layout: Layout, made: Made) -> None:
        async def one(row: Row) -> Row:
            tests = tuple(sorted({*row.fail_to_pass, *row.pass_to_pass}))
            # Every test of the recipe calls the bug, so that exactly these are chosen.
            prepared = Prepared(
                layout, tests, {test: [(bug.path, bug.function) for bug in row.bugs] for test in tests}, {}
            )
            proof = await self._proof(package, prepared, row.bugs)
            if set(proof.fail_to_pass) != set(row.fail_to_pass):
                rule = f"a task must come out as its recipe says, and this one {proof.verdict}"
                raise EnvironmentSetupError(
                    rule,
                    value=row.instance_id,
                    remedy="Its package or what it needs changed: leave the recipe out, or make new tasks",
                )
            made.verdicts[proof.verdict] += 1
            return _row(package, layout, row.bugs, proof, row.level, proof.said)

        async with asyncio.TaskGroup() as group:
            work = [group.create_task(one(row)) for row in made.rows]
        made.rows[:] = [task.result() for task in work]

    async def _prepared(self, package: Package) -> Prepared:
        path = self._out / "prepared" / f"{package.key}.{package.digest[:12]}.json"
        if path.is_file():
            known = json.loads(path.read_text(encoding="utf-8"))
            calls = {test: [(file, name) for file, name in found] for test, found in known["calls"].items()}
            layout = Layout(known["runner"], package.roots)
            if layout.runner == self._settings.runner:
                return Prepared(layout, tuple(known["tests"]), calls, known["left_out"])
        self._tell(f"{package.key}: its tests run twice")
        prepared = await prepare(package, self._settings.runner, self._sandbox, self._settings.max_test_s)
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {
            "runner": prepared.layout.runner,
            "tests": prepared.tests,
            "calls": prepared.calls,
            "left_out": prepared.left_out,
        }
        _write(path, [json.dumps(known)])
        return prepared

    async def _of(self, package: Package, prepared: Prepared) -> Made:
        made = Made(package.key, num_tests=len(prepared.tests), left_out=Counter(prepared.left_out.values()))
        several = round(self._settings.num_tasks * self._settings.several)
        await self._fill(package, prepared, made, self._settings.num_tasks - several, 1)
        await self._fill(package, prepared, made, self._settings.num_tasks, 2)
        self._tell(f"{package.key}: {len(made.rows)} tasks; {_counted(made.verdicts)}")
        return made

    async def _fill(self, package: Package, prepared: Prepared, made: Made, wanted: int, level: int) -> None:
        settings = self._settings
        source = (
            candidates(package, prepared, settings.seed)
            if level == 1
            else combined(list(made.rows), package, settings.seed)
        )
        per_function: Counter[tuple[str, str]] = Counter()

        def is_full(bugs: Sequence[Bug]) -> bool:
            most = max(per_function[bug.path, bug.function] for bug in bugs)
            return level == 1 and most >= settings.per_function

        left = settings.max_tries * max(0, wanted - len(made.rows))
        while len(made.rows) < wanted and left > 0:
            drawn = list(itertools.islice(source, 2 * settings.workers))
            if not drawn:
                return
            left -= len(drawn)
            batch = [bugs for bugs in drawn if not is_full(bugs)]
            async with asyncio.TaskGroup() as group:
                work = [group.create_task(self._proof(package, prepared, bugs)) for bugs in batch]
            for bugs, task in zip(batch, work, strict=True):
                proof = task.result()
                if len(made.rows) >= wanted:
                    return  # judged, and kept for a later run that wants more
                if is_full(bugs):
                    continue
                made.verdicts[proof.verdict] += 1
                if proof.verdict == "proven":
                    per_function.update((bug.path, bug.function) for bug in bugs)
                    made.rows.append(_row(package, prepared.layout, bugs, proof, len(bugs), proof.said))

    async def _proof(self, package: Package, prepared: Prepared, bugs: Sequence[Bug]) -> Proof:
        name = bugs_id(package, bugs)
        if (known := self._proofs.get(name)) is not None:
            return known
        for again in range(_TRIES):
            try:
                async with self._gate:
                    proof = await prove(package, prepared, bugs, self._sandbox, name)
                break
            except SandboxError:
                if again + 1 == _TRIES:
                    raise
        else:
            raise AssertionError
        self._proofs[name] = proof
        _append(self._out / "proofs.jsonl", json.dumps({"id": name} | asdict(proof)))
        if len(self._proofs) % 25 == 0:
            verdicts = Counter(proof.verdict for proof in self._proofs.values())
            self._tell(f"{len(self._proofs)} bugs judged: {_counted(verdicts)}")
        return proof

    async def _sandbox(self) -> Sandbox:
        self._number += 1
        return await self._provider.create(f"bugfix-{self._number}", {"run": "bugfix", "purpose": "rollout"})


def _row(
    package: Package, layout: Layout, bugs: Sequence[Bug], proof: Proof, level: int, hints: str = ""
) -> Row:
    return Row(
        instance_id=bugs_id(package, bugs),
        repo=f"pypi/{package.name}",
        version=package.version,
        base_commit=f"sha256:{package.digest}",
        patch=mending(package.tree, bugs),
        problem_statement=statement(package.name, bugs),
        fail_to_pass=proof.fail_to_pass,
        pass_to_pass=proof.pass_to_pass,
        hints_text=hints,
        source=package.place,
        roots=layout.roots,
        runner=layout.runner,
        level=level,
        bugs=tuple(bugs),
    )


def _recipes(path: Path) -> tuple[dict[str, dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return what is known of the packages, and the recipes of each."""
    by_package: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        recipe: dict[str, Any] = json.loads(line)
        by_package.setdefault(recipe["package"], []).append(recipe)
    return json.loads((path.parent / PACKAGES).read_text(encoding="utf-8")), by_package


def _known(known: Mapping[str, Any], beside: Path, out: Path) -> Package:
    """Return the package of recipes: a folder beside them, or what the index has."""
    folder = beside / known["name"]
    name = str(folder) if folder.is_dir() else f"{known['name']}=={known['version']}"
    return obtain(name, out, known["sha256"])


def requirements(runner: Runner) -> str:
    """Return what the sandboxes' Python needs, as a requirements file; empty for nothing."""
    return f"{PYTEST}\n" if runner == "pytest" else ""


def _proofs(path: Path) -> dict[str, Proof]:
    """Return the verdicts so far; a line that a kill cut off is none."""
    found: dict[str, Proof] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                data: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            tests = tuple(data["fail_to_pass"]), tuple(data["pass_to_pass"])
            found[data["id"]] = Proof(data["verdict"], *tests, data["said"])
    return found


def _write(path: Path, lines: Sequence[str]) -> None:
    """Write a file, whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    new.replace(path)


def _append(path: Path, line: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
