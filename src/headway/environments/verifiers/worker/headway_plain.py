"""A harness for tasksets that name none: a conversation in the worker itself, with the taskset's tools.

verifiers' own default for such a taskset is a program that runs shell commands on this machine. Asks the
policy, runs the tools that it calls, and asks again; an answer without a call ends the rollout, as a full
context does.
"""

# pyright: basic
# Nothing of the library can be imported where this is checked.

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from importlib import import_module
from typing import Any

_harness: Any = import_module("verifiers.v1.harness")
_runtimes: Any = import_module("verifiers.v1.runtimes")
_configs: Any = import_module("verifiers.v1.configs.harness")
_chat: Any = import_module("verifiers.v1.dialects.chat")
_openai: Any = import_module("openai")

__all__ = ["Plain", "PlainConfig"]


class PlainConfig(_configs.HarnessConfig):
    """What it takes."""

    max_answers: int = 20
    """Answers of the policy at most; what it calls in the last one is not run."""


class Plain(_harness.Harness[PlainConfig]):
    """Asks the policy, with the tools of the taskset."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        """Converse; what is answered is recorded on the way."""
        system, prompt = self.resolve_prompt(data)
        if prompt is None:
            raise RuntimeError("a task must have a prompt: nobody plays the user here")
        messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [_chat.message_to_wire(message) for message in prompt]
        client = _openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None)
        async with client, AsyncExitStack() as stack:
            tools = _Tools()
            if mcp_urls:
                await tools.connect(mcp_urls, self.config.tool_timeout, stack)
            for at in range(self.config.max_answers):
                try:
                    answer = await client.chat.completions.create(
                        model=ctx.model, messages=messages, **tools.offered
                    )
                except _openai.BadRequestError as error:
                    if at and "context_length_exceeded" in str(error):
                        break
                    raise
                said = answer.choices[0].message
                if not said.tool_calls:
                    break
                messages.append(said.model_dump(exclude_none=True))
                if at + 1 < self.config.max_answers:
                    messages += [await tools.result(call) for call in said.tool_calls]
        return _runtimes.ProgramResult(exit_code=0, stdout="", stderr="")


class _Tools:
    """The taskset's tool servers."""

    def __init__(self) -> None:
        self.offered: dict[str, Any] = {}
        self._mcp: Any = None
        self._servers: Any = {}
        self._by_name: dict[str, Any] = {}

    async def connect(self, urls: dict[str, str], timeout_s: float, stack: AsyncExitStack) -> None:
        self._mcp = import_module("verifiers.v1.harnesses.utils.mcp")
        servers = {name: {"url": url, "timeout": timeout_s} for name, url in urls.items()}
        found = await self._mcp.connect_mcp({"mcpServers": servers}, stack)
        schemas, self._by_name, self._servers = found
        if schemas:
            self.offered = {"tools": schemas}

    async def result(self, call: Any) -> dict[str, Any]:
        """Return the message that answers a call; a call that is wrong is told what is."""
        name = call.function.name
        try:
            arguments = json.loads(call.function.arguments or "{}")
        except json.JSONDecodeError as error:
            arguments, text = None, f"error: the arguments are not JSON ({error})"
        else:
            text = f"error: the arguments must be an object, not {type(arguments).__name__}"
        if isinstance(arguments, dict):
            if name in self._by_name:
                text = await self._mcp.call_mcp(self._servers, self._by_name, name, arguments)
            else:
                text = f"error: there is no tool {name}; there are {', '.join(self._by_name)}"
        return {"role": "tool", "tool_call_id": call.id, "content": text}
