"""Answers in the forms of the OpenAI API, whole or as a stream of server-sent events.

Fields beyond that API are those that vLLM uses: `prompt_token_ids`, `token_ids`, `max_model_len`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headway.core.clock import wall_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.core.protocols import Completion, Completions
    from headway.core.records import Message
    from headway.gateway.reading import Asked, Json


def models(name: str, max_context_tokens: int) -> Json:
    """Return the list of the one model that there is."""
    return {"object": "list", "data": [model(name, max_context_tokens)]}


def model(name: str, max_context_tokens: int) -> Json:
    """Return what is known of a model."""
    known = {"id": name, "object": "model", "created": 0, "owned_by": "headway"}
    return known | {"max_model_len": max_context_tokens}


def chat(done: Completion, asked: Asked, of: Completions, name: str) -> Json:
    """Return a chat completion."""
    choice: Json = {
        "index": 0,
        "message": _message(done.message),
        "logprobs": _chat_logprobs(done, of) if asked.with_logprobs else None,
        "finish_reason": _finish(done),
    }
    return _whole("chat.completion", done, asked, name, choice)


def text(done: Completion, asked: Asked, of: Completions, name: str) -> Json:
    """Return a text completion."""
    choice: Json = {
        "index": 0,
        "text": done.message.content,
        "logprobs": _text_logprobs(done, of) if asked.with_logprobs else None,
        "finish_reason": _finish(done),
    }
    return _whole("text_completion", done, asked, name, choice)


def generated(done: Completion, asked: Asked, of: Completions, name: str) -> Json:
    """Return the answer to a request in token ids."""
    choice: Json = {
        "index": 0,
        "token_ids": list(done.token_ids),
        "logprobs": _chat_logprobs(done, of) if asked.with_logprobs else None,
        "finish_reason": done.finish,
    }
    return {"request_id": name, "choices": [choice], "prompt_logprobs": None, "usage": _usage(done)}


def events(whole: Json, asked: Asked) -> Iterator[bytes]:
    """Yield a whole answer as the events of a stream."""
    choice = whole["choices"][0]
    base = {key: whole[key] for key in ("id", "created", "model")}
    is_chat = whole["object"] == "chat.completion"
    base["object"] = "chat.completion.chunk" if is_chat else "text_completion"
    extra: Json = {"token_ids": choice["token_ids"]} if asked.with_ids else {}
    first: Json = {"prompt_token_ids": whole["prompt_token_ids"]} if asked.with_ids else {}
    if is_chat:
        said = {key: value for key, value in choice["message"].items() if value is not None}
        calls = said.pop("tool_calls", [])
        if calls:
            said["tool_calls"] = [{"index": at, **call} for at, call in enumerate(calls)]
        begun = {"index": 0, "delta": {"role": said.pop("role"), "content": ""}, "finish_reason": None}
        yield event(base | first | {"choices": [begun]})
        body: Json = {"delta": said, "logprobs": choice["logprobs"]}
        end: Json = {"delta": {}}
    else:
        body, end = {"text": choice["text"], "logprobs": choice["logprobs"]}, {"text": ""}
        body |= first
    yield event(base | {"choices": [{"index": 0, **body, "finish_reason": None, **extra}]})
    yield event(base | {"choices": [{"index": 0, **end, "finish_reason": choice["finish_reason"]}]})
    if asked.with_usage:
        yield event(base | {"choices": [], "usage": whole["usage"]})
    yield b"data: [DONE]\n\n"


def event(value: Json) -> bytes:
    """Return one event of a stream."""
    return b"data: " + dumped(value) + b"\n\n"


def dumped(value: Json) -> bytes:
    """Return JSON without blanks."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _whole(kind: str, done: Completion, asked: Asked, name: str, choice: Json) -> Json:
    known: Json = {"id": name, "object": kind, "created": int(wall_time()), "model": asked.model}
    known |= {"choices": [choice], "usage": _usage(done)}
    if asked.with_ids:
        choice["token_ids"] = list(done.token_ids)
        known["prompt_token_ids"] = list(done.prompt_ids)
    return known


def _usage(done: Completion) -> Json:
    before, after = len(done.prompt_ids), done.num_tokens
    return {"prompt_tokens": before, "completion_tokens": after, "total_tokens": before + after}


def _finish(done: Completion) -> str:
    return "tool_calls" if done.message.tool_calls and done.finish == "stop" else done.finish


def _message(message: Message) -> Json:
    told: Json = {"role": "assistant", "content": message.content or (None if message.tool_calls else "")}
    if message.reasoning:
        told["reasoning_content"] = message.reasoning
    if message.tool_calls:
        told["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return told


def _chat_logprobs(done: Completion, of: Completions) -> Json:
    content: list[Any] = []
    for token, logprob in zip(done.token_ids, done.logprobs, strict=True):
        piece = of.decode([token])
        row: Json = {"token": piece, "logprob": logprob, "bytes": list(piece.encode()), "top_logprobs": []}
        content.append(row)
    return {"content": content, "refusal": None}


def _text_logprobs(done: Completion, of: Completions) -> Json:
    pieces = [of.decode([token]) for token in done.token_ids]
    offsets = [0]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    return {
        "tokens": pieces,
        "token_logprobs": list(done.logprobs),
        "top_logprobs": None,
        "text_offset": offsets[:-1],
    }
