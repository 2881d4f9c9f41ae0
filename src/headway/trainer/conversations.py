"""Conversations in a JSONL file, read and checked, as training samples. No torch.

A line is one JSON object: `messages` (role and content), or `prompt` and `completion` (each a text, or
messages), beside them `weight`. A line that has `token_ids` and `trainable`, as those of `headway rollouts
--jsonl` have, is taken with exactly these tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from headway.core.errors import ConfigError, UserError
from headway.core.json_lines import text_lines
from headway.renderers.written import cut
from headway.trainer.conversation_line import sample_of_line

if TYPE_CHECKING:
    from pathlib import Path

    from headway.core.records import TrainingSample
    from headway.renderers.chat import Renderer

MAX_PROBLEMS = 10  # told at once


@dataclass(frozen=True, slots=True)
class Reading:
    """How a file is read."""

    train_on: Literal["all", "last"]
    max_tokens: int
    too_long: Literal["error", "skip", "cut"]
    vocab: int  # token ids of the model


class Conversation(NamedTuple):
    """One row to train on."""

    place: str  # file:line
    sample: TrainingSample
    weight: float  # of its tokens in the loss, above 0


@dataclass(slots=True)
class Conversations:
    """What a file holds."""

    rows: list[Conversation] = field(default_factory=list[Conversation])
    num_cut: int = 0  # whose end was left out
    num_skipped: int = 0  # too long
    num_left_out: int = 0  # of weight 0, or a rollout without tokens


def read_conversations(path: Path, renderer: Renderer, reading: Reading, *, key: str) -> Conversations:
    """Read a whole file.

    Args:
        path: JSONL, UTF-8; empty lines are passed over.
        renderer: of the model.
        reading: how.
        key: the config's key that names the file, for messages.

    Raises:
        UserError: the file cannot be read, or nothing in it can be trained.
        ConfigError: with every line that is wrong, up to MAX_PROBLEMS of them.
    """
    found, problems, num_problems = Conversations(), list[UserError](), 0
    for number, line in text_lines(path, key):
        place = f"{path.name}:{number}"
        try:
            _take(line, place, renderer, reading, found)
        except UserError as error:
            error.where = f"{path}:{number}"
            num_problems += 1
            if num_problems <= MAX_PROBLEMS:
                problems.append(error)
    if num_problems > MAX_PROBLEMS:
        rule = f"{num_problems - MAX_PROBLEMS} more lines are wrong"
        problems.append(UserError(rule, remedy="Mend those above first", where=str(path)))
    if problems:
        raise ConfigError(problems)
    if not found.rows:
        left = f"; {found.num_skipped} were too long" if found.num_skipped else ""
        rule = f"{path} must hold a conversation that can be trained{left}"
        raise UserError(
            rule, remedy='A line is {"messages": [...]} or {"prompt": "...", "completion": "..."}', key=key
        )
    return found


def _take(line: str, place: str, renderer: Renderer, reading: Reading, found: Conversations) -> None:
    """Add what a line holds."""
    taken = sample_of_line(line, renderer, reading.train_on, reading.vocab)
    if taken is None:
        found.num_left_out += 1
        return
    sample, weight = taken
    if (num := len(sample.token_ids)) > reading.max_tokens:
        if reading.too_long == "error":
            rule = f"a conversation must have at most {reading.max_tokens} tokens"
            remedy = 'sft.too_long = "skip" leaves it out, "cut" its end; sft.max_tokens is the limit'
            raise UserError(rule, value=num, remedy=remedy)
        sample = cut(sample, reading.max_tokens)
        if reading.too_long == "skip" or sample.num_trainable == 0:
            found.num_skipped += 1
            return
        found.num_cut += 1
    found.rows.append(Conversation(place, sample, weight))
