"""Packages with a `load_environment` (verifiers 0.1.14 to 0.3.x).

The package runs its own rollout against an OpenAI client of the endpoint that a request names, then scores it
by its own rubric. What a reward function raises, or returns that is no number, is kept: the rubric itself
logs it and goes on with 0.0.
"""

# pyright: basic
# Nothing of the library can be imported where this is checked.

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from headway_child import Fault, in_words

_MAX_KEPT = 64  # states whose rewards failed, for another try
_ENDED_BY_POLICY = ("EmptyModelResponseError",)


class _Tally:
    """What reward functions raised while one rollout is scored, by name."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}
        self.left_out: dict[str, str] = {}


_tally: ContextVar[_Tally | None] = ContextVar("tally", default=None)


class Half:
    """One environment of a package."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._vf: Any = import_module("verifiers")
        self._env: Any = None
        self._rows: dict[str, Any] = {}
        self._kept: OrderedDict[str, Any] = OrderedDict()
        self._num_kept = 0

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load the environment; see `headway_child.Half`."""
        try:
            env = self._env = self._module.load_environment(**request["args"])
        except Exception as error:
            rule = f"load_environment must take environment.args.args: {in_words(error)}"
            raise Fault("setup", rule) from error
        _watch_rewards(import_module("verifiers.rubrics.rubric").Rubric)
        groups = getattr(env.rubric, "has_group_rewards", None)
        if callable(groups):
            groups = groups()
        if groups:
            rule = "a rubric may have no rewards of whole groups: Headway scores each rollout by itself"
            raise Fault("setup", rule)
        if not getattr(env, "score_rollouts", True):
            raise Fault("setup", "the environment must score its rollouts; it says score_rollouts=False")
        self._rows["train"] = _rows(env, "dataset", request["max_tasks"])
        self._rows["eval"] = _rows(env, "eval_dataset", request["max_tasks"])
        version = getattr(self._vf, "__version__", "unknown")
        keys = {split: [key_of(row) for row in rows] for split, rows in self._rows.items()}
        return {"api": "v0", "version": str(version), **keys}

    def row(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a task; see `headway_child.Half`."""
        row = self._row(request)
        return {"key": key_of(row), "messages": [_message(message) for message in _prompt(row)]}

    async def rollout(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run a rollout and score it; see `headway_child.Half`."""
        row = self._row(request)
        if key_of(row) != request["key"]:
            rule = "load_environment must make the same tasks each time: this one is another than before"
            raise Fault("environment", rule)
        openai: Any = import_module("openai")
        clients: Any = import_module("verifiers.clients")
        asks_text = getattr(self._env, "message_type", "chat") == "completion"
        kind = clients.OpenAICompletionsClient if asks_text else clients.OpenAIChatCompletionsClient
        sampling = {"logprobs": 1 if asks_text else True, "extra_body": {"return_token_ids": True}}
        native = openai.AsyncOpenAI(
            base_url=request["base_url"], api_key=request["api_key"], max_retries=0, timeout=None
        )
        async with native:
            state = await self._env.rollout(dict(row), kind(native), request["model"], sampling)
            empty = _must_be_whole(state)
            scored = await self._scored(state)
        kept = ""
        if scored["failures"]:
            self._num_kept += 1
            kept = str(self._num_kept)
            self._kept[kept] = state
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return {
            **scored,
            "kept": kept,
            "turns": [_turn(step) for step in state["trajectory"]],
            "empty": empty,
            "stop": str(state.get("stop_condition") or ""),
            "truncated": bool(state.get("is_truncated")),
        }

    async def score(self, request: dict[str, Any]) -> dict[str, Any]:
        """Score a kept rollout again; see `headway_child.Half`."""
        state = self._kept.get(request["kept"])
        if state is None:
            raise Fault("reward", "the rollout's state is not kept any more, so it cannot be scored again")
        scored = await self._scored(state)
        if not scored["failures"]:
            self._kept.pop(request["kept"], None)
        return scored

    async def _scored(self, state: Any) -> dict[str, Any]:
        tally = _Tally()
        token = _tally.set(tally)
        failures: list[str] = []
        try:
            await self._env.rubric.score_rollout(state)
            await self._env.rubric.cleanup(state)
        except Exception as error:
            failures.append(in_words(error))
        finally:
            _tally.reset(token)
        failures += [f"the reward function {name} raised {words}" for name, words in tally.failures.items()]
        reward = state.get("reward")
        if not failures and not _is_number(reward):
            failures.append(f"the rubric's reward must be a finite number, it is {reward!r}")
        if failures:
            return {"reward": None, "metrics": {}, "failures": failures, "left_out": tally.left_out}
        found = {name: value for name, value in (state.get("metrics") or {}).items() if _is_number(value)}
        metrics = {str(name): float(value) for name, value in found.items() if name not in tally.left_out}
        return {"reward": float(reward), "metrics": metrics, "failures": [], "left_out": tally.left_out}

    def _row(self, request: dict[str, Any]) -> Any:
        return self._rows[request["split"]][request["index"]]


def key_of(row: Any) -> str:
    """Return what tells a task from others: a hash of its prompt, answer and other columns."""
    fields = {name: value for name, value in row.items() if name != "example_id"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def seen(ids: Any) -> dict[str, Any] | None:
    """Return how many token ids there are, and their hash; None for none."""
    if ids is None:
        return None
    return {"num": len(ids), "digest": hashlib.sha256(array("i", ids).tobytes()).hexdigest()}


def _rows(env: Any, name: str, most: int) -> Any:
    build = getattr(env, f"build_{name}", None)
    found = build() if build is not None else getattr(env, name, None)
    if found is None:
        return []
    return found if len(found) <= most else found.select(range(most))


def _prompt(row: Any) -> list[Any]:
    prompt = row.get("prompt")
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or [])


def _message(message: Any) -> dict[str, str]:
    content = message.get("content") or ""
    if not isinstance(content, str):
        kinds = {part.get("type") for part in content}
        if kinds - {"text"}:
            raise Fault("setup", f"a prompt may hold text only, not {', '.join(map(str, kinds))}")
        content = "".join(part.get("text") or "" for part in content)
    return {"role": str(message.get("role")), "content": content}


def _turn(step: Any) -> dict[str, Any] | None:
    tokens = step.get("tokens")
    return None if not tokens else seen(tokens.get("completion_ids"))


def _must_be_whole(state: Any) -> bool:
    """Raise Fault for a rollout that an error ended; return whether an answer without text did."""
    error = state.get("error")
    if error is None:
        if state.get("timed_out"):
            rule = "the environment's own timeout_seconds passed, which counts waiting for the policy"
            raise Fault("environment", rule)
        return False
    if isinstance(error, BaseException) and type(error).__name__ in _ENDED_BY_POLICY:
        return True
    names = {cls.__name__ for cls in type(error).__mro__}
    words = in_words(error) if isinstance(error, BaseException) else str(error)
    raise Fault("infrastructure" if names & {"InfraError", "TunnelError"} else "environment", words)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _watch_rewards(base: type[Any]) -> None:
    for cls in (base, *_below(base)):
        own = vars(cls).get("_call_individual_reward_func")
        if own is not None and not hasattr(own, "headway"):
            cls._call_individual_reward_func = _watched_call(own)


def _below(cls: type[Any]) -> Iterator[type[Any]]:
    for each in cls.__subclasses__():
        yield each
        yield from _below(each)


def _watched_call(call: Callable[..., Any]) -> Callable[..., Any]:
    names = list(inspect.signature(call).parameters)

    @functools.wraps(call)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        rubric, func = given["self"], given["func"]
        weights = [weight for own, weight in zip(rubric.funcs, rubric.weights, strict=False) if own is func]
        counts = any(weights) or not weights
        return await call(**given | {"func": _watched_reward(func, counts=counts)})

    watched.headway = True  # type: ignore[attr-defined]
    return watched


def _watched_reward(reward: Callable[..., Any], *, counts: bool) -> Callable[..., Any]:
    """Return a reward function that notes what it raises, or returns that is no number.

    `counts` says whether it has a weight; of one without, only its metric is left out.
    """
    name = getattr(reward, "__name__", repr(reward))

    @functools.wraps(reward)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        tally = _tally.get()
        try:
            value = reward(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            if not math.isfinite(float(value)):
                raise ValueError(f"a reward must be finite, it is {value!r}")
        except Exception as error:
            if tally is not None:
                (tally.failures if counts else tally.left_out)[name] = in_words(error)
            raise
        return value

    return watched
