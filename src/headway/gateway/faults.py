"""What a client is told when something is wrong: the OpenAI API's form, with a remedy."""

from __future__ import annotations

from typing import Any

from headway.core.errors import (
    ContextFullError,
    EngineError,
    EnvironmentFault,
    HeadwayError,
    ModelError,
)


class ApiError(Exception):
    """An error as it goes to the client."""

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """The response's JSON."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def invalid(param: str, rule: str) -> ApiError:
    """Return the error of a field of the request."""
    return ApiError(400, f"{param} {rule}", code="invalid_value", param=param)


def ended(why: str) -> ApiError:
    """Return the error of a rollout that can answer nothing any more; clients do not retry it."""
    message = f"this key opens no rollout any more: {why}. Stop; a further request is answered likewise."
    return ApiError(403, message, code="rollout_ended")


def unknown_key() -> ApiError:
    """Return the error of a request without a key, or with one that opens nothing here."""
    return ApiError(
        401,
        "the key must be that of a rollout that runs here: its rollout may have ended, or the environment "
        "worker that ran it died. Send OPENAI_API_KEY as `Authorization: Bearer KEY` or `X-Session: KEY`.",
        code="invalid_api_key",
    )


def told(error: Exception, max_context_tokens: int) -> ApiError:
    """Return what a client is told of an error of the rollout."""
    match error:
        case ApiError():
            return error
        case ContextFullError():
            rule = f"This model's maximum context length is {max_context_tokens} tokens: {error.rule}. "
            remedy = "Shorten the messages, or raise generator.max_context_tokens."
            return ApiError(400, rule + remedy, code="context_length_exceeded", param="messages")
        case ModelError():
            return ApiError(400, str(error), code="invalid_messages", param="messages")
        case EnvironmentFault():
            return ApiError(400, str(error), code="refused")
        case EngineError():
            return ApiError(503, f"{error}. Ask again.", code="engine_lost")
        case HeadwayError():
            return ApiError(500, str(error), code="rollout_failed")
        case _:
            return ApiError(500, f"{type(error).__name__}: {error}", code="internal_error")
