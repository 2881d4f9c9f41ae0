"""The environments `reasoning-gym:NAME`: one question of a dataset, judged by the dataset's own verifier.

The library makes tasks and judges answers in processes of their own (child.py): whatever it does there, or
the answer that it evaluates, holds up no event loop, and one that does not end is ended. What it raises is a
failed score, never a reward. A reply without an answer scores 0 without asking the library.

Levels are those of the dataset's curriculum, all of its attributes at once, from 1; level 0 is the library's
default. A level contains the easier ones where the library has it so.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from headway.core.errors import EnvironmentSetupError
from headway.core.near import did_you_mean, nearest
from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.environments.reasoning_gym.draws import Drawn, Splits
from headway.environments.reasoning_gym.names import PREFIX, check_name, known_datasets
from headway.environments.reasoning_gym.process import LibraryProcess
from headway.environments.reasoning_gym.settings import ReasoningGymSettings
from headway.environments.tasks import check_position, source_of, task_id
from headway.rewards.check import checked

_TAGS = "Think step by step, then give only the final answer between <answer> and </answer>."
_REPLY = "Reply with the answer only."
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MAX_KEPT = 4096  # tasks that need not be made again for the rest of their group, and for their score
_SAME_ANSWER = ("sentence_reordering", "emoji_mystery", "letter_jumble", "caesar_cipher")
"""Datasets that pose one problem in many guises: what is asked for makes it the same."""
_SAME_METADATA = {"arc_agi": "task_id", "rearc": "task_id"}
"""Likewise: the named value of the item's metadata does."""


class _Made(NamedTuple):
    drawn: Drawn
    task: Task


class ReasoningGym:
    """One question of a dataset of the library reasoning-gym, judged by its own verifier."""

    dataset = ""  # set by `named`
    name = "reasoning-gym"
    settings_type = ReasoningGymSettings
    resume: Literal["replay", "snapshot", "restart"] = "replay"
    needs_sandbox = False
    stop_strings: tuple[str, ...]
    system_prompt: str | None

    def __init__(self, settings: ReasoningGymSettings, seed: int) -> None:
        self._settings = settings
        self.stop_strings = ("</answer>",) if settings.answer_in == "tags" else ()
        self.system_prompt = settings.system or None
        self._maker = LibraryProcess(self.dataset, settings.config)
        self._judges = [LibraryProcess(self.dataset, settings.config) for _ in range(settings.verifiers)]
        self._turn = itertools.cycle(self._judges)
        self._last: tuple[Drawn | None, dict[str, Any]] = None, {}  # the item that was made last
        self._kept: OrderedDict[tuple[str, int, int | None], _Made] = OrderedDict()
        known = self._maker.ask("levels", settings.task_timeout_s)
        self.num_levels = int(known["num_levels"])
        self._check_config(known["parameters"])
        levels = settings.levels or (0,)
        for level in levels:
            self._check_level(level)
        self._splits = Splits(self.name, seed, levels, settings.num_eval, self._make)

    def close(self) -> None:
        """End the library's processes; another task or score starts them anew."""
        for child in (self._maker, *self._judges):
            child.close()

    def num_tasks(self, split: str) -> int | None:
        """Train tasks have no end."""
        return len(self._splits.evals) if split == "eval" else None

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task at a position; `level` applies to train tasks."""
        return self._made(split, index, level).task

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the question, and how to answer."""
        settings = self._settings
        instruction = settings.instruction
        if instruction is None:
            instruction = _TAGS if settings.answer_in == "tags" else _REPLY
        return [Message("user", "\n\n".join(filter(None, [str(task.payload["question"]), instruction])))]

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Ask once."""
        reply = await chat.say(self.prompt(task))
        return Outcome({"reply": reply.text, "answer": self._answer(reply.text)})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Let the library judge the answer."""
        answer = outcome.data["answer"]
        if answer is None:
            return checked(Reward(0.0, ("the reply holds no <answer>...</answer>",)))
        split, index, *level = task.id[len(source_of(task.id)) :].lstrip(":").split("/")
        drawn = self._made(split, int(index), int(level[0]) if level else None).drawn
        limit_s = self._settings.verifier_timeout_s
        found = await asyncio.to_thread(
            next(self._turn).ask,
            "score",
            limit_s,
            level=drawn.level,
            draw=drawn.draw,
            answer=answer,
            question=task.payload["question"],
        )
        expected = task.payload["answer"]
        reason = f"the answer was {_short(answer)}"
        if expected is not None:
            reason += f"; {_short(str(expected))} is a right one"
        return checked(Reward(float(found["score"]), (reason,)))

    def _answer(self, reply: str) -> str | None:
        if self._settings.answer_in == "reply":
            return reply.strip()
        found = _TAGGED.findall(reply)
        return found[-1].strip() if found else None

    def _made(self, split: str, index: int, level: int | None) -> _Made:
        kept = self._kept.get((split, index, level))
        if kept is not None:
            self._kept.move_to_end((split, index, level))
            return kept
        check_position(split, index, self.num_tasks(split))
        if level is not None:
            self._check_level(level)
        drawn = self._splits.evals[index] if split == "eval" else self._splits.train(index, level)
        if drawn != self._last[0]:
            self._make(drawn.level, drawn.draw)
        payload = self._last[1]
        made = _Made(drawn, Task(task_id(split, index, level), split, drawn.level, payload))
        self._kept[split, index, level] = made
        if len(self._kept) > _MAX_KEPT:
            self._kept.popitem(last=False)
        return made

    def _make(self, level: int, draw: int) -> str:
        """Have an item made and return its key."""
        named = _SAME_METADATA.get(self.dataset, "")
        limit_s = self._settings.task_timeout_s
        item = self._maker.ask("item", limit_s, level=level, draw=draw, named=[named])
        asked = item["question"]
        if self.dataset in _SAME_ANSWER and item["answer"]:
            asked = item["answer"]
        key = " ".join(str(item["metadata"].get(named, asked)).split())
        self._last = Drawn(level, draw, key), {"question": item["question"], "answer": item["answer"]}
        return key

    def _check_config(self, parameters: list[str]) -> None:
        for name in self._settings.config:
            if name not in parameters:
                guess = did_you_mean(nearest(name, parameters))
                raise EnvironmentSetupError(
                    f"reasoning-gym's {self.dataset} has no such parameter",
                    value=name,
                    remedy=guess or f"It has {', '.join(parameters) or 'none'}",
                    key=f"environment.args.config.{name}",
                )

    def _check_level(self, level: int) -> None:
        if not 0 <= level <= self.num_levels:
            what = f"0 to {self.num_levels}" if self.num_levels else "0, for it has no curriculum"
            raise EnvironmentSetupError(
                f"a level of {self.name} is {what}",
                value=level,
                remedy="`headway env list reasoning-gym` shows the levels of each dataset",
                key="environment.args.levels",
            )


def named(name: str) -> type[ReasoningGym]:
    """Return the environment of a dataset; `name` has the prefix.

    Raises EnvironmentSetupError when there is no such dataset.
    """
    dataset = name.removeprefix(PREFIX)
    if dataset != "NAME":  # which stands for all of them where they are listed
        check_name(dataset)
    return type(
        "ReasoningGym", (ReasoningGym,), {"dataset": dataset, "name": name, "__doc__": ReasoningGym.__doc__}
    )


def members() -> list[tuple[str, str]]:
    """Return every dataset by its full name, with its levels and what is to be known of it."""
    return [(f"{PREFIX}{one.name}", one.in_words()) for one in known_datasets().values()]


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
