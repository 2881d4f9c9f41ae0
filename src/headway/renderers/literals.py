"""Special tokens that messages spell out: they stay text, so that what a tool read can forge no turn.

A chat template puts messages and special tokens into one text, which is then encoded; a message that holds
`<|im_end|>` would end there, and what follows could pass for somebody else's words. So each such name is
rendered as one character of a private plane, and encoded in two pieces, of which neither is a special token.
A character of that plane in a message (icons of some fonts are) is rendered behind another one that says so.
Tags of reasoning and calls are let through: people write them into prompts, and they begin no turn.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from headway.core.records import TOKENS, Message, ToolCall, ToolSpec

_FIRST, _LAST = 0xF0000, 0xFFFFD  # Private Use Plane 15
_ESCAPE = chr(_FIRST)  # what follows stands for itself
_ANY = f"[{chr(_FIRST)}-{chr(_LAST)}]"
_PRIVATE, _RENDERED = re.compile(_ANY), re.compile(f"({_ESCAPE}{_ANY}|{_ANY})")


class Literals:
    """What must stay text.

    Args:
        names: special tokens as they are written.
        encode: of a text that may hold special tokens.
    """

    def __init__(self, names: Sequence[str], encode: Callable[[str], array[int]]) -> None:
        self._encode = encode
        # Longest first: one name may begin with another.
        known = sorted({name for name in names if len(name) > 1}, key=lambda name: (-len(name), name))
        self._masks = {name: chr(_FIRST + at) for at, name in enumerate(known[: _LAST - _FIRST], 1)}
        self._ids = {mask: encode(name[0]) + encode(name[1:]) for name, mask in self._masks.items()}
        self._pattern = re.compile("|".join(map(re.escape, self._masks)) or "(?!)")
        self._starts = {name[:2] for name in self._masks}  # looked for first: most texts hold none

    def hidden(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> tuple[Sequence[Message], Sequence[ToolSpec]]:
        """Return messages and tools with every name as its private character."""
        texts = [text for message in messages for text in (message.content, message.reasoning, message.name)]
        texts += [text for message in messages for call in message.tool_calls for text in _texts(call)]
        texts += [json.dumps([t.name, t.description, t.parameters], ensure_ascii=False) for t in tools]
        if not any(map(self._is_touched, texts)):
            return messages, tools
        return [self._message(message) for message in messages], [self._tool(tool) for tool in tools]

    def encoded(self, text: str) -> array[int]:
        """Return the ids of a rendered text."""
        parts = _RENDERED.split(text)
        if len(parts) == 1:
            return self._encode(text)
        ids: array[int] = array(TOKENS)
        for part in parts:
            ids.extend(self._ids[part] if part in self._ids else self._encode(part.removeprefix(_ESCAPE)))
        return ids

    def _is_touched(self, text: str) -> bool:
        if any(start in text for start in self._starts) and self._pattern.search(text):
            return True
        return not text.isascii() and _PRIVATE.search(text) is not None

    def _text(self, text: str) -> str:
        text = text if text.isascii() else _PRIVATE.sub(lambda found: _ESCAPE + found[0], text)
        return self._pattern.sub(lambda found: self._masks[found[0]], text)

    def _message(self, message: Message) -> Message:
        calls = tuple(ToolCall(*map(self._text, _texts(call))) for call in message.tool_calls)
        said = {"content": self._text(message.content), "reasoning": self._text(message.reasoning)}
        return replace(message, **said, name=self._text(message.name), tool_calls=calls)

    def _tool(self, tool: ToolSpec) -> ToolSpec:
        parameters = json.loads(self._text(json.dumps(tool.parameters, ensure_ascii=False)))
        return ToolSpec(self._text(tool.name), self._text(tool.description), parameters)


def _texts(call: ToolCall) -> tuple[str, str, str]:
    arguments = call.arguments
    if "\\u" in arguments:  # templates see what an escape stands for
        arguments = json.dumps(json.loads(arguments), ensure_ascii=False)
    return call.id, call.name, arguments
