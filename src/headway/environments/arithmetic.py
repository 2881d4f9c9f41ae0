"""The `arithmetic` environment: one turn, one sum.

Levels: 1 adds operands below 10, 2 below 20, 3 below 100; 4 subtracts operands below 100, the larger first.
The prompt is bare (`3+5=`), for a tiny model that was warmed up on such text, or a question. The score is 1
when the answer is right and 0 otherwise: a bare answer must be the number alone, a question's answer is
judged by its last number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.core.settings import Problem as SettingProblem
from headway.core.settings import setting
from headway.environments.tasks import Problem, check_level, check_position, draw_eval, draw_train, task_id
from headway.rewards.check import checked
from headway.rewards.verifiers import equals_number

if TYPE_CHECKING:
    import random

_LIMITS = {1: 10, 2: 20, 3: 100, 4: 100}  # operands lie below
LEVELS = range(1, 5)


@dataclass(frozen=True, slots=True)
class ArithmeticSettings:
    """Arguments of `arithmetic`."""

    style: Literal["bare", "question"] = setting("bare", "Prompt style: `3+5=`, or `What is 3 + 5?`.")
    levels: tuple[int, ...] = setting((1, 2), "Levels of the train tasks, each as likely.", ge=1, le=4)
    num_eval: int = setting(64, "Held-out tasks at most; the lowest levels have fewer.", ge=1)

    def problems(self) -> list[SettingProblem]:
        """Return rules between settings that do not hold."""
        return [] if self.levels else [SettingProblem("levels", (), "must name at least one", "Use [1, 2].")]


class Arithmetic:
    """One turn: a sum or a difference; the answer is right or wrong."""

    name = "arithmetic"
    settings_type = ArithmeticSettings
    resume: Literal["replay", "snapshot", "restart"] = "replay"
    needs_sandbox = False
    stop_strings: tuple[str, ...] = ()
    system_prompt: str | None = None

    def __init__(self, settings: ArithmeticSettings, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._eval = draw_eval(self.name, settings.num_eval, lambda rng: _draw(rng, settings.levels))

    def num_tasks(self, split: str) -> int | None:
        """Train tasks have no end."""
        return len(self._eval) if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position; `level` applies to train tasks."""
        check_position(split, index, self.num_tasks(split))
        check_level(level, LEVELS)
        if split == "eval":
            problem = self._eval[index]
        else:
            levels = self._settings.levels if level is None else (level,)
            problem = draw_train(self.name, self._seed, index, lambda rng: _draw(rng, levels))
        return Task(task_id(split, index, level), split, problem.level, problem.payload)

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the one message of a task."""
        op, a, b = task.payload["op"], task.payload["a"], task.payload["b"]
        bare = self._settings.style == "bare"
        return [Message("user", f"{a}{op}{b}=" if bare else f"What is {a} {op} {b}?")]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Ask once."""
        reply = await chat.say(self.prompt(task))
        return Outcome({"answer": reply.text})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Compare the answer with the value."""
        payload, answer = task.payload, str(outcome.data["answer"])
        value = payload["a"] + payload["b"] if payload["op"] == "+" else payload["a"] - payload["b"]
        bare = self._settings.style == "bare"
        right = answer.strip() == str(value) if bare else equals_number(answer, value)
        reason = "right" if right else f"{value} was expected, the answer was {answer.strip()[:40]!r}"
        return checked(Reward(float(right), (reason,)))


def _draw(rng: random.Random, levels: Sequence[int]) -> Problem:
    level = rng.choice(levels)
    limit = _LIMITS[level]
    a, b = rng.randrange(limit), rng.randrange(limit)
    low, high = sorted((a, b))
    if level == 4:
        a, b = high, low
    op = "-" if level == 4 else "+"
    return Problem((op, low, high), level, {"op": op, "a": a, "b": b})
