"""A scripted policy that knows the kinds of bugs, to tell how hard tasks are without any model.

It draws mutations of the broken function at random and hopes that one undoes the bug. In one turn it has one
guess (of the marked line at level 1). With tools it edits the function, runs the test that it was told of,
and tries another mutation as long as it has turns; where no test was told it ends with its first guess.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from headway.core.protocols import Chat, Outcome, Reply
from headway.core.records import Message, Reward, Task, ToolCall, ToolSpec
from headway.environments.bugfix.mutations import Function, Mutation, apply, mutations

if TYPE_CHECKING:
    from headway.core.protocols import Sandbox, SandboxProvider
    from headway.environments.bugfix.environment import Bugfix
    from headway.environments.bugfix.rows import Row


class Guesser:
    """The `Chat` of one scripted rollout. It is told the task's row, and uses of it what the prompt shows."""

    def __init__(self, row: Row, broken: bytes, function: Function, level: int, seed: str) -> None:
        self._row = row
        self._broken = broken
        self._function = function
        self._level = level
        self._guesses = guesses(row, broken, level)
        random.Random(seed).shuffle(self._guesses)
        self._now = broken  # the file as the policy left it
        self._number = 0

    async def say(
        self, messages: Sequence[Message], *, max_tokens: int | None = None, tools: Sequence[ToolSpec] = ()
    ) -> Reply:
        """Answer with a guess; see `Chat`."""
        if self._level < 3:
            return self._text(self._line())
        last = messages[-1]
        passed = last.role == "tool" and last.name == "run" and last.content.endswith("[exit code 0]")
        if passed or not self._guesses or (last.role == "tool" and self._level > 3):
            return self._text("Done.")
        if last.role == "tool" and last.name == "edit_file":
            return self._call("run", {"command": self._command()})
        old, self._now = self._part(self._now), apply(self._broken, [self._guesses.pop()])
        return self._call(
            "edit_file", {"path": self._row.bugs[0].path, "old": old, "new": self._part(self._now)}
        )

    def report(self, value: float, reason: str = "") -> None:
        """Say nothing; see `Chat`."""

    def _line(self) -> str:
        if not self._guesses:
            return "I do not know."
        guess = self._guesses.pop()
        line = apply(self._broken, [guess]).split(b"\n")[guess.line - 1].decode()
        number = "" if self._level == 1 else f"{guess.line - self._function.first + 1}: "
        return f"```python\n{number}{line.strip()}\n```\n"

    def _part(self, data: bytes) -> str:
        lines = data.decode().splitlines(keepends=True)
        return "".join(lines[self._function.first - 1 : self._function.last])

    def _command(self) -> str:
        test = self._row.hints_text.partition("\n")[0]
        if self._row.runner == "pytest":
            return f"python3 -m pytest -q -p no:cacheprovider '{test}'"
        path, _, rest = test.partition("::")
        folder = path.rpartition("/")[0] or "."
        return f"python3 -m unittest discover -s {folder} -k {rest.rpartition('::')[2]}"

    def _text(self, text: str) -> Reply:
        return Reply(text, "stop", 1, 1 << 20, Message("assistant", text))

    def _call(self, name: str, arguments: dict[str, Any]) -> Reply:
        self._number += 1
        call = ToolCall(f"c{self._number}", name, json.dumps(arguments))
        return Reply("", "stop", 1, 1 << 20, Message("assistant", "", tool_calls=(call,)))


def guesses(row: Row, broken: bytes, level: int) -> list[Mutation]:
    """Return the mutations of the broken function that the scripted policy may try at a level."""
    bug = row.bugs[0]
    found = mutations(broken, bug.function)
    if level == 1:
        found = [mutation for mutation in found if mutation.line == bug.line]
    return found


def expected(row: Row, base: bytes, broken: bytes, level: int, num_tries: int) -> float:
    """Return how likely `num_tries` different random guesses hold one that undoes a single bug exactly."""
    found = guesses(row, broken, level)
    right = sum(apply(broken, [guess]) == base for guess in found)
    wrong = len(found) - right
    if num_tries > wrong:
        return float(right > 0)
    return 1.0 - math.comb(wrong, num_tries) / math.comb(len(found), num_tries)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One scripted rollout and its score."""

    task: Task
    outcome: Outcome
    reward: Reward


async def attempt(environment: Bugfix, task: Task, provider: SandboxProvider, seed: int = 0) -> Attempt:
    """Let the scripted policy try a task, with real sandboxes."""
    row = environment.row(task)
    broken, function = environment.shown(row)
    chat = Guesser(row, broken, function, task.level, f"guess/{seed}/{row.instance_id}")
    name = f"scripted-{seed}-{task.level}-{row.instance_id}"
    sandboxes: list[Sandbox] = []
    try:
        for part in ("rollout", "verify"):
            labels = {"run": "scripted", "purpose": part}
            sandboxes += [await provider.create(f"{name}-{part}", labels)]
        outcome = await environment.rollout(task, cast("Chat", chat), sandboxes[0])
        return Attempt(task, outcome, await environment.score(task, outcome, sandboxes[1]))
    finally:
        for sandbox in sandboxes:
            await sandbox.terminate()
