"""An environment of your own: say a number backwards.

One turn with an answer that can be checked: `84=` is answered right by `48`. Everything that Headway asks of
an environment is in this file. From the root of the repository:

    headway env try examples/own_environment/reverse.py --model tiny
    headway train examples/own_environment/reverse.toml
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class ReverseSettings:
    """What `[environment.args]` may set; unknown keys, wrong types and values out of bounds are refused."""

    digits: int = setting(2, "Digits of a number.", ge=1, le=6)
    num_eval: int = setting(32, "Held-out tasks.", ge=1)


class Reverse:
    """One turn: say a number backwards."""

    name = "reverse"
    settings_type = ReverseSettings
    resume: Literal["replay", "snapshot", "restart"] = "restart"  # after a crash a rollout starts again
    needs_sandbox = False  # True: whether sandboxes work here is checked before anything is generated
    stop_strings: tuple[str, ...] = ()  # text that ends an answer, beside the model's own end-of-turn token
    system_prompt: str | None = None  # None leaves it to the chat template

    def __init__(self, settings: ReverseSettings, seed: int) -> None:
        """`seed` is the run's."""
        self._settings = settings
        self._seed = seed

    def num_tasks(self, split: str) -> int | None:
        """Return how many tasks a split has; there is no end of train tasks."""
        return self._settings.num_eval if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position: the same one in every process and after every restart."""
        # Numbers whose digits sum to a multiple of four are held out, so none is in both splits. The held-out
        # tasks do not depend on the seed: runs with different seeds are measured on the same ones.
        held_out = split == "eval"
        rng = random.Random(f"{self.name}/eval/{index}" if held_out else f"{self.name}/{self._seed}/{index}")
        number = ""
        while not number or (sum(map(int, number)) % 4 == 0) != held_out:
            number = "".join(rng.choices("123456789", k=self._settings.digits))
        return Task(f"{split}/{index}", split, self._settings.digits, {"number": number})

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the first messages; before a run their length is checked against the context."""
        return [Message("user", f"{task.payload['number']}=")]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Let the policy act; its tokens are recorded by `chat`. The outcome holds JSON values only."""
        reply = await chat.say(self.prompt(task))
        return Outcome({"answer": reply.text})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Judge what the rollout left: a finite score, and reasons for people."""
        wanted = str(task.payload["number"])[::-1]
        answer = str(outcome.data["answer"]).strip()
        right = sum(ours == theirs for ours, theirs in zip(answer, wanted, strict=False)) / len(wanted)
        score = right if len(answer) <= len(wanted) else 0.0
        return Reward(score, (f"{wanted} was expected, the answer was {answer[:40]!r}",))
