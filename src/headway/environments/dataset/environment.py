"""The environment `dataset`: one turn for each row of a data set, judged against the row.

The rows are all looked at when the environment is built: what is wrong is told with file and line before
anything is generated. A task's payload is its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from headway.core.errors import ConfigError, EnvironmentSetupError, UserError
from headway.core.protocols import Chat, Outcome, Sandbox
from headway.core.records import Message, Reward, Task
from headway.environments.dataset.rewards import OwnReward, check_answer, judge, run_tests
from headway.environments.dataset.settings import VERIFIERS, DatasetSettings
from headway.environments.dataset.table import Part, Table
from headway.environments.tasks import check_position, task_id
from headway.rewards.check import checked
from headway.rewards.patterns import compiled, last_match

_MAX_PROBLEMS = 10


class Dataset:
    """One turn for each row of a file or of a Hugging Face dataset; a verifier or your function scores."""

    name = "dataset"
    settings_type = DatasetSettings
    resume: Literal["replay", "snapshot", "restart"] = "replay"
    needs_sandbox: bool
    stop_strings: tuple[str, ...]
    system_prompt: str | None

    def __init__(self, settings: DatasetSettings, seed: int) -> None:
        self._settings = settings
        self.needs_sandbox = settings.needs_sandbox
        self.stop_strings = settings.stop
        self.system_prompt = settings.system or None
        self._own = None if settings.reward in VERIFIERS else OwnReward(settings.reward)
        self._table = Table(settings, seed, needs_answer=self._own is None)
        if self._own is None:
            self._check_answers()

    @property
    def num_dropped(self) -> int:
        """Rows that were left out as duplicates."""
        return self._table.num_dropped

    def num_tasks(self, split: str) -> int | None:
        """Rows of a split."""
        return len(self._part(split).order)

    def task(self, split: str, index: int, level: int | None) -> Task:
        """Return the task of a row; of a level that is asked for, its rows go round and round."""
        check_position(split, index, self.num_tasks(split))
        part, place = self._part(split), index
        if level is not None:
            of_level = part.by_level.get(level)
            if not of_level:
                have = ", ".join(map(str, sorted(part.by_level)))
                raise EnvironmentSetupError(
                    f"the data has no {split} row of this level; it has {have}",
                    value=level,
                    remedy="Name the column of levels (environment.args.level), or choose one of these",
                )
            place = of_level[index % len(of_level)]
        row = part.rows.row(part.order[place])
        return Task(task_id(split, index, level), split, part.levels[place], row)

    def place(self, split: str, index: int) -> str:
        """Return where the row of a task is, for messages."""
        part = self._part(split)
        return part.rows.place(part.order[index])

    def asks(self, task: Task) -> str:
        """Return what a task asks, for the check of duplicates."""
        return "\n".join(" ".join(message.content.split()) for message in self.prompt(task))

    def prompt(self, task: Task) -> Sequence[Message]:
        """Return the row's messages."""
        return self._table.messages(task.payload)

    async def rollout(self, task: Task, chat: Chat, sandbox: Sandbox) -> Outcome:
        """Ask once."""
        messages = self.prompt(task)
        reply = await chat.say(messages, max_tokens=self._settings.max_tokens or None)
        return Outcome({"reply": reply.text})

    async def score(self, task: Task, outcome: Outcome, sandbox: Sandbox) -> Reward:
        """Judge the answer in the reply."""
        answer = str(outcome.data["reply"])
        if self._settings.reply_pattern:
            found = last_match(compiled(self._settings.reply_pattern), answer)
            if found is None:
                return checked(Reward(0.0, ("the reply does not match reply_pattern",)))
            answer = found[1] or ""
        if self._own is not None:
            return checked(await self._own(answer, dict(task.payload)))
        value = self._table.answer(task.payload)
        if self.needs_sandbox:
            return checked(await run_tests(answer, value, sandbox))
        return checked(judge(self._settings.reward, answer, value))

    def _part(self, split: str) -> Part:
        return self._table.eval if split == "eval" else self._table.train

    def _check_answers(self) -> None:
        """Raise ConfigError when the verifier cannot use the right answer of a row."""
        problems: list[UserError] = []
        for part in (self._table.train, self._table.eval):
            for index in part.order:
                value: Any = self._table.answer(part.rows.row(index))
                try:
                    check_answer(self._settings.reward, value)
                except UserError as error:
                    error.where = part.rows.place(index)
                    problems.append(error)
                    if len(problems) == _MAX_PROBLEMS:
                        raise ConfigError(problems) from None
        if problems:
            raise ConfigError(problems)
