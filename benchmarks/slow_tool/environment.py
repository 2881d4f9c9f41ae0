"""An environment whose rollouts wait for a tool: most calls are short, a few take very long."""

from __future__ import annotations

import asyncio
import hashlib
import random
from dataclasses import dataclass
from typing import Literal

from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class SlowToolSettings:
    """How long tools take and how long answers are."""

    tool_s: float = setting(1.0, "Mean duration of a call, seconds.", ge=0)
    sigma: float = setting(
        1.5, "Of its logarithm; 1.5 makes one call in a hundred take thirty times the median or more.", ge=0
    )
    answer_tokens: int = setting(32, "Most tokens of each answer.", ge=1)


class SlowTool:
    """Three answers with a tool call after each; the reward is a coin that the text tosses."""

    name = "slow-tool"
    settings_type = SlowToolSettings
    resume: Literal["replay", "snapshot", "restart"] = "restart"
    needs_sandbox = False
    stop_strings: tuple[str, ...] = ()
    system_prompt: str | None = None

    def __init__(self, settings: SlowToolSettings, seed: int) -> None:
        """Tasks differ by their number alone."""
        self._settings = settings

    def num_tasks(self, split: str) -> int | None:
        """Without end."""
        return None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task of a number."""
        return Task(f"{split}/{index}", split, 0)

    def prompt(self, task: Task) -> list[Message]:
        """Return the first message."""
        return [Message("user", f"Say something of number {task.id}.")]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Answer, wait, three times."""
        text = ""
        messages = self.prompt(task)
        for _ in range(3):
            reply = await chat.say(messages, max_tokens=self._settings.answer_tokens)
            text += reply.text
            sigma = self._settings.sigma
            await asyncio.sleep(self._settings.tool_s * random.lognormvariate(-0.5 * sigma**2, sigma))
            messages = [Message("user", "Go on.")]
        return Outcome({"text": text})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Toss the coin."""
        return Reward(float(hashlib.sha256(outcome.data["text"].encode()).digest()[0] % 2))
