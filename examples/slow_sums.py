"""Sums whose answers a slow tool looks at: most calls are short, a few take very long."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class SlowSumsSettings:
    """What `[environment.args]` may set."""

    tool_s: float = setting(0.5, "Mean duration of a tool call, seconds.", ge=0)
    sigma: float = setting(1.2, "Of its logarithm: 0 makes all alike, 1.2 some very long.", ge=0)
    num_calls: int = setting(2, "Calls of a rollout, one after each answer.", ge=1)
    num_eval: int = setting(32, "Held-out tasks.", ge=1)


class SlowSums:
    """The same sum is asked again after each call of the tool; the last answer counts."""

    name = "slow-sums"
    settings_type = SlowSumsSettings
    resume: Literal["replay", "snapshot", "restart"] = "restart"
    needs_sandbox = False
    stop_strings: tuple[str, ...] = ()
    system_prompt: str | None = None

    def __init__(self, settings: SlowSumsSettings, seed: int) -> None:
        """`seed` is the run's."""
        self._settings = settings
        self._seed = seed

    def num_tasks(self, split: str) -> int | None:
        """Train tasks have no end."""
        return self._settings.num_eval if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position."""
        rng = random.Random(f"slow-sums/{split}/{0 if split == 'eval' else self._seed}/{index}")
        return Task(f"{split}/{index}", split, 1, {"a": rng.randrange(20), "b": rng.randrange(20)})

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the one message of a task."""
        return [Message("user", f"{task.payload['a']}+{task.payload['b']}=")]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Answer and wait, as often as the tool is called."""
        mean_s, sigma = self._settings.tool_s, self._settings.sigma
        answer = ""
        for _ in range(self._settings.num_calls):
            answer = (await chat.say(self.prompt(task))).text
            await asyncio.sleep(mean_s * random.lognormvariate(-0.5 * sigma**2, sigma))
        return Outcome({"answer": answer})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """1 for the right number."""
        return Reward(float(outcome.data["answer"].strip() == str(task.payload["a"] + task.payload["b"])))
