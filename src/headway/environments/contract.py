"""Contract tests for an environment: what Headway takes for granted of one, tried without a model.

`headway env check` runs them, and so may a test of your own: `assert_contract("mine.py")`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headway.core.clock import stopwatch
from headway.core.codec import to_plain
from headway.core.errors import EnvironmentSetupError
from headway.environments import contract_rollouts
from headway.environments.contract_settings import unread, watch
from headway.environments.faults import blamed
from headway.environments.registry import build, environment_class, read_settings

if TYPE_CHECKING:
    from headway.core.protocols import Environment, SandboxProvider
    from headway.core.records import Task
    from headway.environments.contract_rollouts import Tried

NUM_TASKS = 64  # of each split that are looked at
_NUM_ROLLOUTS = 4  # tasks that are run
_SLOW_S = 0.05
_PROCESS_S = 120.0
_CHILD = "import sys; from headway.environments.contract import print_digest; print_digest(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Judged:
    """One line of the check."""

    what: str
    level: Literal["ok", "warning", "error"]
    text: str
    remedy: str = ""


def assert_contract(name: str, args: Mapping[str, Any] | None = None) -> None:
    """Raise AssertionError with every contract that an environment breaks; for tests of your own."""
    judged = asyncio.run(check_environment(name, args))
    broken = [f"{one.what}: {one.text}. {one.remedy}" for one in judged if one.level == "error"]
    assert not broken, "\n".join(broken)


async def check_environment(
    name: str,
    args: Mapping[str, Any] | None = None,
    seed: int = 0,
    provider: SandboxProvider | None = None,
    *,
    elsewhere: bool = True,
) -> list[Judged]:
    """Return what holds and what does not.

    Args:
        name: of the environment, as in environment.name.
        args: its arguments.
        seed: of the run.
        provider: of sandboxes; without one, an environment that needs them is not run.
        elsewhere: whether tasks are made in two other processes too, which takes seconds.

    Raises EnvironmentSetupError when it cannot be built or makes no tasks.
    """
    given = dict(args or {})
    cls, settings = environment_class(name), read_settings(name, given)
    watched, read = watch(settings)
    with blamed("being built"):
        environment: Environment = cls(watched, seed)
    train, train_s = _tasks(environment, "train")
    held_out, _ = _tasks(environment, "eval")
    judged = [_time(train_s / len(train))]
    judged += [_plain([*train, *held_out]), _again(name, given, seed, environment)]
    judged += [await _elsewhere(name, given, seed, environment)] if elsewhere else []
    if environment.needs_sandbox and provider is None:
        judged.append(_overlap(environment, train, held_out, hidden=True))
        judged.append(Judged("rollouts", "warning", "not run: it needs a sandbox", "Run headway env check"))
        return judged
    answer_key = getattr(environment, "answer_key", "answer")
    tasks = train[:_NUM_ROLLOUTS]
    tried = [await contract_rollouts.tried(environment, task, answer_key, provider) for task in tasks]
    # A rollout that failed told nothing of its tools.
    untold = any(one.failed or one.not_scripted for one in tried)
    hidden = environment.needs_sandbox or untold or any(one.offers_tools for one in tried)
    judged.append(_overlap(environment, train, held_out, hidden=hidden))
    judged += [Judged(*each) for each in contract_rollouts.judged(environment, tasks, tried)]
    judged.append(_leak(train, tried, answer_key, environment))
    judged.append(Judged(*unread(settings, read)))
    return judged


def print_digest(request: str) -> None:
    """Print the digest of an environment's tasks; run in another process."""
    name, args, seed = json.loads(request)
    print(_digest(build(name, args, seed)))


# --- tasks


def _tasks(environment: Environment, split: str) -> tuple[list[Task], float]:
    with blamed(f"making {split} tasks"):
        count = environment.num_tasks(split)
        if count == 0:
            rule, remedy = f"split {split} must have tasks", "Return their number, or None for no end"
            raise EnvironmentSetupError(rule, remedy=remedy, key="environment.name")
        began = stopwatch()
        tasks = [environment.task(split, at, None) for at in range(min(count or NUM_TASKS, NUM_TASKS))]
        return tasks, stopwatch() - began


def _time(each_s: float) -> Judged:
    text = f"a task takes {each_s * 1000:.2g} ms"
    if each_s <= _SLOW_S:
        return Judged("time", "ok", text)
    return Judged("time", "warning", f"{text}, in which no other rollout of the worker goes on",
                  "Load what it needs once, in __init__")  # fmt: skip


def _plain(tasks: list[Task]) -> Judged:
    for task in tasks:
        try:
            same = json.loads(json.dumps(task.payload, allow_nan=False)) == task.payload
        except (TypeError, ValueError) as error:
            return Judged("payload", "error", f"a task's payload must hold JSON values only: {error}")
        if not same:
            return Judged("payload", "error", f"the payload of {task.id} is no longer the same after JSON",
                          "Use lists for tuples and text for keys")  # fmt: skip
    repeated = [key for key, count in Counter(task.id for task in tasks).items() if count > 1]
    if repeated:
        return Judged("payload", "error", f"task ids must be unique, and there are several {repeated[0]}",
                      "Put split and index into the id")  # fmt: skip
    return Judged("payload", "ok", f"{len(tasks)} tasks hold JSON values and have ids of their own")


