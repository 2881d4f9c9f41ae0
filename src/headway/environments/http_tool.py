"""A tool that is an HTTP request to a fixed address.

The policy chooses the arguments and nothing else: not the host, not a header, not where a redirect leads.
Consumes a call; waits for its place in the rate, then for the service, each try at most `timeout_s`. Its
retries are its own: nobody else repeats a call.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from headway.core.errors import ToolError
from headway.core.made import must_hold
from headway.core.records import ToolSpec
from headway.core.settings import Problem, setting
from headway.environments.outside import (
    Again,
    Cache,
    OutsideLimits,
    Pace,
    Secrets,
    address_problems,
    limits_of,
    pause,
)
from headway.environments.tools import ToolRefusal, shortened

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Request

_AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
_OURS = frozenset((401, 402, 403, 407))  # the key, or the bill
_MAX_BYTES = 4 << 20
_MAX_SHOWN = 300


@dataclass(frozen=True, slots=True)
class HttpToolSettings:
    """A tool that asks a service over HTTP."""

    name: str = setting(dataclasses.MISSING, "The tool's name.", pattern=r"[A-Za-z_]\w{0,63}", form="a name")
    url: str = setting(dataclasses.MISSING, "Where it asks.", pattern=r"https?://.+", form="a URL")
    description: str = setting("", "What the policy is told of it.")
    parameters: dict[str, Any] = setting(dict, "JSON schema of each parameter, by name.")
    required: tuple[str, ...] = setting((), "Parameters that a call must have.")
    method: Literal["GET", "POST"] = setting(
        "GET", "GET puts arguments into the query, POST into a JSON body."
    )
    result: str = setting("", "Part of a JSON answer that is told, as names with dots between them.")
    headers: dict[str, str] = setting(dict, "Headers; no secrets, for a config is shown and kept.")
    secrets: dict[str, str] = setting(
        dict, "Headers that hold secrets, each with its environment variable, as in Bearer SEARCH_KEY."
    )
    only_reads: bool = setting(
        False,
        "A POST changes nothing at the service: equal calls are answered from the cache, as with GET.",
    )
    limits: dict[str, Any] = setting(dict, "Fields of OutsideLimits.")

    def problems(self) -> list[Problem]:
        """Say which required parameter there is not, and what no request can hold."""
        unknown = [name for name in self.required if name not in self.parameters]
        rule = "must be among parameters"
        found = [Problem("required", name, rule, "Describe it in parameters") for name in unknown]
        for name, value in self.headers.items():
            if not all(text.isascii() and text.isprintable() for text in (name, value)):
                found.append(Problem("headers", name, "must be lines of ASCII", "Write its value otherwise"))
        return [*address_problems(self.url), *found]


class HttpTool:
    """The tool. One object for all rollouts of a worker, so that rate and cache hold for all of them."""

    def __init__(self, settings: HttpToolSettings, limits: OutsideLimits | None = None) -> None:
        owner = f"the tool {settings.name}"
        must_hold(settings, owner, "tools.md")
        self._settings = settings
        self._limits = limits or limits_of(settings.limits, owner)
        self._secrets = Secrets(settings.secrets, owner)
        self._pace = Pace(self._limits.calls_per_s)
        self.cache = Cache(self._limits.cache_entries)
        self._client: AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        schema: dict[str, Any] = {"type": "object", "properties": settings.parameters}
        if settings.required:
            schema["required"] = list(settings.required)
        self._spec = ToolSpec(settings.name, settings.description, schema)

    @property
    def spec(self) -> ToolSpec:
        """See `Tool`."""
        return self._spec

    async def run(self, arguments: dict[str, Any]) -> str:
        """Ask the service; see `Tool`."""
        settings = self._settings
        for name in arguments:
            if name not in settings.parameters:
                raise ToolRefusal(
                    f"{settings.name} has no {name!r}. It takes {', '.join(settings.parameters)}."
                )
        if missing := [name for name in settings.required if name not in arguments]:
            raise ToolRefusal(f"{settings.name} needs {', '.join(missing)}")
        call, is_kept = json.dumps(arguments, sort_keys=True), settings.method == "GET" or settings.only_reads
        if is_kept and (known := self.cache.get(call)) is not None:
            return known
        answer = shortened(await self._asked(arguments), self._limits.max_chars)
        if is_kept:
            self.cache.put(call, answer)
        return answer

    async def _asked(self, arguments: dict[str, Any]) -> str:
        words, tries = "", self._limits.tries
        for number in range(1, tries + 1):
            await self._pace.wait()
            try:
                return await self._once(arguments)
            except Again as again:
                words = str(again)
                if number < tries:
                    await pause(self._limits, number, again)
        raise ToolError(f"the tool {self._settings.name} gave no answer after {tries} tries: {words}")

    async def _once(self, arguments: dict[str, Any]) -> str:
        from httpx2 import HTTPError

        settings = self._settings
        request = self._request(arguments)
        content = bytearray()
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                response = await self._opened().send(request, stream=True)
                try:
                    status, after = response.status_code, response.headers.get("retry-after", "")
                    async for piece in response.aiter_bytes():
                        content += piece
                        if len(content) > _MAX_BYTES:
                            raise ToolRefusal(f"{settings.name} found more than {_MAX_BYTES} bytes")
                finally:
                    await response.aclose()
        except TimeoutError:
            raise Again(f"no answer within {self._limits.timeout_s:g} s") from None
        except HTTPError as error:  # which holds the request with its headers, so it is not kept
            raise Again(self._secrets.hidden(f"{type(error).__name__}: {error}")) from None
        text = self._secrets.hidden(content.decode("utf-8", "replace"))
        if status in _AGAIN:
            raise Again(f"HTTP {status}: {text[:_MAX_SHOWN]}", float(after) if after.isdecimal() else 0.0)
        if status in _OURS or 300 <= status < 400:
            raise ToolError(
                f"the tool {settings.name} was refused: HTTP {status}: {text[:_MAX_SHOWN]}",
                remedy="Check its url and the environment variables that its secrets name",
            )
        if status >= 400:
            raise ToolRefusal(f"{settings.name} answered {status}: {text[:_MAX_SHOWN]}")
        return self._secrets.hidden(self._told(text))  # an escape of JSON may have stood for it

    def _request(self, arguments: dict[str, Any]) -> Request:
        """Return the request of a call; raise ToolRefusal for arguments that no request can hold."""
        from httpx2 import URL, InvalidURL

        settings = self._settings
        url, headers = URL(settings.url), settings.headers | self._secrets.values()
        build = self._opened().build_request
        try:
            if settings.method == "POST":
                return build("POST", url, headers=headers, json=arguments)
            query = {key: _plain(value) for key, value in arguments.items()}
            return build("GET", url.copy_merge_params(query), headers=headers)
        except InvalidURL:
            raise ToolRefusal(f"the arguments of {settings.name} are too long for a URL") from None
        except (ValueError, TypeError):  # a number that JSON has not, half a character
            raise ToolRefusal(f"the arguments of {settings.name} must be numbers and texts of JSON") from None

    def _told(self, text: str) -> str:
        """Return the part of an answer that is told."""
        if not self._settings.result:
            return text
        try:
            value: Any = json.loads(text)
            for name in self._settings.result.split("."):
                value = cast("list[Any]", value)[int(name)] if isinstance(value, list) else value[name]
        except (ValueError, RecursionError, LookupError, TypeError):
            path = self._settings.result
            raise ToolError(
                f"the answer of tool {self._settings.name} must have {path}: {text[:_MAX_SHOWN]}"
            ) from None
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _opened(self) -> AsyncClient:
        """A client belongs to the event loop that it is first used in."""
        from http.cookiejar import CookieJar, DefaultCookiePolicy

        from httpx2 import URL, AsyncClient

        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            local = URL(self._settings.url).host in ("127.0.0.1", "localhost", "::1")
            # No cookie is kept: it would make one session of all rollouts.
            none = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
            self._client = AsyncClient(timeout=None, trust_env=not local, cookies=none)
            self._loop = loop
        return self._client


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
