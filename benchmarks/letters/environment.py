"""One answer to a prompt of a given length; the reward is the share of its characters in `a` to `m`.

The reward is smooth: of eight sampled answers hardly ever all have the same share, so no group is without
signal. Prompts come from a file, so that another trainer can be given the same ones in the same order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.core.settings import setting


def letter_share(text: str) -> float:
    """Return the share of a text's characters that are among the first half of the small letters."""
    return sum("a" <= character <= "m" for character in text) / max(1, len(text))


@dataclass(frozen=True, slots=True)
class LettersSettings:
    """Where the prompts are."""

    prompts: str = setting("", "A JSON list of texts; task i is text i, from the start again at its end.")


class Letters:
    """One turn: the more small letters from a to m, the better."""

    name = "letters"
    settings_type = LettersSettings
    resume: Literal["replay", "snapshot", "restart"] = "restart"
    needs_sandbox = False
    stop_strings: tuple[str, ...] = ()
    system_prompt: str | None = None

    def __init__(self, settings: LettersSettings, seed: int) -> None:
        """Tasks do not depend on the seed."""
        self._prompts: list[str] = json.loads(Path(settings.prompts).read_text(encoding="utf-8"))

    def num_tasks(self, split: str) -> int | None:
        """Train tasks without end; the benchmark evaluates nothing."""
        return 1 if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the prompt at a position."""
        return Task(f"{split}/{index}", split, 0, {"text": self._prompts[index % len(self._prompts)]})

    def prompt(self, task: Task) -> list[Message]:
        """Return the text as it is; the benchmark's chat template adds nothing."""
        return [Message("user", str(task.payload["text"]))]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Answer once."""
        reply = await chat.say(self.prompt(task))
        return Outcome({"text": reply.text})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Count letters."""
        return Reward(letter_share(str(outcome.data["text"])))
