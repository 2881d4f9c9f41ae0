"""An environment in which a rollout is lost early: sums in a row, scored only when all are right."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class SumsSettings:
    """What `[environment.args]` may set."""

    num_sums: int = setting(3, "Sums in a row; the score is 1 only when all are right.", ge=1, le=8)
    num_eval: int = setting(32, "Held-out tasks.", ge=1)


class Sums:
    """Several sums in one conversation; all must be right."""

    name = "sums"
    settings_type = SumsSettings
    resume: Literal["replay", "snapshot", "restart"] = "restart"
    needs_sandbox = False
    stop_strings: tuple[str, ...] = ()
    system_prompt: str | None = None

    def __init__(self, settings: SumsSettings, seed: int) -> None:
        """`seed` is the run's."""
        self._settings = settings
        self._seed = seed

    def num_tasks(self, split: str) -> int | None:
        """Train tasks have no end."""
        return self._settings.num_eval if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position."""
        rng = random.Random(f"sums/{split}/{0 if split == 'eval' else self._seed}/{index}")
        sums = [[rng.randrange(10), rng.randrange(10)] for _ in range(self._settings.num_sums)]
        return Task(f"{split}/{index}", split, 1, {"sums": sums})

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the first sum."""
        a, b = task.payload["sums"][0]
        return [Message("user", f"{a}+{b}=")]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Ask for one sum after another, whatever is answered."""
        answers: list[str] = []
        for a, b in task.payload["sums"]:
            reply = await chat.say([Message("user", f"{a}+{b}=")])
            answers.append(reply.text)
        return Outcome({"answers": answers})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """1 when every answer is right."""
        pairs = zip(task.payload["sums"], outcome.data["answers"], strict=True)
        right = sum(answer.strip() == str(a + b) for (a, b), answer in pairs)
        return Reward(float(right == len(task.payload["sums"])), (f"{right} right",), {"right": float(right)})
