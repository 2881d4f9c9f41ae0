"""Tools of an MCP server, over standard input and output or streamable HTTP; needs the extra `mcp`.

A rollout opens a session of its own and closes it: what a server remembers of one rollout, no other one sees.
A server that is started by a command runs on this machine with your rights, outside every sandbox.

Consumes calls; waits for the server, each at most `timeout_s`. Opening a session is tried again. A call is
not: it may have done something. What a tool reports as its error is told to the policy; a server that is not
there, dies, or is silent is a ToolError.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from headway.core.errors import ToolError, UserError
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
    from collections.abc import AsyncGenerator

_BAD_ARGUMENTS = -32602  # JSON-RPC: invalid params
_MAX_TOOLS = 1000  # of a server: no prompt holds more


@dataclass(frozen=True, slots=True)
class McpSettings:
    """An MCP server: `command` or `url`."""

    name: str = setting(dataclasses.MISSING, "What messages call it.")
    command: tuple[str, ...] = setting((), "Program with its arguments, started for each rollout.")
    url: str = setting("", "Address of a server that speaks streamable HTTP.")
    tools: tuple[str, ...] = setting((), "Tools of it that the policy gets, in this order; empty for all.")
    variables: dict[str, str] = setting(dict, "Environment of the program; no secrets.")
    secrets: dict[str, str] = setting(
        dict,
        "Secrets: variables of the program, or headers of the requests, each with its environment variable, "
        "as in Bearer SEARCH_KEY.",
    )
    limits: dict[str, Any] = setting(dict, "Fields of OutsideLimits.")

    def problems(self) -> list[Problem]:
        """Say when it is not exactly one of command and url, or the url is none."""
        if bool(self.command) != bool(self.url):
            return address_problems(self.url) if self.url else []
        return [Problem("command", self.command, "must be given, or url, and not both", "Keep one of them")]


class McpServer:
    """A server as rollouts see it; one object for all of a worker, so that rate and cache hold for all."""

    def __init__(self, settings: McpSettings, limits: OutsideLimits | None = None) -> None:
        owner = f"the MCP server {settings.name}"
        must_hold(settings, owner, "tools.md")
        self.settings = settings
        self.limits = limits or limits_of(settings.limits, owner)
        self.secrets = Secrets(settings.secrets, owner, in_headers=bool(settings.url))
        self.pace = Pace(self.limits.calls_per_s)
        self.cache = Cache(self.limits.cache_entries)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[list[McpTool]]:
        """Open a session: the server's tools, as long as the context is open.

        Raises ToolError when the server cannot be reached, UserError without the extra.
        """
        inside: BaseException | None = None
        is_open = False
        try:
            async with AsyncExitStack() as stack:
                session = await self._connected(stack)
                tools = await self._listed(session)
                is_open = True
                try:
                    yield tools
                except BaseException as error:
                    inside = error
                    raise
        except Exception as error:  # the client's task group wraps what is raised within it
            if inside is not None:
                raise inside from None
            if not is_open:
                raise self.failed(error) from None
            # else: the rollout had what it wanted, and how the session ends is nothing to it

    def failed(self, error: Exception) -> ToolError | UserError:
        """Return what an exception of the client says, without secrets."""
        error = _first(error)
        if isinstance(error, (ToolError, UserError)):
            return error
        if isinstance(error, TimeoutError):
            words = f"no answer within {self.limits.timeout_s:g} s"
        elif hasattr(error, "errors"):  # pydantic's, which quotes the input
            wrong: Any = cast("Any", error).errors(
                include_input=False, include_url=False, include_context=False
            )
            places = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in wrong)
            words = f"what it said is not as MCP has it: {'; '.join(places)}"
        else:
            words = " ".join(str(error).split())
        text = self.secrets.hidden(f"{type(error).__name__}: {words}")
        return ToolError(f"the MCP server {self.settings.name} failed: {text[:300]}")

    async def _connected(self, stack: AsyncExitStack) -> Any:
        tries = self.limits.tries
        for number in range(1, tries + 1):
            try:
                async with AsyncExitStack() as trial:
                    async with asyncio.timeout(self.limits.timeout_s):
                        session = await self._session(trial)
                    stack.push_async_exit(trial.pop_all())
                    return session
            except Exception as error:
                if number == tries or isinstance(_first(error), (ToolError, UserError)):
                    raise self.failed(error) from None
                await pause(self.limits, number, Again(""))
        raise AssertionError("tries is at least 1")

    async def _session(self, stack: AsyncExitStack) -> Any:
        try:
            from mcp import ClientSession
            from mcp.client.stdio import StdioServerParameters, stdio_client
            from mcp.client.streamable_http import streamable_http_client
        except ImportError as error:
            raise UserError(
                "MCP tools need the package mcp", remedy='Install it: pip install "headway[mcp]"'
            ) from error
        # It quotes what it cannot read, which may tell secrets, and would go into the worker's log.
        logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
        secrets = self.secrets.values()
        if self.settings.url:
            from httpx2 import AsyncClient

            client = await stack.enter_async_context(
                AsyncClient(headers=secrets, timeout=self.limits.timeout_s)
            )
            opening: Any = streamable_http_client(self.settings.url, http_client=client)
        else:
            program, *arguments = self.settings.command
            given = StdioServerParameters(
                command=program, args=arguments, env={**self.settings.variables, **secrets}
            )
            # What it writes on its standard error may tell its secrets, and would go into the worker's log.
            silent = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: ASYNC230, SIM115
            opening = stdio_client(given, errlog=silent)
        streams = await stack.enter_async_context(opening)
        session = await stack.enter_async_context(ClientSession(*streams[:2]))
        await session.initialize()
        return session

    async def _listed(self, session: Any) -> list[McpTool]:
        found: dict[str, McpTool] = {}
        async with asyncio.timeout(self.limits.timeout_s):
            listed = await session.list_tools()
            while True:
                for tool in listed.tools:
                    if found.setdefault(str(tool.name), one := McpTool(self, session, tool)) is not one:
                        raise self._wrong(f"has two tools {tool.name}", "Mend the server")
                if len(found) > _MAX_TOOLS:
                    raise self._wrong(f"has more than {_MAX_TOOLS} tools", "Choose another server")
                if not listed.next_cursor:
                    break
                from mcp.types import PaginatedRequestParams

                listed = await session.list_tools(params=PaginatedRequestParams(cursor=listed.next_cursor))
        wanted = self.settings.tools or tuple(found)
        if missing := [name for name in wanted if name not in found]:
            raise self._wrong(f"has no tool {missing[0]}", f"It has {', '.join(found)[:300]}")
        return [found[name] for name in wanted]

    def _wrong(self, rule: str, remedy: str) -> ToolError:
        hidden = self.secrets.hidden
        return ToolError(hidden(f"the MCP server {self.settings.name} {rule}"), remedy=hidden(remedy))


class McpTool:
    """One tool of an open session."""

    def __init__(self, server: McpServer, session: Any, told: Any) -> None:
        self._server = server
        self._session = session
        self._name = str(told.name)
        schema = server.secrets.hidden(json.dumps(dict(told.input_schema), ensure_ascii=False))
        words = server.secrets.hidden(told.description or "")
        self._spec = ToolSpec(server.secrets.hidden(self._name), words, json.loads(schema))
        self._only_reads = bool(told.annotations and told.annotations.read_only_hint)

    @property
    def spec(self) -> ToolSpec:
        """See `Tool`."""
        return self._spec

    async def run(self, arguments: dict[str, Any]) -> str:
        """Ask the server; see `Tool`. Only a tool that says that it only reads is answered from the cache."""
        from mcp.shared.exceptions import MCPError

        server, name = self._server, self._name
        call = json.dumps([name, arguments], sort_keys=True)
        if self._only_reads and (known := server.cache.get(call)) is not None:
            return known
        await server.pace.wait()
        try:
            async with asyncio.timeout(server.limits.timeout_s):
                result = await self._session.call_tool(name, arguments)
        except MCPError as error:
            if error.code != _BAD_ARGUMENTS:
                raise server.failed(error) from None
            raise ToolRefusal(server.secrets.hidden(str(error.error.message))) from None
        except Exception as error:
            raise server.failed(error) from None
        text = shortened(server.secrets.hidden(_text(result)), server.limits.max_chars)
        if result.is_error:
            raise ToolRefusal(text)
        if self._only_reads:
            server.cache.put(call, text)
        return text


def _first(error: Exception) -> Exception:
    """Return the first exception within groups."""
    while isinstance(error, ExceptionGroup):
        error = cast("Exception", cast("Any", error).exceptions[0])
    return error


def _text(result: Any) -> str:
    parts = [part.text if part.type == "text" else f"[{part.type} left out]" for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)
