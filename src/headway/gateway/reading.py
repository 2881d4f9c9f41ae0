"""Requests of the OpenAI API as Headway's own messages, tools and limits."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from headway.core.records import TOKENS, Message, ToolCall, ToolSpec
from headway.gateway.faults import ApiError, invalid

if TYPE_CHECKING:
    from headway.gateway.settings import GatewaySettings

Json = dict[str, Any]

_MAX_STOPS, _MAX_STOP_CHARS = 64, 4096  # they are looked for after each token
_MAX_DEPTH = 100  # of objects and lists; templates and encoders recurse

_ROLES: dict[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_NO_CHOICE = (None, "auto", "none", {"type": "auto"})
_PLAIN = (None, {"type": "text"})
_OF_THE_RUN: dict[str, Callable[[Any], bool]] = {
    "tool_choice": lambda value: value not in _NO_CHOICE,
    "response_format": lambda value: value not in _PLAIN,
}
for _name in ("temperature", "top_p", "top_k", "min_p", "seed", "logit_bias"):
    _OF_THE_RUN[_name] = lambda value: value is not None
for _name in ("frequency", "presence", "repetition"):
    _OF_THE_RUN[f"{_name}_penalty"] = lambda value: value is not None
"""What would change the distribution that is sampled from, and when a value of it does."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What every request may say."""

    model: str
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    with_usage: bool  # at the stream's end
    with_ids: bool  # token ids in the answer
    with_logprobs: bool


def asked(body: Json, settings: GatewaySettings) -> Asked:
    """Read what all requests share.

    Raises ApiError for what cannot be honoured.
    """
    if body.get("n") not in (None, 1) or body.get("best_of") not in (None, 1):
        raise invalid(
            "n", "must be 1: send the request again for another answer, which is a branch of its own"
        )
    if body.get("echo"):
        raise invalid("echo", "must be false; return_token_ids gives the prompt's ids")
    if settings.client_sampling == "refuse":
        for name, matters in _OF_THE_RUN.items():
            if matters(body.get(name)):
                rule = "is the run's to set ([generator] and rollout temperature): leave it out, or set "
                raise invalid(name, rule + 'gateway.client_sampling = "ignore"')
    limit = body.get("max_completion_tokens")
    limit = body.get("max_tokens") if limit is None else limit
    if limit is not None and (type(limit) is not int or limit < 1):
        raise invalid("max_tokens", f"must be a whole number of at least 1, not {_short(limit)}")
    stop = body.get("stop")
    stops: list[Any] = _list("stop", [stop] if isinstance(stop, str) else stop)
    if not all(isinstance(each, str) and each for each in stops):
        raise invalid("stop", "must be a text or a list of texts, none empty")
    if len(stops) > _MAX_STOPS or sum(map(len, stops)) > _MAX_STOP_CHARS:
        raise invalid("stop", f"must be {_MAX_STOPS} texts of {_MAX_STOP_CHARS} characters in all, at most")
    options = body.get("stream_options")
    with_usage = isinstance(options, dict) and bool(cast("Json", options).get("include_usage"))
    logprobs = body.get("logprobs")
    return Asked(
        str(body.get("model") or "policy"),
        limit,
        tuple(stops),
        bool(body.get("stream")),
        with_usage,
        bool(body.get("return_token_ids")),
        logprobs is not None and logprobs is not False,
    )


def parsed(data: bytes) -> Json:
    """Return a request's body.

    Raises ApiError unless it is a JSON object.
    """
    try:
        text = data.decode()  # UTF-8 only, as the standard has it: it knows no halves of characters
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body must be JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    if too_deep(body):
        raise ApiError(400, f"the body must be at most {_MAX_DEPTH} levels deep", code="invalid_json")
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ApiError(400, f"the body holds half a character: {error}", code="invalid_json") from error
    return cast("Json", body)


