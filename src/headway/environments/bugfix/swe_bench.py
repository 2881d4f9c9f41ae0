"""The `swe-bench` environment: tasks of SWE-bench and SWE-smith, each in the image that its row names.

A sandbox is made of the task's image; the repository in it, read-only, is copied to the work folder, which is
where the policy and the tests work. Of SWE-bench's rows `patch` is the solution, which nobody is shown, and
`test_patch` is applied before the hidden tests run; of SWE-smith's `patch` is the bug, which is applied at
the beginning. Tests are named as pytest names them; rows with other names are left out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from headway.core.errors import EnvironmentFault, EnvironmentSetupError
from headway.core.protocols import Chat, ExecLimits, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.core.settings import Problem, setting
from headway.environments.bugfix.environment import judged
from headway.environments.bugfix.repository import changed, hashes_there, tools
from headway.environments.bugfix.rows import Row, read_rows
from headway.environments.bugfix.testing import Layout, Runner, run_tests
from headway.environments.tasks import check_position, split_of, task_id
from headway.environments.templates import template_problem
from headway.environments.tools import run_tools
from headway.rewards.check import checked

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROMPT = "{statement}\n\nThe repository is your working folder. When this is solved, say so."
_BEGIN_S = 120.0  # for the repository to be copied, and a patch to be applied


@dataclass(frozen=True, slots=True)
class SweBenchSettings:
    """Arguments of `swe-bench`."""

    tasks: str = setting(
        "tasks.jsonl",
        "File of tasks, in SWE-bench's or SWE-smith's columns; relative to the config file.",
        names="file",
    )
    eval_tasks: str = setting(
        "", "File of the held-out tasks; empty to hold out a quarter of `tasks`.", names="file"
    )
    image: str = setting(
        "{image}",
        "Image of a task: {image} is its column image, image_name or docker_image, {instance_id} its id.",
    )
    repository: str = setting("/testbed", "Folder of the repository in an image.")
    patch: Literal["solution", "bug"] = setting(
        "solution", "What column patch is: the solution (SWE-bench), or the bug (SWE-smith)."
    )
    python: str = setting("python3", "Python of the images that has pytest and the repository's packages.")
    roots: tuple[str, ...] = setting(("", "src"), "Folders of a repository that its code is imported from.")
    num_eval: int = setting(64, "Held-out tasks at most.", ge=1)
    reward: Literal["all", "fraction"] = setting(
        "all", "1 when all tests pass, or the share of the failing ones that pass, less the share broken."
    )
    turn_tokens: int = setting(1024, "Longest answer between calls of tools, tokens.", ge=16)
    max_turns: int = setting(40, "Answers at most.", ge=1)
    command_s: float = setting(60.0, "Seconds that a command of the policy may take.", gt=0)
    tests_s: float = setting(600.0, "Seconds that the tests of a score may take.", gt=0)

    def problems(self) -> list[Problem]:
        """Return the rules that do not hold."""
        found = template_problem("image", self.image, ("image", "instance_id"))
        return [] if found is None else [found]


class SweBench:
    """Solve an issue of a repository in its container, with tools; hidden tests decide."""

    name = "swe-bench"
    settings_type = SweBenchSettings
    resume: Literal["replay", "snapshot", "restart"] = "snapshot"
    needs_sandbox = True
    stop_strings: tuple[str, ...] = ()
    system_prompt: str | None = None

    def __init__(self, settings: SweBenchSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        train = _usable(settings.tasks)
        if settings.eval_tasks:
            held_out = _usable(settings.eval_tasks)
        else:
            held_out = [row for row in train if split_of(self.name, (row.instance_id,)) == "eval"]
            train = [row for row in train if split_of(self.name, (row.instance_id,)) == "train"]
        random.Random(f"{self.name}/eval").shuffle(held_out)
        self._splits = {"train": train, "eval": held_out[: settings.num_eval]}
        for split, rows in self._splits.items():
            if not rows:
                rule = f"files of tasks must hold {split} tasks"
                raise EnvironmentSetupError(
                    rule,
                    value=settings.tasks,
                    key="environment.args.tasks",
                    remedy="Add tasks, or name another file (eval_tasks, num_eval)",
                )
        self._rows = {row.instance_id: row for rows in self._splits.values() for row in rows}
        lacking = next((row for row in self._rows.values() if not self._image(row)), None)
        if lacking is not None:
            raise EnvironmentSetupError(
                "each task must name its container image",
                value=lacking.instance_id,
                key="environment.args.image",
                remedy="Set it to a pattern with {instance_id}, or add a column image",
            )

    def num_tasks(self, split: str) -> int | None:
        """Train tasks come again and again, in another order."""
        return len(self._splits["eval"]) if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position; there are no levels."""
        check_position(split, index, self.num_tasks(split))
        rows = self._splits[split]
        if split == "train":
            epoch, index_in_epoch = divmod(index, len(rows))
            order = random.Random(f"{self.name}/{self._seed}/{epoch}").sample(range(len(rows)), len(rows))
            row = rows[order[index_in_epoch]]
        else:
            row = rows[index]
        return Task(task_id(split, index, level), split, 0, {"instance": row.instance_id})

    def image(self, task: Task) -> str:
        """Return the container image that holds a task's repository; see `HasImages`."""
        return self._image(self._row(task))

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the one message of a task."""
        return [Message("user", _PROMPT.format(statement=self._row(task).problem_statement))]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Let the policy work on the repository."""
        settings, layout = self._settings, self._layout(self._row(task))
        await self._begin(self._row(task), sandbox)
        known = await hashes_there(sandbox, layout)
        talk = await run_tools(
            chat,
            self.prompt(task),
            tools(sandbox, layout, settings.command_s),
            max_turns=settings.max_turns,
            max_tokens=settings.turn_tokens,
        )
        files = await changed(sandbox, layout, known)
        return Outcome(
            {"files": files, "ended": talk.ended, "calls": talk.num_calls, "refused": talk.num_refused}
        )

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Run the hidden tests on what the policy changed, in another container."""
        row = self._row(task)
        files = cast("Mapping[str, str | None]", outcome.data["files"])
        if not files:
            return checked(Reward(0.0, ("nothing was changed",)))
        await self._begin(row, sandbox)
        of_tests = _touched(row.test_patch)
        for path, text in files.items():
            if path in of_tests:  # as in the repository, or the patch would not apply
                continue
            if text is None:
                await sandbox.exec(["rm", "-f", "--", path])
            else:
                await sandbox.write(path, text.encode())
        await self._patched(sandbox, row.test_patch, "test_patch")
        tests = [*row.fail_to_pass, *row.pass_to_pass]
        run = await run_tests(sandbox, self._layout(row), tests, wall_s=self._settings.tests_s)
        return checked(judged(row, run, self._settings.reward))

    async def _begin(self, row: Row, sandbox: Sandbox) -> None:
        source = f"{self._settings.repository.rstrip('/')}/."
        copying = ["cp", "-RP", source, "."]
        done = await sandbox.exec(copying, limits=ExecLimits(_BEGIN_S))
        if done.rc != 0:
            raise EnvironmentFault(
                f"the repository of {row.instance_id} must be copied to the work folder: "
                f"{done.stderr.strip()[-300:] or done.cause}",
                remedy="Raise sandbox.max_files and sandbox.work_mb, or set environment.args.repository",
            )
        if self._settings.patch == "bug":
            await self._patched(sandbox, row.patch, "patch")

    async def _patched(self, sandbox: Sandbox, patch: str, column: str) -> None:
        if not patch.strip():
            return
        script = "if command -v git >/dev/null; then git apply --whitespace=nowarn -; else patch -p1 -s; fi"
        limits = ExecLimits(_BEGIN_S)
        plain = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
        done = await sandbox.exec(["sh", "-c", script], stdin=patch.encode(), env=plain, limits=limits)
        if done.rc != 0:
            raise EnvironmentFault(f"column {column} of a task must apply: {done.stderr.strip()[-300:]}")

    def _layout(self, row: Row) -> Layout:
        return Layout(cast("Runner", row.runner), self._settings.roots, python=self._settings.python)

    def _row(self, task: Task) -> Row:
        return self._rows[str(task.payload["instance"])]

    def _image(self, row: Row) -> str:
        return self._settings.image.format(image=row.image, instance_id=row.instance_id)


def _touched(patch: str) -> set[str]:
    """Return the files that a patch changes, makes or deletes."""
    lines = (
        line.removeprefix(mark)
        for line in patch.splitlines()
        for mark in ("--- a/", "+++ b/")
        if line.startswith(mark)
    )
    return {line.partition("\t")[0].strip() for line in lines}


def _usable(tasks: str) -> list[Row]:
    """Return the rows whose tests have names that pytest knows."""
    rows = read_rows(Path(tasks).expanduser())
    return [
        row
        for row in rows
        if row.fail_to_pass and all("::" in test for test in (*row.fail_to_pass, *row.pass_to_pass))
    ]
