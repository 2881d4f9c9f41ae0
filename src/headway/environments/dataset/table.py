"""Every row looked at once: what it asks, its answer and level, and which split it is in."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from headway.core.errors import ConfigError, EnvironmentSetupError, UserError
from headway.core.near import did_you_mean, nearest
from headway.core.records import Message
from headway.environments.dataset.rows import MAX_PROBLEMS, Rows, read_rows
from headway.environments.dataset.settings import ANSWER_COLUMNS, PROMPT_COLUMNS, DatasetSettings
from headway.rewards.patterns import compiled, last_match

_ROLES: dict[Any, Literal["system", "user", "tool"]] = {"system": "system", "user": "user", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class Columns:
    """Which column is what; "" for none."""

    prompt: str
    answer: str


@dataclass(slots=True)
class Part:
    """The rows of one split, in their order."""

    rows: Rows
    order: list[int] = field(default_factory=list[int])  # positions in `rows`
    levels: list[int] = field(default_factory=list[int])  # of each
    by_level: dict[int, list[int]] = field(default_factory=dict[int, list[int]])  # level -> places in `order`


@dataclass(slots=True)
class _Seen:
    """What a row is, without the row."""

    index: int
    level: int
    digest: bytes  # of what it asks
    split: str  # what split_column says, "" without one


class Table:
    """The data of an environment."""

    def __init__(self, settings: DatasetSettings, seed: int, needs_answer: bool) -> None:
        self._settings = settings
        self._needs_answer = needs_answer
        self.num_dropped = 0  # as duplicates
        self.num_long = 0  # left out by max_prompt_chars
        source = settings.hub_config, settings.revision
        rows = read_rows(settings.data, settings.split, "train", *source, "data")
        self.columns = self._columns(rows)
        seen = self._look(rows)
        if settings.eval_data or settings.eval_split:
            key = "eval_data" if settings.eval_data else "eval_split"
            other = settings.eval_data or settings.data
            held_out = read_rows(other, settings.eval_split, "test", *source, key)
            train, evals = seen, self._look(held_out)
        else:
            held_out = rows
            is_eval = self._by_column if settings.split_column else self._by_share
            train = [one for one in seen if not is_eval(one)]
            evals = [one for one in seen if is_eval(one)]
        if settings.duplicates == "drop":
            evals = self._without_repeats(evals, set())
            train = self._without_repeats(train, {one.digest for one in evals})
        if settings.shuffle:
            random.Random(f"dataset/{seed}").shuffle(train)
            random.Random("dataset/eval").shuffle(evals)
        self.train = _part(rows, train)
        self.eval = _part(held_out, evals[: settings.num_eval or None])
        if not self.train.order:
            raise EnvironmentSetupError(
                "the data must hold a row to train on",
                value=len(rows),
                remedy="All are held out or left out: look at split_column, eval_share, max_prompt_chars",
                key="environment.args.data",
            )

    def messages(self, row: dict[str, Any]) -> list[Message]:
        """Return the prompt of a row; raises UserError, without a place, where it has none."""
        if self._settings.template:
            try:
                return [Message("user", self._settings.template.format_map(row))]
            except KeyError as error:
                remedy = did_you_mean(nearest(str(error.args[0]), row)) or f"It has {', '.join(row)}"
                raise UserError(f"a row must have the column {error} of template", remedy=remedy) from None
            except (ValueError, IndexError, AttributeError, TypeError) as error:
                raise UserError(
                    f"template does not fit the row: {error}", remedy="Use {column} only"
                ) from None
        name = self.columns.prompt
        if name not in row:
            raise UserError(f"a row must have the column {name}", value=list(row), remedy=_near(name, row))
        value: Any = row[name]
        if isinstance(value, str) and value.strip():
            return [Message("user", value)]
        if isinstance(value, list) and value:
            entries = cast("list[Any]", value)
            if self._answers_itself(entries):
                entries = entries[:-1]
            return [_message(entry, at) for at, entry in enumerate(entries)]
        remedy = "Leave the row out, or write its prompt"
        shown = str(row[name])[:80]
        raise UserError(f"{name} must be a text, or a list of messages", value=shown, remedy=remedy)

    def answer(self, row: dict[str, Any]) -> Any:
        """Return the right answer of a row, None without one; raises UserError, without a place."""
        name, value = self.columns.answer, None
        if name:
            value = row.get(name)
        elif isinstance(entries := row.get(self.columns.prompt), list):
            entries = cast("list[Any]", entries)
            value = entries[-1].get("content") if self._answers_itself(entries) else None
        if value is None:
            if self._needs_answer:
                rule = f"a row must have the right answer in the column {name or 'answer'}"
                raise UserError(rule, value=list(row), remedy=_near(name or "answer", row))
            return None
        if self._settings.answer_pattern and isinstance(value, str):
            found = last_match(compiled(self._settings.answer_pattern), value)
            if found is None:
                rule = f"{name} must match answer_pattern"
                raise UserError(rule, value=value[-80:], remedy="Mend the pattern, or leave the row out")
            return found[1]
        return value

    def _answers_itself(self, entries: list[Any]) -> bool:
        last = entries[-1] if entries else None
        return isinstance(last, dict) and cast("dict[str, Any]", last).get("role") == "assistant"

    def _columns(self, rows: Rows) -> Columns:
        """Return the columns that are not named, from the first row."""
        settings = self._settings
        first: dict[str, Any] = rows.row(0) if len(rows) else {}
        if not first:
            rule = "the data must hold rows"
            remedy = "Give a file with a row at least"
            raise EnvironmentSetupError(rule, value=settings.data, remedy=remedy, key="environment.args.data")
        for key in ("prompt", "answer", "level", "split_column"):
            name: str = getattr(settings, key)
            if name and name not in first:
                raise EnvironmentSetupError(
                    f"the data has no column {name}",
                    value=list(first),
                    remedy=did_you_mean(nearest(name, first)) or "Name one of these",
                    key=f"environment.args.{key}",
                )
        prompt = settings.prompt or next((name for name in PROMPT_COLUMNS if name in first), "")
        if not (prompt or settings.template):
            raise EnvironmentSetupError(
                f"no column of the data is called {', '.join(PROMPT_COLUMNS)}",
                value=list(first),
                remedy="Name the column of the prompt: environment.args.prompt=COLUMN",
                key="environment.args.prompt",
            )
        answer = settings.answer or next((n for n in ANSWER_COLUMNS if n in first and n != prompt), "")
        return Columns(prompt, answer)

    def _look(self, rows: Rows) -> list[_Seen]:
        """Check every row.

        Raises ConfigError with those that are wrong, up to MAX_PROBLEMS of them.
        """
        found: list[_Seen] = []
        problems: list[UserError] = []
        num_problems, settings = 0, self._settings
        for index in range(len(rows)):
            try:
                row = rows.row(index)
                messages = self.messages(row)
                self.answer(row)
                level = self._level(row)
                split = str(_column(row, settings.split_column)) if settings.split_column else ""
            except UserError as error:
                num_problems += 1
                error.where = error.where or rows.place(index)
                if len(problems) < MAX_PROBLEMS:
                    problems.append(error)
                continue
            text = "\0".join(f"{message.role}\1{' '.join(message.content.split())}" for message in messages)
            if settings.max_prompt_chars and len(text) > settings.max_prompt_chars:
                self.num_long += 1
                continue
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
            found.append(_Seen(index, level, digest, split))
        if num_problems > MAX_PROBLEMS:
            rule = f"{num_problems - MAX_PROBLEMS} more rows are wrong"
            problems.append(UserError(rule, remedy="Mend those above first", where=settings.data))
        if problems:
            raise ConfigError(problems)
        return found

    def _level(self, row: dict[str, Any]) -> int:
        settings = self._settings
        if not settings.level:
            return 0
        value = _column(row, settings.level)
        if settings.level_names:
            if str(value) not in settings.level_names:
                names = ", ".join(settings.level_names)
                raise UserError(
                    f"{settings.level} must be one of {names}", value=value, remedy="Add it to level_names"
                )
            return settings.level_names.index(str(value)) + 1
        if isinstance(value, bool) or not isinstance(value, int):
            remedy = "Name the levels in their order: environment.args.level_names"
            raise UserError(f"{settings.level} must be an integer", value=value, remedy=remedy)
        return value

    def _by_column(self, one: _Seen) -> bool:
        return one.split in self._settings.eval_values

    def _by_share(self, one: _Seen) -> bool:
        return int.from_bytes(one.digest[:6], "big") < self._settings.eval_share * 2**48

    def _without_repeats(self, rows: list[_Seen], taken: set[bytes]) -> list[_Seen]:
        kept: list[_Seen] = []
        for one in rows:
            if one.digest in taken:
                self.num_dropped += 1
                continue
            taken.add(one.digest)
            kept.append(one)
        return kept


def _part(rows: Rows, seen: Sequence[_Seen]) -> Part:
    part = Part(rows)
    for place, one in enumerate(seen):
        part.order.append(one.index)
        part.levels.append(one.level)
        part.by_level.setdefault(one.level, []).append(place)
    return part


def _column(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise UserError(f"a row must have the column {name}", value=list(row), remedy=_near(name, row))
    return row[name]


def _near(name: str, row: dict[str, Any]) -> str:
    if name in row:
        return "It is null there: leave the row out, or write it"
    return did_you_mean(nearest(name, row)) or "Leave the row out, or name another column"


def _message(entry: Any, index: int) -> Message:
    if not isinstance(entry, dict):
        rule = f"message {index} must be an object with role and content"
        raise UserError(rule, value=entry, remedy='Write {"role": "user", "content": "..."}')
    values = cast("dict[str, Any]", entry)
    role, content = values.get("role"), values.get("content")
    if role not in _ROLES:
        rule = f"the role of message {index} of a prompt must be one of {', '.join(_ROLES)}"
        remedy = (
            "An answer may stand last only, where it is the right one; write examples into the user's message"
        )
        raise UserError(rule, value=role, remedy=remedy)
    if not isinstance(content, str):
        rule = f"the content of message {index} must be a text"
        raise UserError(rule, value=type(content).__name__, remedy="Write content as one string")
    return Message(_ROLES[role], content)
