"""Tasksets (verifiers 0.4.x), played by one agent.

The agent's harness speaks to verifiers' own server, which forwards to the endpoint that a request names; the
token ids of each answer, whole or streamed, are asked for, and noted, on that way.
"""

# pyright: basic
# Nothing of the library can be imported where this is checked.

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

from headway_child import Fault, in_words
from headway_v0 import seen

_PLAIN = "headway-plain"
_KEY_HEADER = "X-Session"
_INFRASTRUCTURE = ("SandboxError", "TunnelError", "InterceptionError")
_answers: dict[str, list[dict[str, Any] | None]] = defaultdict(list)
"""What clients were answered, by the key of their rollout."""


class Half:
    """One taskset."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._v1: Any = import_module("verifiers.v1")
        self._env: Any = None
        self._tasks: list[Any] = []
        self._serving: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load the taskset; see `headway_child.Half`."""
        loaders: Any = import_module("verifiers.v1.utils.loaders")
        single: Any = import_module("verifiers.v1.envs.single_agent")
        name = self._module.__name__
        harness = request["harness"]
        if not harness and loaders.default_harness_id(name) == "bash":
            harness = {"id": _PLAIN}
        agent: dict[str, Any] = {"runtime": {"type": "subprocess"}}
        if harness:
            agent["harness"] = harness
        try:
            config = loaders.resolve_env_config({"taskset": {**request["args"], "id": name}, "agent": agent})
            self._env = loaders.load_environment(config)
            if not isinstance(self._env, single.SingleAgentEnv):
                rule = "an environment of several agents is not supported: one policy plays one agent"
                raise Fault("setup", rule)
            self._tasks = list(itertools.islice(self._env.taskset, request["max_tasks"]))
        except Fault:
            raise
        except Exception as error:
            rule = f"the taskset must load with environment.args.args: {in_words(error)}"
            raise Fault("setup", rule) from error
        _watch_clients()
        version = getattr(import_module("verifiers"), "__version__", "unknown")
        return {"api": "v1", "version": version, "train": [_key(task) for task in self._tasks], "eval": []}

    def row(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a task; see `headway_child.Half`."""
        task = self._tasks[request["index"]]
        found = [] if task.data.system_prompt is None else [("system", task.data.system_prompt)]
        prompt = task.data.prompt
        if isinstance(prompt, str):
            found.append(("user", prompt))
        else:
            found += [(message.role, str(message.content or "")) for message in prompt or []]
        return {"key": _key(task), "messages": [{"role": role, "content": text} for role, text in found]}

    async def rollout(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run an episode, which verifiers scores too; see `headway_child.Half`."""
        task = self._tasks[request["index"]]
        if _key(task) != request["key"]:
            rule = "a taskset must load the same tasks each time: this one is another than before"
            raise Fault("environment", rule)
        await self._serve()
        key = request["api_key"]
        client = self._v1.EvalClientConfig(
            base_url=request["base_url"], api_key_var="HEADWAY_NO_KEY", headers={_KEY_HEADER: key}
        )
        context = self._v1.ModelContext(model=request["model"], client=client)
        try:
            episode = await self._env.run_episode(task, context)
            answers = list(_answers[key])
        finally:
            _answers.pop(key, None)
        failures = _failures(episode)
        trace = episode.traces[-1]
        rewards = {} if failures else {name: each.value for name, each in trace.rewards.items()}
        if not failures and (not rewards or not all(map(math.isfinite, rewards.values()))):
            failures = [f"a task must have finite rewards, these are {rewards!r}"]
        numbers = {**trace.metrics, **rewards}
        metrics = {name: float(value) for name, value in numbers.items() if value is not None}
        return {
            "reward": None if failures else sum(rewards.values()),
            "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)},
            "failures": failures,
            "left_out": {},
            "kept": "",
            "turns": answers,
            "dropped": max(0, len(answers) - trace.num_turns),
            "empty": False,
            "stop": trace.stop_condition or "",
            "truncated": any(call.finish_reason == "length" for call in trace.calls),
        }

    async def score(self, request: dict[str, Any]) -> dict[str, Any]:
        """Refuse; an episode is scored in its own runtime, which is gone."""
        raise Fault("reward", "an episode cannot be scored again")

    async def _serve(self) -> None:
        """Have what verifiers shares among rollouts; one task enters and leaves it."""
        if self._serving is None:
            self._serving = asyncio.get_running_loop().create_task(self._serve_for_ever())
        waiting = asyncio.get_running_loop().create_task(self._ready.wait())
        await asyncio.wait({waiting, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.is_set():
            waiting.cancel()
            error = self._serving.exception()
            self._serving = None
            raise Fault("infrastructure", in_words(error) if error else "verifiers' server ended")

    async def _serve_for_ever(self) -> None:
        async with self._env.serving():
            self._ready.set()
            await asyncio.Event().wait()


def _key(task: Any) -> str:
    fields = task.data.model_dump(mode="json", exclude_none=True, exclude={"idx"})
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def _failures(episode: Any) -> list[str]:
    """Return why scoring failed; raise Fault for what failed before."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if episode.is_timeout or any(trace.is_timeout for trace in episode.traces):
        raise Fault("environment", "a time limit of the taskset passed, which counts waiting for the policy")
    if len(episode.traces) != 1 and not errors:
        raise Fault("environment", f"an episode must have one trace, this one has {len(episode.traces)}")
    if not errors:
        return []
    last = errors[-1]
    words = f"{last.type}: {last.message}"[:1200]
    if last.type == "TaskError" and "scoring" in last.message:
        return [words]
    raise Fault("infrastructure" if last.type in _INFRASTRUCTURE else "environment", words)


class _Noting:
    """The client of one rollout: says whose its requests are, asks for token ids, and notes those that come.

    What sends them is shared by all rollouts. Otherwise verifiers keeps a client for each rollout's headers,
    with a pool of connections that nobody closes.
    """

    def __init__(self, shared: Any, key: str) -> None:
        self._shared = shared
        self._key = key

    async def get_response(self, dialect: Any, body: Any, *rest: Any, **more: Any) -> Any:
        body = {**body, "return_token_ids": True}
        response = await self._shared.get_response(dialect, body, *rest, **self._mine(more))
        choices = (response.raw or {}).get("choices") or [{}]
        _answers[self._key].append(seen(choices[0].get("token_ids")))
        return response

    async def relay(self, dialect: Any, body: Any, *rest: Any, **more: Any) -> Any:
        body = {**body, "return_token_ids": True}
        reply = await self._shared.relay(dialect, body, *rest, **self._mine(more))
        reply.chunks = noted(reply.chunks, _answers[self._key])
        return reply

    async def relay_aux(self, *rest: Any, **more: Any) -> Any:
        return await self._shared.relay_aux(*rest, **self._mine(more))

    def _mine(self, more: dict[str, Any]) -> dict[str, Any]:
        sent = (more.get("headers") or {}).items()
        others = {name: value for name, value in sent if name.lower() != _KEY_HEADER.lower()}
        return {**more, "headers": {**others, _KEY_HEADER: self._key}}


def _watch_clients() -> None:
    server: Any = import_module("verifiers.v1.interception.server").InterceptionServer
    if not hasattr(server, "_client"):
        rule = "this version of verifiers is not supported: its server has no clients that can be watched"
        raise Fault("setup", rule)
    make = server._client
    if hasattr(make, "headway"):
        return

    def client(self: Any, config: Any) -> Any:
        headers = dict(config.headers)
        key = headers.pop(_KEY_HEADER, None)
        if key is None:  # some other endpoint, such as another model's
            return make(self, config)
        return _Noting(make(self, config.model_copy(update={"headers": headers})), key)

    client.headway = True  # type: ignore[attr-defined]
    server._client = client


async def noted(events: AsyncIterator[bytes], answers: list[dict[str, Any] | None]) -> AsyncIterator[bytes]:
    """Yield a streamed answer's events unchanged; at its end append what token ids it held, None for none."""
    ids: list[int] | None = None
    async for event in events:
        for line in event.splitlines():
            if line.startswith(b"data:") and (text := line[5:].strip()).startswith(b"{"):
                choices = json.loads(text).get("choices") or [{}]
                if (found := choices[0].get("token_ids")) is not None:
                    ids = [*(ids or []), *found]
        yield event
    answers.append(seen(ids))
