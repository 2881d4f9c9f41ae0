"""One OpenAI-compatible endpoint: a request, tried until it is answered or there is no sense in it.

Consumes requests; waits for a place and a rate (limiter.py), for the endpoint at most `request_timeout_s` a
try, and between tries for a back-off or as long as Retry-After says, in which nobody else asks either.

The API key is read from its environment variable at each request and put into one header; no error says it,
not even where the endpoint repeats it. Redirects are not followed, for the key would go along.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
from typing import TYPE_CHECKING, Any, cast

from headway.core.clock import wall_time
from headway.core.errors import UserError
from headway.rewards.faults import JudgeAwayError, JudgeError
from headway.rewards.limiter import Limiter
from headway.rewards.waiting import busy, outside

if TYPE_CHECKING:
    from httpx2 import AsyncClient

    from headway.rewards.settings import JudgeSettings

_AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
_BUSY = frozenset((429, 503, 529))  # an answer that says when to come again holds for everybody
_AWAY = frozenset((408, 425, 429, 502, 503, 504, 529))  # whatever is asked; 500 may be for what is asked
_LOCAL = ("127.0.0.1", "localhost", "::1")
_MAX_BYTES = 4 << 20  # of an answer
_MAX_SHOWN = 200  # characters of an endpoint's words in an error
_MAX_DOUBLINGS = 6


class _Again(Exception):
    """A try that failed and may be repeated; `after_s` is what the endpoint asks for, None without.

    `away` says that any other question would have failed too.
    """

    def __init__(
        self, words: str, after_s: float | None = None, *, busy: bool = False, away: bool = False
    ) -> None:
        super().__init__(words)
        self.after_s = after_s
        self.busy = busy
        self.away = away


class Endpoint:
    """A judge's API. Of one event loop.

    Args:
        settings: of the judge.
        share: of the rate that is this process's, 1 for all of it.
    """

    def __init__(self, settings: JudgeSettings, share: float = 1.0) -> None:
        self._settings = settings
        self._limiter = Limiter(settings.max_concurrent, settings.requests_per_min * share)
        self._client: AsyncClient | None = None
        self.num_requests = 0  # tries included

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a chat completion.

        Raises JudgeError when it is refused, or after all tries (JudgeAwayError where any question would have
        failed); UserError without the API key.
        """
        settings = self._settings
        words, away = "", False
        for number in range(1, settings.max_tries + 1):
            try:
                async with self._limiter.place():
                    self.num_requests += 1
                    with busy(f"the judge at {settings.url} (try {number} of {settings.max_tries})"):
                        return await self._once(body)
            except _Again as again:
                words, away = str(again), again.away
                if number < settings.max_tries:
                    await self._pause(number, again)
        tries = f"{settings.max_tries} tries" if settings.max_tries > 1 else "the one try"
        kind = JudgeAwayError if away else JudgeError
        raise kind(f"the judge at {settings.url} gave no answer after {tries}: {words}")

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _pause(self, number: int, again: _Again) -> None:
        settings = self._settings
        if again.after_s is None:
            longest_s = settings.backoff_s * 2 ** min(number - 1, _MAX_DOUBLINGS)
            await asyncio.sleep(longest_s * random.uniform(0.5, 1.0))
            return
        if again.after_s > settings.max_retry_after_s:
            raise JudgeAwayError(
                f"the judge at {settings.url} asks to come again in {again.after_s:g} s: {again}",
                remedy="Raise judge.max_retry_after_s, or lower judge.requests_per_min",
            )
        if again.busy:
            self._limiter.pause(again.after_s)
        with outside():
            await asyncio.sleep(again.after_s)

    async def _once(self, body: dict[str, Any]) -> dict[str, Any]:
        from httpx2 import HTTPError, InvalidURL

        settings, key = self._settings, self._key()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        content = json.dumps(body).encode()  # escapes what UTF-8 has no form for
        try:
            async with (
                asyncio.timeout(settings.request_timeout_s),
                self._opened().stream(
                    "POST", settings.url.rstrip("/") + "/chat/completions", content=content, headers=headers
                ) as response,
            ):
                status, after = response.status_code, response.headers.get("retry-after")
                said = bytearray()
                async for piece in response.aiter_bytes():
                    said += piece
                    if len(said) > _MAX_BYTES:
                        raise JudgeError(f"the judge's answer must have at most {_MAX_BYTES} bytes")
        except TimeoutError:
            raise _Again(f"no answer within {settings.request_timeout_s:g} s", away=True) from None
        except InvalidURL as error:
            raise JudgeError(f"the judge's address is none: {error}") from None
        except HTTPError as error:  # a header with the key is in its request, which is not kept
            raise _Again(_without(key, f"{type(error).__name__}: {error}"), away=True) from None
        text = _without(key, said.decode("utf-8", "replace"))
        if status in _AGAIN:
            words, is_away = f"HTTP {status}: {_short(text)}", status in _AWAY
            raise _Again(words, _seconds(after), busy=status in _BUSY, away=is_away)
        if status != 200:
            raise JudgeError(
                f"the judge at {settings.url} refused: HTTP {status}: {_short(text)}",
                remedy=_REMEDIES.get(status, ""),
            )
        try:
            found: object = json.loads(text)
        except (ValueError, RecursionError):
            raise _Again(f"an answer that is no JSON: {_short(text)}") from None
        if not isinstance(found, dict):
            raise _Again(f"an answer that is no JSON object: {_short(text)}")
        return cast("dict[str, Any]", found)

    def _opened(self) -> AsyncClient:
        if self._client is None:
            from httpx2 import URL, AsyncClient

            # A proxy of the environment is for what is elsewhere.
            is_local = URL(self._settings.url).host in _LOCAL
            self._client = AsyncClient(timeout=None, trust_env=not is_local)
        return self._client

    def _key(self) -> str:
        name = self._settings.key_env
        if not name:
            return ""
        key = os.environ.get(name, "").strip()
        if not key:
            raise no_key()
        return key


_REMEDIES = {
    400: 'Where it knows no JSON schemas, set judge.response_format = "object" or "none"',
    401: "Check the environment variable that judge.key_env names",
    403: "Check the environment variable that judge.key_env names",
    404: "Check judge.url, which ends with the version, as in /v1, and judge.model",
}


def no_key() -> UserError:
    """Return the error of a key that is not there."""
    return UserError(
        "the environment variable that judge.key_env names must hold the API key",
        key="judge.key_env",
        remedy="Set it where Headway is started",
    )


def _without(key: str, text: str) -> str:
    return text.replace(key, "[key]") if key else text


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ..."


def _seconds(after: str | None) -> float | None:
    """Return what a Retry-After header means, seconds or a date; None for anything else."""
    if after is None:
        return None
    try:
        return max(0.0, float(after))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(after).timestamp() - wall_time())
    except (ValueError, TypeError):
        return None