def _again(name: str, args: dict[str, Any], seed: int, environment: Environment) -> Judged:
    """Tasks in another order, of another object, and held-out ones under another seed."""
    with blamed("making tasks again"):
        other, seeded = build(name, args, seed), build(name, args, seed + 1)
        for at in reversed(range(min(16, environment.num_tasks("train") or 16))):
            if other.task("train", at, None) != environment.task("train", at, None):
                return Judged("determinism", "error", f"train task {at} differs when asked for again",
                              "Draw it with random.Random of the seed and the index")  # fmt: skip
        if seeded.task("eval", 0, None) != environment.task("eval", 0, None):
            return Judged("determinism", "warning", "held-out tasks depend on the seed, so that runs are "
                          "measured on different ones", "Draw them without the seed")  # fmt: skip
    return Judged("determinism", "ok", "tasks are the same in any order, and held-out ones under any seed")


async def _elsewhere(name: str, args: dict[str, Any], seed: int, environment: Environment) -> Judged:
    """Two processes with other hash seeds."""
    here = _digest(environment)
    for hash_seed in ("1", "2"):
        variables = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CHILD, json.dumps([name, args, seed]), env=variables,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(_PROCESS_S):
                said, words = await child.communicate()
        except TimeoutError:
            child.kill()
            await child.wait()
            return Judged("processes", "error", f"no tasks in another process within {_PROCESS_S:g} s")
        if child.returncode:
            last = words.decode("utf-8", "replace").strip().splitlines()[-1:]
            return Judged("processes", "error", f"it fails in another process: {' '.join(last)}")
        if said.decode().strip() != here:
            return Judged("processes", "error", "tasks or prompts differ in another process",
                          "Use neither hash() nor the order of a set, nor random without a seed")  # fmt: skip
    return Judged("processes", "ok", "tasks and prompts are the same in other processes")


def _digest(environment: Environment) -> str:
    digest = hashlib.sha256()
    for split in ("train", "eval"):
        for task in _tasks(environment, split)[0]:
            prompt = [to_plain(message) for message in environment.prompt(task)]
            digest.update(json.dumps([to_plain(task), prompt], sort_keys=True).encode())
    return digest.hexdigest()


def _overlap(environment: Environment, train: list[Task], held_out: list[Task], *, hidden: bool) -> Judged:
    """What is asked decides, and where tools or a sandbox may hide the rest of a problem, the payload too."""
    asked: list[dict[str, Task]] = []
    with blamed("making prompts"):
        for tasks in (train, held_out):
            plain = [[to_plain(message) for message in environment.prompt(task)] for task in tasks]
            whole = [
                [each, task.payload if hidden else None] for each, task in zip(plain, tasks, strict=True)
            ]
            asked.append({json.dumps(each): task for each, task in zip(whole, tasks, strict=True)})
    both = [prompt for prompt in asked[1] if prompt in asked[0]]
    if both:
        where = f"{asked[0][both[0]].id} and {asked[1][both[0]].id}"
        return Judged("splits", "error", f"{len(both)} held-out problems are posed in training too ({where})",
                      "Choose the split by what is asked: headway.environments.tasks.split_of")  # fmt: skip
    return Judged("splits", "ok", f"none of {len(held_out)} held-out tasks is among {len(train)} train tasks")


def _leak(train: list[Task], tried: list[Tried], key: str, environment: Environment) -> Judged:
    known = [task for task in train if str(task.payload.get(key, ""))]
    if not known:
        return Judged("leak", "ok", f"no payload declares its answer as {key!r}, so nothing was looked for")
    shown = {task.id: one.shown for task, one in zip(train, tried, strict=False)}
    found = 0
    with blamed("making prompts"):
        for task in known:
            prompt = [message.content for message in environment.prompt(task)]
            text = "\n".join([*prompt, environment.system_prompt or "", shown.get(task.id, "")])
            found += re.search(rf"(?<!\w){re.escape(str(task.payload[key]))}(?!\w)", text) is not None
    # A short answer may stand in a prompt by chance: the 2 of "2+2", or the choices of a question.
    if found > len(known) // 2:
        return Judged("leak", "error", f"the prompt says the answer of {found} of {len(known)} tasks",
                      "Keep it in the payload, and out of question, system prompt and tools")  # fmt: skip
    if found:
        return Judged("leak", "ok", f"{found} of {len(known)} prompts hold their answer's text, as by chance")
    return Judged("leak", "ok", f"no prompt of {len(known)} says its answer")


def worst(judged: list[Judged]) -> Literal["ok", "warning", "error"]:
    """Return the highest level among them."""
    levels = {one.level for one in judged}
    return "error" if "error" in levels else "warning" if "warning" in levels else "ok"