def messages(body: Json) -> list[Message]:
    """Return a chat's messages.

    Raises ApiError naming the first one that is not understood.
    """
    raw = _list("messages", body.get("messages"))
    if not raw:
        raise invalid("messages", "must have at least one message")
    return [_message(f"messages[{at}]", item) for at, item in enumerate(raw)]


def tools(body: Json) -> tuple[ToolSpec, ...]:
    """Return the tools that the policy may call."""
    if body.get("tool_choice") == "none":
        return ()
    return tuple(_tool(f"tools[{at}]", item) for at, item in enumerate(_list("tools", body.get("tools"))))


def ids(where: str, raw: Any) -> array[int]:
    """Return token ids."""
    items = cast("list[Any]", raw) if isinstance(raw, list) else []
    if not items or not all(type(item) is int and 0 <= item < 2**31 for item in items):
        raise invalid(where, "must be a list of token ids, at least one")
    return array(TOKENS, items)


def _message(where: str, raw: Any) -> Message:
    item = _object(where, raw)
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        raise invalid(f"{where}.role", f"must be one of {', '.join(_ROLES)}, not {item.get('role')!r}")
    content = _content(where, item.get("content"))
    reasoning = item.get("reasoning_content") or item.get("reasoning") or ""
    if role == "assistant":
        where = f"{where}.tool_calls"
        calls = [
            _call(f"{where}[{at}]", call) for at, call in enumerate(_list(where, item.get("tool_calls")))
        ]
        return Message("assistant", content, reasoning=str(reasoning), tool_calls=tuple(calls))
    if role == "tool":
        answers, name = str(item.get("tool_call_id") or ""), str(item.get("name") or "")
        return Message("tool", content, tool_call_id=answers, name=name)
    return Message(role, content)


def _content(where: str, raw: Any) -> str:
    if raw is None or isinstance(raw, str):
        return raw or ""
    parts: list[str] = []
    for at, part in enumerate(cast("list[Any]", raw) if isinstance(raw, list) else [raw]):
        text = cast("Json", part).get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            raise invalid(f"{where}.content[{at}]", "must be text: the policy reads nothing else")
        parts.append(text)
    return "".join(parts)


def _call(where: str, raw: Any) -> ToolCall:
    item = _object(where, raw)
    function = _object(f"{where}.function", item.get("function"))
    given = function.get("arguments")
    arguments = given if isinstance(given, str) else json.dumps({} if given is None else given)
    try:
        read = json.loads(arguments or "{}")
        whole = isinstance(read, dict) and not too_deep(read)
        json.dumps(read, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # halves of characters too
        whole = False
    if not whole:
        rule = f"must be a JSON object, at most {_MAX_DEPTH} levels deep"
        raise invalid(f"{where}.function.arguments", rule)
    return ToolCall(str(item.get("id") or ""), str(function.get("name") or ""), arguments or "{}")


def _tool(where: str, raw: Any) -> ToolSpec:
    item = _object(where, raw)
    function = _object(f"{where}.function", item.get("function"))
    if not function.get("name"):
        raise invalid(f"{where}.function.name", "must be there")
    parameters: Any = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(
        str(function["name"]),
        str(function.get("description") or ""),
        _object(f"{where}.function.parameters", parameters),
    )


def too_deep(value: Any) -> bool:
    """Say whether JSON is nested so deeply that writing it again might not succeed."""
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for one in level:
            within = cast("Json", one).values() if isinstance(one, dict) else cast("list[Any]", one)
            inner += [each for each in within if isinstance(each, (dict, list))]
        if not inner:
            return False
        level = inner
    return True


def _short(value: Any, limit: int = 40) -> str:
    text = json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _object(where: str, raw: Any) -> Json:
    if not isinstance(raw, dict):
        raise invalid(where, "must be an object")
    return cast("Json", raw)


def _list(where: str, raw: Any) -> list[Any]:
    if raw is not None and not isinstance(raw, list):
        raise invalid(where, "must be a list")
    return cast("list[Any]", raw or [])
