"""Sums whose own score is a rubric: two weighted functions, and one that is only reported.

The config beside this file adds what is not of this environment: a judge's grade, and shaping. From the root
of the repository, with the judge's stand-in running (server.py):

    headway train examples/judge/judge.toml
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.core.settings import setting
from headway.rewards.rubric import Part, Rubric


def right(answer: str, payload: dict[str, Any]) -> tuple[bool, str]:
    """Whether it is the sum, and nothing else."""
    wanted = str(payload["a"] + payload["b"])
    return answer.strip() == wanted, f"{wanted} was expected, the answer was {answer[:20]!r}"


async def a_number(answer: str) -> bool:
    """Whether it is a number at all."""
    return answer.strip().isdecimal()


def length(answer: str) -> int:
    """Characters, for the report."""
    return len(answer)


@dataclass(frozen=True, slots=True)
class SumsSettings:
    """What `[environment.args]` may set."""

    below: int = setting(10, "Operands are below it.", ge=2)
    num_eval: int = setting(16, "Held-out tasks.", ge=1)


class Sums:
    """One turn: add two numbers."""

    name = "sums"
    settings_type = SumsSettings
    resume: Literal["replay", "snapshot", "restart"] = "replay"
    needs_sandbox = False
    stop_strings: tuple[str, ...] = ()
    system_prompt: str | None = None

    def __init__(self, settings: SumsSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._rubric = Rubric(Part(right, 0.9), Part(a_number, 0.1), Part(length, 0.0))

    def num_tasks(self, split: str) -> int | None:
        """Return how many tasks a split has."""
        return self._settings.num_eval if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position. Sums that are a multiple of three are held out."""
        held_out = split == "eval"
        rng = random.Random(f"{self.name}/{0 if held_out else self._seed}/{split}/{index}")
        a = b = -1
        while a < 0 or ((a + b) % 3 == 0) != held_out:
            a, b = rng.randrange(self._settings.below), rng.randrange(self._settings.below)
        return Task(f"{split}/{index}", split, 0, {"a": a, "b": b})

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the question."""
        return [Message("user", f"{task.payload['a']}+{task.payload['b']}=")]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Ask once; what was said is in the transcript, which `score` gets."""
        await chat.say(self.prompt(task))
        return Outcome({})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Let the rubric score it."""
        return await self._rubric.score(task, outcome, sandbox)
