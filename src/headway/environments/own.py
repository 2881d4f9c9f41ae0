"""A base for environments of one's own: what is left to write is a problem, tools, and a reward.

It makes tasks of problems that are drawn from a seed, holds a quarter of all problems out for evaluation,
and lets the policy call tools until it answers. An environment that is not like that implements `Environment`
itself; nothing here is known to the host.
"""

from __future__ import annotations

import inspect
import json
import random  # noqa: TC003 - annotations of an environment must be readable
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast

from headway.core.errors import EnvironmentSetupError, RewardFault
from headway.core.off_loop import in_thread
from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.environments.tasks import Problem, check_level, check_position, draw_eval, draw_train, task_id
from headway.environments.tools import Callables, run_tools
from headway.rewards.case import as_reward


@dataclass(frozen=True, slots=True)
class NoSettings:
    """Nothing that `[environment.args]` may set."""


class OwnEnvironment:
    """Draws problems, lets the policy call tools, and rewards its answer."""

    name = ""  # the class's name in lower case, where a subclass names none
    settings_type: ClassVar[type[Any]] = NoSettings
    resume: Literal["replay", "snapshot", "restart"] = "restart"
    needs_sandbox = False
    stop_strings: tuple[str, ...] = ()
    system_prompt: str | None = None
    levels: tuple[int, ...] = (0,)  # consecutive; a task without a level asked for is of any of them
    num_eval = 64  # held-out tasks at most
    max_turns = 8  # answers of a rollout at most
    answer_key = "answer"  # of a problem: what the prompt must not say

    def __init_subclass__(cls) -> None:
        if not cls.name:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()

    def __init__(self, settings: Any, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self._eval: list[Problem] | None = None

    # --- what a subclass writes

    def problem(self, rng: random.Random, level: int) -> dict[str, Any]:
        """Return a problem as JSON values, drawn with `rng` alone; `question` and `answer` are known keys."""
        raise NotImplementedError(f"{type(self).__name__} must have: def problem(self, rng, level)")

    def question(self, task: Task) -> str:
        """Return what the policy is asked."""
        return str(task.payload["question"])

    def tools(self, task: Task, state: dict[str, Any], sandbox: Sandbox) -> Callables:
        """Return functions that the policy may call; what they put into `state` is there for the reward."""
        return ()

    def reward(self, task: Task, outcome: dict[str, Any]) -> Any:
        """Return the reward of `outcome`: `answer`, `state`, `ended`, `num_calls`.

        It is a number, true or false, (number, reason), or a Reward. Either plain, then it runs in a thread
        of its own, or async.
        """
        return float(outcome["answer"].strip() == str(task.payload[self.answer_key]))

    # --- what the host calls

    def num_tasks(self, split: str) -> int | None:
        """Train tasks have no end."""
        return len(self._held_out) if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position; `level` applies to train tasks."""
        check_position(split, index, self.num_tasks(split))
        check_level(level, range(self._levels[0], self._levels[-1] + 1))
        if split == "eval":
            problem = self._held_out[index]
        else:
            levels = self._levels if level is None else (level,)
            problem = draw_train(self.name, self.seed, index, lambda rng: self._draw(rng, levels))
        return Task(task_id(split, index, level), split, problem.level, problem.payload)

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the one message of a task."""
        return [Message("user", self.question(task))]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Let the policy call tools until it answers."""
        state: dict[str, Any] = {}
        tools = self.tools(task, state, sandbox)
        talk = await run_tools(chat, self.prompt(task), tools, max_turns=self.max_turns)
        answer = talk.answer if tools else talk.reply.message.content
        told = {"answer": answer, "state": state, "ended": talk.ended, "num_calls": talk.num_calls}
        return Outcome(told | {"num_refused": talk.num_refused})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Ask `reward`, with how often tools were called as metrics."""
        if inspect.iscoroutinefunction(self.reward):
            value = await self.reward(task, outcome.data)
        else:
            value = await in_thread(
                f"{self.name}'s reward", lambda: self.reward(task, outcome.data), raised=RewardFault
            )
        reward = as_reward(f"of {self.name}", value)
        if isinstance(value, Reward):
            return reward
        calls = {
            "num_calls": float(outcome.data["num_calls"]),
            "num_refused": float(outcome.data["num_refused"]),
        }
        return replace(reward, metrics=calls)

    @property
    def _levels(self) -> tuple[int, ...]:
        levels = cast("object", self.levels)  # a subclass may have written anything
        if not isinstance(levels, tuple) or not levels:
            raise EnvironmentSetupError(
                f"levels of {type(self).__name__} must be a tuple of consecutive integers",
                value=self.levels,
                remedy="Write levels = (1, 2, 3) for three",
                key="environment.name",
            )
        return self.levels

    @property
    def _held_out(self) -> list[Problem]:
        if self._eval is None:
            self._eval = draw_eval(self.name, self.num_eval, lambda rng: self._draw(rng, self._levels))
        return self._eval

    def _draw(self, rng: random.Random, levels: Sequence[int]) -> Problem:
        level = rng.choice(levels)
        payload = self.problem(rng, level)
        return Problem((json.dumps(payload, sort_keys=True, default=repr),), level, payload)
