"""What the server knows how to answer: each path's request, and the form of its answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import ContextFullError
from headway.core.protocols import Completion, Completions
from headway.gateway import reading, writing
from headway.gateway.faults import ApiError
from headway.gateway.reading import Asked, Json

if TYPE_CHECKING:
    from headway.gateway.http import Request
    from headway.gateway.sessions import Session
    from headway.gateway.settings import GatewaySettings

_CHAT, _TEXT, _IDS = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
_PATHS = (_CHAT, _TEXT, _IDS)


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was understood."""

    kind: str  # begins the answer's id
    asked: Asked
    ask: Callable[[], Coroutine[Any, Any, Completion]]  # asks the rollout
    written: Callable[[Completion, Asked, Completions, str], Json]
    stream: bool
    digest: bytes  # the same for the same request

    @property
    def content_type(self) -> str:
        """Of the answer."""
        return "text/event-stream" if self.stream else "application/json"


def listed(path: str, of: Completions) -> Json | None:
    """Return what a GET tells of the model, None for another path."""
    path = path.rstrip("/")
    if path == "/v1/models":
        return writing.models("policy", of.max_context_tokens)
    if path.startswith("/v1/models/"):
        return writing.model(path.removeprefix("/v1/models/"), of.max_context_tokens)
    return None


def read_call(request: Request, session: Session, settings: GatewaySettings) -> Call:
    """Read a request that asks for an answer.

    Raises ApiError for one that cannot be understood or honoured.
    """
    path = request.path.rstrip("/")
    if path not in _PATHS:
        there = f"there are POST {', '.join(_PATHS)} and GET /v1/models"
        raise ApiError(404, f"there is no {request.method} {path}; {there}", code="not_found")
    if request.method != "POST":
        raise ApiError(405, f"{path} takes POST", code="method_not_allowed")
    body = reading.parsed(request.body)
    if isinstance(sampling := body.get("sampling_params"), dict):
        body |= cast("Json", sampling)
    asked = reading.asked(body, settings)
    of = session.completions
    for name in ("messages", "tools"):  # each takes a token at least, and rendering many takes seconds
        found: Any = body.get(name)
        if isinstance(found, list) and len(cast("list[Any]", found)) > of.max_context_tokens:
            most = of.max_context_tokens
            raise ContextFullError(
                f"{len(cast('list[Any]', found))} {name} must fit into a context of {most} tokens"
            )
    digest = hashlib.blake2b(path.encode() + request.body, digest_size=16).digest()
    limits: dict[str, Any] = {"max_tokens": asked.max_tokens, "stop": asked.stop}
    if path == _CHAT:
        messages, tools = reading.messages(body), reading.tools(body)

        def chat() -> Coroutine[Any, Any, Completion]:
            return of.complete(messages, tools=tools, **limits)

        return Call("chatcmpl", asked, chat, writing.chat, asked.stream, digest)
    ids = reading.ids("token_ids", body.get("token_ids")) if path == _IDS else _prompt(body, of)

    def go_on() -> Coroutine[Any, Any, Completion]:
        return of.complete_ids(ids, **limits)

    if path == _IDS:
        return Call("generate", asked, go_on, writing.generated, False, digest)
    return Call("cmpl", asked, go_on, writing.text, asked.stream, digest)


def _prompt(body: Json, of: Completions) -> Any:
    """Return the ids of a text completion's prompt."""
    prompt: Any = body.get("prompt")
    batch = cast("list[Any]", prompt) if isinstance(prompt, list) else []
    if len(batch) == 1 and not isinstance(batch[0], int):
        prompt = batch[0]
    return of.encode(prompt) if isinstance(prompt, str) and prompt else reading.ids("prompt", prompt)
