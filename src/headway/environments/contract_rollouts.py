"""The part of the contract tests that runs rollouts and scores them, with a scripted policy."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from headway.core.errors import SandboxError, ToolError
from headway.core.events import SandboxRefused, SandboxWanted
from headway.core.protocols import Outcome
from headway.core.records import Reward
from headway.environments.faults import describe_exception
from headway.environments.lease import SandboxLease
from headway.environments.record import Record
from headway.environments.scripted import NotScriptedError, ScriptedChat
from headway.rewards.check import checked

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headway.core.events import Event
    from headway.core.protocols import Environment, Sandbox, SandboxProvider
    from headway.core.records import Message, Task

_ROLLOUT_S = 120.0
_NONSENSE = ("", "I do not know.")
Line = tuple[str, Literal["ok", "warning", "error"], str, str]


@dataclass(slots=True)
class Tried:
    """What the scripted rollouts of one task did."""

    shown: str = ""  # before the first answer
    offers_tools: bool = False
    nonsense: list[float] = field(default_factory=list[float])  # scores of what was no answer
    right: float | None = None  # the score of the declared answer
    failed: str = ""  # the first thing that went wrong
    not_scripted: str = ""
    asked: list[Any] = field(default_factory=list[Any])  # what the last rollout asked for, in order


class _NoSandboxes:
    """Where the check has no provider: an environment that said it needs none gets none."""

    snapshots = spawns = pauses = False

    async def create(self, sandbox_id: str, labels: Any) -> Sandbox:
        raise SandboxError("it uses a sandbox, and declares needs_sandbox = False")

    async def alive(self, sandbox_id: str) -> bool:
        return True


async def tried(
    environment: Environment, task: Task, answer_key: str, provider: SandboxProvider | None
) -> Tried:
    """Run a task's rollouts: nonsense, nonsense after each tool was called, and the declared answer."""
    found = Tried()
    right = str(task.payload[answer_key]) if answer_key in task.payload else None
    scripts = [(text, False) for text in _NONSENSE] + [(_NONSENSE[1], True)]
    scripts += [(right, False)] if right is not None else []
    for number, (text, calls) in enumerate(scripts):
        try:
            score, chat, record = await _one(environment, task, text, calls, provider, number)
        except NotScriptedError as error:
            found.not_scripted = str(error)
            return found
        except Exception as error:  # the environment's code may raise anything
            found.failed = f"{describe_exception(error)} (the policy said {text[:40]!r})"
            if isinstance(error, (ToolError, SandboxError)):
                found.failed = f"infrastructure: {found.failed}"
            return found
        found.shown, found.offers_tools = chat.shown, bool(chat.tools)
        if right is not None and text == right:
            found.right = score
        else:
            found.nonsense.append(score)
        if calls:
            found.asked = [_asked(chat, record)]
            if environment.resume != "restart":
                _, chat, record = await _one(environment, task, text, calls, provider, number)
                found.asked.append(_asked(chat, record))
    return found


async def _one(
    environment: Environment,
    task: Task,
    text: str,
    calls: bool,
    provider: SandboxProvider | None,
    number: int,
) -> tuple[float, ScriptedChat, Record]:
    chat = ScriptedChat(text, calls_tools=calls)
    name = f"check-{task.id.replace('/', '-').replace(':', '-')}-{number}"
    async with asyncio.timeout(_ROLLOUT_S):
        async with _sandbox(f"{name}", "rollout", provider) as sandbox:
            outcome = await environment.rollout(task, chat, sandbox)
            sandbox.must_be_intact()
        if not chat.said:
            raise ValueError("a rollout must ask the policy at least once")
        data = json.loads(json.dumps(outcome.data, allow_nan=False))
        if data != outcome.data:
            raise ValueError("an outcome must hold JSON values only; it is another one after its way as JSON")
        async with _sandbox(f"{name}.v", "verify", provider) as verifier:
            reward = cast("object", await environment.score(task, Outcome(data), verifier))
            verifier.must_be_intact()
    if not isinstance(reward, Reward):
        raise TypeError(f"score must return a Reward, not {type(reward).__name__}")
    return checked(reward).score, chat, sandbox.record


@asynccontextmanager
async def _sandbox(
    name: str, purpose: Literal["rollout", "verify"], provider: SandboxProvider | None
) -> AsyncGenerator[SandboxLease]:
    def emit(event: Event) -> None:
        if isinstance(event, (SandboxWanted, SandboxRefused)):
            asyncio.get_running_loop().call_soon(lease.grant)

    given = provider or cast("SandboxProvider", _NoSandboxes())
    lease = SandboxLease(name, name, 0, purpose, given, "check", emit, Record(kept=True))
    try:
        yield lease
    finally:
        await lease.release(by_itself=True)


def _asked(
    chat: ScriptedChat, record: Record
) -> tuple[list[list[Message]], list[tuple[str, dict[str, Any]]]]:
    return chat.said, [(call.op, call.request) for call in record.calls]


def judged(environment: Environment, tasks: list[Task], tried: list[Tried]) -> list[Line]:
    """Return what the rollouts tell of rewards and of `resume`."""
    if told := next((one.not_scripted for one in tried if one.not_scripted), ""):
        return [("rollouts", "warning", f"not run: {told}", "Try it with a model: headway env try")]
    for task, one in zip(tasks, tried, strict=True):
        if one.failed:
            return [
                ("rollouts", "error", f"{task.id}: {one.failed}", "headway env try shows a rollout whole")
            ]
    scores = [score for one in tried for score in one.nonsense]
    scores += [one.right for one in tried if one.right is not None]
    lines: list[Line] = [_rewards(scores), *_right(tried), _resume(environment, tasks, tried)]
    return lines


def _rewards(scores: list[float]) -> Line:
    low, high = min(scores), max(scores)
    text = f"{len(scores)} rewards are finite, from {low:g} to {high:g}"
    if max(abs(low), abs(high)) > 10:
        remedy = "Scale rewards to about -1 to 1, or advantages and their clipping mean something else"
        return "rewards", "warning", text, remedy
    return "rewards", "ok", text, ""


def _right(tried: list[Tried]) -> list[Line]:
    known = [(one.right, max(one.nonsense)) for one in tried if one.right is not None]
    if not known:
        return []
    worse = [right for right, nonsense in known if right <= nonsense]
    if worse:
        text = f"the declared answer is rewarded like nonsense in {len(worse)} of {len(known)} tasks"
        return [("answers", "warning", text, "Fine where it must be formatted or earned; else mend reward")]
    return [("answers", "ok", f"the declared answer is rewarded best in {len(known)} tasks", "")]


def _resume(environment: Environment, tasks: list[Task], tried: list[Tried]) -> Line:
    if environment.resume == "restart":
        return "resume", "ok", "a rollout restarts, so nothing need be repeatable", ""
    for task, one in zip(tasks, tried, strict=True):
        if len(one.asked) == 2 and one.asked[0] != one.asked[1]:
            says = one.asked[0][0] != one.asked[1][0]
            what = "messages" if says else "sandbox calls"
            text = f'resume = "{environment.resume}" is not true: {task.id}, run again, has other {what}'
            remedy = 'Declare resume = "restart", or take clock, chance and the order of sets out'
            return "resume", "error", text, remedy
    return "resume", "ok", "run again with the same answers, rollouts ask the same", ""
