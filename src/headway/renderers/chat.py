"""From messages to token ids, turn by turn, without ever touching what was sampled.

Invariant: the ids of a conversation are the first prompt, then for each answer the sampled ids exactly as
they were sampled, then the extension. An answer is never decoded and encoded again. The extension is the
text that the chat template puts after an answer, found by rendering a sentinel in the answer's place; so
the joined ids are those of the whole conversation's template wherever decode and encode are inverse, and
stay the sampled ones where they are not. They stay, too, where a template would rewrite an earlier answer:
reasoning that it leaves out of history, spaces in the JSON of a call. The policy sees its answers as it gave
them, and is trained on what it saw. What a message says is text: a special token that is written in one
begins and ends nothing (literals.py).
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from headway.core.errors import ContextFullError, ModelError
from headway.core.records import TOKENS, Message, ToolCall, ToolSpec
from headway.renderers.answers import MARKERS, TAGGED, THINK, split_reasoning
from headway.renderers.literals import Literals
from headway.renderers.template import ChatTemplate, find_template
from headway.renderers.tool_text import calls_in_content, format_of, in_first_question, in_words

_SENTINEL = "\u2060HEADWAY-ANSWER\u2060"
_END_OF_MESSAGE = "<|eom_id|>"  # Llama 3 closes a message with it that calls a tool and expects the result


class Renderer:
    """A checkpoint's tokenizer and chat template.

    Raises ModelError when the folder has no tokenizer.json or no chat template.
    """

    def __init__(self, model_dir: Path) -> None:
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise ModelError(
                f"the model in {model_dir} has no tokenizer.json",
                remedy="The download may be incomplete; fetch the model again",
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(
                f"{path} cannot be read: {error}", remedy="It may be half-downloaded; fetch the model again"
            ) from error
        config = _read_json(model_dir / "tokenizer_config.json")
        special = _special_tokens(_read_json(model_dir / "special_tokens_map.json") | config)
        self.special_tokens = special  # `eos_token` and others by name
        self._template = ChatTemplate(find_template(model_dir, config), special, model_dir)
        self._stop_ids = self._find_stop_ids(model_dir, special)
        self._format = format_of(self._template)
        self._hidden = self._find_hidden_ids()
        self._longest = max(map(len, self._tokenizer.get_vocab()))  # characters of a token
        names = [self._tokenizer.id_to_token(token) for token in self._hidden]
        self._literals = Literals([*filter(None, names), _SENTINEL], self.encode)
        asked = self._template.render([Message("user", ".")], add_generation_prompt=True)
        self._opens_reasoning = asked.rstrip().endswith(THINK)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer, each a part of it when sampled: end of text and end of turn, sorted."""
        return self._stop_ids

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer itself, for whoever checks it."""
        return self._tokenizer

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Return a conversation as the template writes it; for checks, never to be trained on."""
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

    def first_prompt(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, max_tokens: int | None = None
    ) -> array[int]:
        """Return the ids that come before the first answer, [p].

        Raises ContextFullError for a text that has more than `max_tokens` without counting them.
        """
        messages, tools = self._literals.hidden(messages, tools)
        return self._literals.encoded(self.fitting(self._render(messages, tools), max_tokens))

    def fitting(self, text: str, max_tokens: int | None) -> str:
        """Return a text; ContextFullError for one so long that it has more than `max_tokens` for certain.

        Counting the tokens of a text of megabytes takes seconds, in which nobody else is served.
        """
        if max_tokens is not None and len(text) > max_tokens * self._longest:
            raise ContextFullError(
                f"a text of {len(text)} characters must fit into a context of {max_tokens} tokens",
                remedy="Raise the generator's max_context_tokens, or make the messages shorter",
            )
        return text

    def extension(
        self,
        conversation: Sequence[Message],
        answer_ids: array[int],
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        max_tokens: int | None = None,
    ) -> array[int]:
        """Return the ids between the last answer's sampled ids and the next answer, [p].

        `conversation` is every message so far, its last one the answer. When the policy sampled the token
        that closes its turn, the extension does not repeat it; when it did not (a stop string, a length
        limit), the extension starts with it. Raises ContextFullError as `first_prompt` does.
        """
        answered = Message("assistant", _SENTINEL)
        before, tools = self._literals.hidden(conversation[:-1], tools)
        after, _ = self._literals.hidden(new_messages, ())
        text = _after_sentinel(self._render([*before, answered, *after], tools))
        ids = self._literals.encoded(self.fitting(text, max_tokens))
        if ids and answer_ids and answer_ids[-1] in self._stop_ids:
            last = answer_ids[-1]
            if ids[0] == last or (ids[0] in self._stop_ids and last == self._token_id(_END_OF_MESSAGE)):
                del ids[0]
        return ids

    def message(
        self, token_ids: array[int], tools: Sequence[ToolSpec] = (), *, turn: int = 0
    ) -> tuple[Message, str]:
        """Return an answer taken apart, and why what looks like a call of a tool is none, "" if nothing does.

        Without tools, nothing is a call. A malformed answer has no calls, and its content is all of it.

        Args:
            token_ids: as they were sampled, [n].
            tools: that the policy was told of.
            turn: which answer of its conversation this is, so that the ids of calls are unique there.
        """
        told = token_ids[:-1] if token_ids and token_ids[-1] in self._stop_ids else token_ids
        text = self.decode([token for token in told if token not in self._hidden], skip_special=False)
        reasoning, content = split_reasoning(text, opened=self._opens_reasoning)
        if not tools:
            return Message("assistant", content, reasoning), ""
        parsed = (self._format or TAGGED).read(content)
        calls = tuple(ToolCall(f"call_{turn}_{at}", *call) for at, call in enumerate(parsed.calls))
        return Message("assistant", parsed.content, reasoning, calls), parsed.malformed

    @property
    def closing_id(self) -> int:
        """The id with which a written answer ends: what the template puts after one, else end of text."""
        return self._closing

    def spoken(self, message: Message) -> str:
        """Return the text of a written answer, its calls in the form in which `message` reads them."""
        return calls_in_content([message], self._format or TAGGED)[0].content

    def answer_ids(self, text: str) -> array[int]:
        """Return a written answer's ids as if the policy had sampled them, its closing id included, [n].

        Raises ModelError when the text holds a token that ends an answer.
        """
        ids = self.encode(text)
        if found := next((token for token in ids if token in self._stop_ids), None):
            name = self.decode([found], skip_special=False)
            rule = f"an assistant's message may not contain {name}, which ends a message"
            raise ModelError(rule, remedy="Leave it out: the chat template puts it after each message")
        ids.append(self._closing)
        return ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`; for reading, never to be encoded again."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)

    def answer_text(self, ids: array[int]) -> str:
        """Return the text of an answer without the token that ended it."""
        return self.decode(ids[:-1] if ids and ids[-1] in self._stop_ids else ids)

    def encode(self, text: str) -> array[int]:
        """Return the ids of a text as it is, without special tokens around it."""
        return array(TOKENS, self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
        """Return a conversation with a generation prompt; tools that the template does not know in words."""
        calls = any(message.tool_calls for message in messages)
        if not messages or not (tools or calls):
            return self._template.render(messages, add_generation_prompt=True)
        if self._format is not None:
            try:
                return self._template.render(messages, add_generation_prompt=True, tools=tools)
            except ModelError:
                if not calls:
                    raise
            messages = calls_in_content(messages, self._format)  # it refuses two calls in one answer, say
            return self._template.render(messages, add_generation_prompt=True, tools=tools)
        try:
            return self._template.render(in_words(messages, tools), add_generation_prompt=True)
        except ModelError:
            if not tools:
                raise
            return self._template.render(in_first_question(messages, tools), add_generation_prompt=True)

    def _token_id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)

    def _find_hidden_ids(self) -> frozenset[int]:
        """Special tokens that are no part of what an answer says."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(
            one for one, token in added.items() if token.special and token.content not in MARKERS
        )

    def _find_stop_ids(self, model_dir: Path, special: dict[str, str]) -> tuple[int, ...]:
        found: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            value = _read_json(model_dir / name).get("eos_token_id")
            if isinstance(value, (int, list)):
                found.update(cast("list[int]", value) if isinstance(value, list) else [value])
        eos = self._tokenizer.token_to_id(special["eos_token"]) if "eos_token" in special else None
        if eos is not None:
            found.add(eos)
        closing = self._closing_id()
        if closing is not None:
            found.add(closing)
        if found:
            self._closing = next(token for token in (closing, eos, min(found)) if token is not None)
        else:
            raise ModelError(
                f"the model in {model_dir} names no token that ends an answer",
                remedy="Set eos_token in tokenizer_config.json or eos_token_id in generation_config.json",
            )
        return tuple(sorted(found))

    def _closing_id(self) -> int | None:
        """The special token that the template puts right after an answer, if it is one."""
        messages = [Message("user", "."), Message("assistant", _SENTINEL)]
        text = self._template.render(messages, add_generation_prompt=False)
        ids = self.encode(_after_sentinel(text))
        added = self._tokenizer.get_added_tokens_decoder()
        return ids[0] if ids and ids[0] in added and added[ids[0]].special else None


def _after_sentinel(text: str) -> str:
    head, found, tail = text.rpartition(_SENTINEL)
    if not found or _SENTINEL in head:
        raise ModelError(
            "the chat template must show each answer exactly once, unchanged",
            remedy="Mend chat_template.jinja in the model's directory, or choose another model",
        )
    return tail


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ModelError(
            f"{path} is not valid JSON: {error}", remedy="It may be half-downloaded; fetch the model again"
        ) from error


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """Return `bos_token`, `eos_token`, ... by name; entries are strings or objects with `content`."""
    tokens: dict[str, str] = {}
    for name, entry in config.items():
        if name.endswith("_token"):
            content = entry.get("content") if isinstance(entry, dict) else entry  # pyright: ignore
            if isinstance(content, str):
                tokens[name] = content
    return tokens
