"""One line of a JSONL file as training samples; the forms that it may have are in docs/sft.md. No torch."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from headway.core.errors import UserError
from headway.core.json_lines import json_object
from headway.core.near import did_you_mean, nearest
from headway.core.records import FLAGS, FLOATS, TOKENS, Message, TrainingSample
from headway.renderers.written import with_mask, written_sample
from headway.trainer.conversation_tools import calls_of, tools_of

if TYPE_CHECKING:
    from headway.renderers.chat import Renderer

_ROLES = ("system", "user", "assistant", "tool")
_OTHER_NAMES = {"human": "user", "gpt": "assistant", "model": "assistant", "bot": "assistant"}


def sample_of_line(
    line: str, renderer: Renderer, train_on: Literal["all", "last"], vocab: int
) -> tuple[TrainingSample, float] | None:
    """Return a line's sample, with a trained token, and its weight.

    None for a line that is left out: of weight 0, or a rollout of which `headway rollouts` had no tokens.

    Args:
        line: one JSON object.
        renderer: of the model.
        train_on: which of the assistant's messages are trained.
        vocab: token ids of the model.

    Raises UserError without a place.
    """
    row = json_object(line)
    if (weight := _weight(row)) == 0 or (row.get("missing") and not row.get("token_ids")):
        return None
    exact = "token_ids" in row
    sample = _exact(row, vocab) if exact else _written(row, renderer, train_on)
    if not sample.num_trainable:
        rule = "a conversation must have a trained token; here every message or token is left out"
        raise UserError(rule, remedy="Leave the line out, or train one of its answers")
    return sample, weight


def _weight(row: dict[str, Any]) -> float:
    weight = row.get("weight")
    if weight is None:
        return 1.0
    if isinstance(weight, bool) or not isinstance(weight, (int, float)):
        raise UserError("weight must be a number", value=weight, remedy="Leave it out for 1")
    if not (math.isfinite(weight) and weight >= 0):
        rule, remedy = "weight must be finite and at least 0", "Leave the line out, or give it a small weight"
        raise UserError(rule, value=weight, remedy=remedy)
    return float(weight)


def _written(row: dict[str, Any], renderer: Renderer, train_on: Literal["all", "last"]) -> TrainingSample:
    entries = _entries(row)
    messages = [_message(entry, index) for index, entry in enumerate(entries)]
    masked = {index for index, entry in enumerate(entries) if _is_masked(entry, index)}
    if "messages" not in row:  # a completion alone is trained
        masked |= set(range(len(entries) - _num_completion(row)))
    if not any(message.role == "assistant" for message in messages):
        rule = "a conversation must have a message of the assistant: that is what is trained"
        raise UserError(
            rule,
            value=[message.role for message in messages],
            remedy='Write {"messages": [{"role": ..., "content": ...}, ...]}; docs/sft.md has every form',
        )
    return written_sample(renderer, messages, train_on, masked, tools_of(row))


def _entries(row: dict[str, Any]) -> list[Any]:
    """Return the messages of a line in either form, unchecked."""
    if "messages" in row:
        messages = row["messages"]
        if not isinstance(messages, list) or not messages:
            raise UserError(
                "messages must be a list with a message",
                value=messages,
                remedy='Write {"messages": [{"role": ..., "content": ...}, ...]}; docs/sft.md has every form',
            )
        return cast("list[Any]", messages)
    missing = [name for name in ("prompt", "completion") if name not in row]
    if missing == ["prompt", "completion"]:
        near = next((nearest(name, ("messages", "prompt", "completion")) for name in row), None)
        remedy = did_you_mean(near) or 'Write {"messages": [{"role": "user", "content": "..."}, ...]}'
        rule = "a line must have messages, or prompt and completion"
        raise UserError(rule, value=list(row), remedy=remedy)
    if missing:
        raise UserError(
            f"a line must have {missing[0]} too",
            remedy='Write {"messages": [{"role": ..., "content": ...}, ...]}; docs/sft.md has every form',
        )
    return [*_side(row, "prompt", "user"), *_side(row, "completion", "assistant")]


def _side(row: dict[str, Any], name: str, role: str) -> list[Any]:
    value = row[name]
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, list) and value:
        return cast("list[Any]", value)
    raise UserError(
        f"{name} must be a text or a list of messages",
        value=value,
        remedy='Write {"messages": [{"role": ..., "content": ...}, ...]}; docs/sft.md has every form',
    )


def _num_completion(row: dict[str, Any]) -> int:
    return 1 if isinstance(row["completion"], str) else len(row["completion"])


def _message(entry: Any, index: int) -> Message:
    if not isinstance(entry, dict):
        raise UserError(
            f"message {index} must be an object with role and content",
            remedy='Write {"messages": [{"role": ..., "content": ...}, ...]}; docs/sft.md has every form',
        )
    values = cast("dict[str, Any]", entry)
    needed = ("role",) if values.get("tool_calls") else ("role", "content")
    if missing := [name for name in needed if name not in values]:
        rule = f"message {index} must have {missing[0]}"
        raise UserError(rule, value=list(values), remedy='{"role": "user", "content": "..."}')
    role, content = values["role"], values.get("content")
    if role not in _ROLES:
        guess = _OTHER_NAMES.get(role) if isinstance(role, str) else None
        guess = guess or (nearest(role, _ROLES) if isinstance(role, str) else None)
        rule = f"the role of message {index} must be one of {', '.join(_ROLES)}"
        raise UserError(rule, value=role, remedy=did_you_mean(guess) or "Write one of these")
    if values.get("function_call"):
        rule = f"message {index} has a function_call, which would not be trained"
        raise UserError(rule, remedy="Write it as tool_calls, or into the content, as the model is to say it")
    calls = calls_of(values, index)
    if content is None and calls:
        content = ""
    if not isinstance(content, str):
        _not_text(content, index)
    try:
        content.encode()
    except UnicodeEncodeError:
        rule = f"the content of message {index} must be text; it has half a surrogate pair"
        raise UserError(rule, remedy="Write the character itself in UTF-8") from None
    given = (values.get(key) for key in ("tool_call_id", "name"))
    answers, name = (text if isinstance(text, str) else "" for text in given)
    return Message(role, content, tool_calls=calls, tool_call_id=answers, name=name)


def _not_text(content: Any, index: int) -> NoReturn:
    rule = f"the content of message {index} must be a text"
    remedy = "Write content as one string"
    if content is None:
        remedy = 'Write "" for an empty message, or leave it out'
    raise UserError(rule, value=type(content).__name__, remedy=remedy)


def _is_masked(entry: Any, index: int) -> bool:
    """Say whether a message's own weight, 0 or 1, leaves it out."""
    weight = cast("dict[str, Any]", entry).get("weight", 1)
    if weight not in (0, 1):
        rule = f"the weight of message {index} must be 0 or 1"
        raise UserError(rule, value=weight, remedy="A line's own weight may be any number")
    return weight == 0


