"""Tokenizer and chat template: do they belong to the model, and do conversations grow as they must?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import ModelError
from headway.core.records import Message
from headway.runtime.preflight.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headway.renderers.chat import Renderer
    from headway.runtime.preflight.subject import Subject

_ANSWERS = ("It is four: 2+2.", "So it is five, then.")
_ASKED = (Message("user", "What is 2+2?"), Message("user", "And one more?"), Message("user", "And then?"))


def tokenizer(subject: Subject) -> Iterator[Finding]:
    """Special tokens are what the model takes them for. `verify` saw to the vocabulary's size."""
    renderer, rows = subject.renderer, subject.facts.vocab
    size = max(renderer.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    findings = [*_special_ids(subject.model_dir, renderer), *_encoded(renderer)]
    yield from findings
    if not findings:
        spare = f", {rows - size} rows of the embedding are spare" if rows > size else ""
        stops = ", ".join(renderer.decode([one], skip_special=False) for one in renderer.stop_ids)
        yield ok(f"{size:,} tokens for {rows:,} embedding rows{spare}; an answer ends at {stops}")


def _special_ids(model_dir: Path, renderer: Renderer) -> list[Finding]:
    """Ids that config.json and generation_config.json give a meaning are special tokens of the tokenizer."""
    added = renderer.tokenizer.get_added_tokens_decoder()
    for name in ("generation_config.json", "config.json"):
        file = model_dir / name
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        for key in ("eos_token_id", "bos_token_id"):
            value = values.get(key)
            ids = cast("list[int]", value) if isinstance(value, list) else [value]
            for one in ids:
                if not isinstance(one, int) or (one in added and added[one].special):
                    continue
                text = renderer.tokenizer.id_to_token(one)
                meaning = "nothing" if text is None else f"the ordinary token {text!r}"
                return failed(
                    ModelError(
                        f"the tokenizer must belong to the model: {name} says that {key} is {one}, "
                        f"which to the tokenizer is {meaning}",
                        remedy="Copy the tokenizer's files from the model's own repository",
                        key="model.path",
                    )
                )
    return []


def _encoded(renderer: Renderer) -> list[Finding]:
    """A special token that is cut into pieces never ends an answer."""
    for name, text in renderer.special_tokens.items():
        ids = renderer.tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) != 1:
            return failed(
                ModelError(
                    f"a special token must be one token: {name} {text!r} becomes {len(ids)}",
                    remedy=f"Copy the tokenizer's files from the model's own repository, or declare {text!r} "
                    "among the added_tokens of tokenizer.json",
                    key="model.path",
                )
            )
    return []


def chat_template(subject: Subject) -> Iterator[Finding]:
    """A conversation of several turns extends itself, and its answers stay in it, unchanged."""
    renderer = subject.renderer
    findings = [*_closing(renderer), *_keeps_answers(renderer), *_extends(renderer)]
    yield from findings
    if not findings:
        yield ok("each turn extends the one before it, token by token, and earlier answers stay")


def _conversation(num_turns: int) -> list[Message]:
    """Return so many questions with the answers between them."""
    messages: list[Message] = []
    for turn in range(num_turns):
        messages += [_ASKED[turn], Message("assistant", _ANSWERS[min(turn, 1)])]
    return messages[:-1]


def _closing(renderer: Renderer) -> Iterator[Finding]:
    """What the template writes after an answer begins with a token that ends one."""
    after = renderer.extension(_conversation(2)[:2], renderer.encode("x"), _conversation(2)[2:])
    if after and after[0] not in renderer.stop_ids:
        written = renderer.decode(after[:1], skip_special=False)
        stops = ", ".join(renderer.decode([one], skip_special=False) for one in renderer.stop_ids)
        yield warning(
            f"the template ends an answer with {written!r}, none of the tokens that end one ({stops})",
            "Put the end-of-turn token into eos_token_id of generation_config.json, as a list",
            key="model.path",
        )


def _keeps_answers(renderer: Renderer) -> Iterator[Finding]:
    text = renderer.text(_conversation(3), add_generation_prompt=True)
    if lost := [answer for answer in _ANSWERS if answer not in text]:
        yield warning(
            f"the template leaves out or changes earlier answers ({lost[0]!r} is gone after "
            f"{'two turns' if lost[0] == _ANSWERS[0] else 'one turn'}), and training keeps them",
            "Take that out of the template, or keep to environments of one turn",
            key="model.path",
        )
        return
    thought = Message("assistant", "<think>\nHM-HM\n</think>\n\nFour.")
    if "HM-HM" not in renderer.text([_ASKED[0], thought, _ASKED[1]], add_generation_prompt=True):
        yield warning(
            "the template leaves out the <think> part of earlier answers, and training keeps it",
            "Take that out of the template, or keep to environments of one turn",
            key="model.path",
        )


def _extends(renderer: Renderer) -> Iterator[Finding]:
    first, whole = _conversation(1), _conversation(2)
    before = renderer.text(first, add_generation_prompt=True)
    after = renderer.text(whole, add_generation_prompt=True)
    if not after.startswith(before + _ANSWERS[0]):
        at = next(
            i
            for i, (a, b) in enumerate(zip(before + _ANSWERS[0] + "\0", after + "\0", strict=False))
            if a != b
        )
        yield warning(
            f"the template writes a conversation anew when it grows: {before[at : at + 20]!r} becomes "
            f"{after[at : at + 20]!r}",
            "Take what depends on the number of turns out of it, or keep to environments of one turn",
            key="model.path",
        )
        return
    answer = renderer.encode(_ANSWERS[0])
    joined = renderer.first_prompt(first) + answer + renderer.extension(whole[:2], answer, whole[2:])
    if joined != (template := renderer.encode(after)):
        at = next((i for i, (a, b) in enumerate(zip(joined, template, strict=False)) if a != b), len(joined))
        piece = renderer.decode(template[max(0, at - 1) : at + 1], skip_special=False)
        yield warning(
            f"where turns meet, the tokenizer would join text over the border ({piece!r}): the ids of a "
            "conversation are not those of its text",
            "Nothing breaks: what was sampled is trained as it is. Turns that end in special tokens avoid it",
            key="model.path",
        )
