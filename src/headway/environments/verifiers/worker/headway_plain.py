"""A harness for tasksets that name none: one question, one answer, in the worker process itself.

verifiers' own default for such a taskset is a program that runs shell commands on this machine.
"""

# pyright: basic
# Nothing of the library can be imported where this is checked.

from __future__ import annotations

from importlib import import_module
from typing import Any

_harness: Any = import_module("verifiers.v1.harness")
_runtimes: Any = import_module("verifiers.v1.runtimes")
_configs: Any = import_module("verifiers.v1.configs.harness")
_chat: Any = import_module("verifiers.v1.dialects.chat")
_openai: Any = import_module("openai")

__all__ = ["Plain", "PlainConfig"]


class PlainConfig(_configs.HarnessConfig):
    """It takes nothing."""


class Plain(_harness.Harness[PlainConfig]):
    """Asks the policy once."""

    APPENDS_SYSTEM_PROMPT = True
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
        """Ask; what is answered is recorded on the way."""
        if mcp_urls:
            raise RuntimeError(
                "a taskset with tools needs a harness that has them: environment.args.harness = "
                '{ id = "null" }, which needs the program uv'
            )
        system, prompt = self.resolve_prompt(data)
        if prompt is None:
            raise RuntimeError("a task must have a prompt: nobody plays the user here")
        messages: list[Any] = [] if system is None else [{"role": "system", "content": system}]
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [_chat.message_to_wire(message) for message in prompt]
        client = _openai.AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0, timeout=None)
        async with client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return _runtimes.ProgramResult(exit_code=0, stdout="", stderr="")