def _exact(row: dict[str, Any], vocab: int) -> TrainingSample:
    ids, mask = row.get("token_ids"), row.get("trainable")
    remedy = "One of each for every token; leave both out to have messages tokenised"
    if not (isinstance(ids, list) and isinstance(mask, list)):
        raise UserError("token_ids and trainable must be lists, both there", remedy=remedy)
    ids, mask = cast("list[Any]", ids), cast("list[Any]", mask)
    if len(ids) != len(mask) or not ids:
        rule = "token_ids and trainable must have the same length, at least 1"
        raise UserError(rule, value=(len(ids), len(mask)), remedy=remedy)
    if not all(isinstance(token, int) and 0 <= token < vocab for token in ids):
        bad = next(token for token in ids if not (isinstance(token, int) and 0 <= token < vocab))
        rule = f"token_ids must be from 0 to {vocab - 1}, the model's vocabulary"
        remedy = "The rollouts must be of a model with the same tokenizer"
        raise UserError(rule, value=bad, remedy=remedy)
    if not all(flag in (0, 1) for flag in mask) or mask[0]:
        rule = "trainable must be 0 or 1 for each token, and 0 for the first: nothing precedes it"
        raise UserError(rule, remedy=remedy)
    flags = array(FLAGS, [int(flag) for flag in mask])
    sample = TrainingSample(array(TOKENS, ids), flags, array(FLOATS, bytes(4 * len(ids))), [], 1.0)
    return with_mask(sample, flags)
