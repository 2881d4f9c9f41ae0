"""Calls of somebody else's reward function: off the event loop, bounded in time, and blamed by name.

A coroutine function runs in the event loop, and is cancelled when its time is over. A plain one runs in a
thread of its own (core/off_loop.py): one that sleeps or computes holds up nobody but its own score, and one
that is overdue is left to itself, which the fault says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from headway.core.clock import stopwatch
from headway.core.errors import EngineError, HeadwayError, SandboxError
from headway.core.hooks import place_in_hook
from headway.core.off_loop import in_thread
from headway.rewards.faults import JudgeAwayError, JudgeError, RewardRaisedFault, RewardTimeoutFault
from headway.rewards.waiting import Waiting, current

_GOES_ON = "; its thread cannot be ended and goes on"


def is_async(function: Callable[..., Any]) -> bool:
    """Say whether a function, or an object that is called, is awaited."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


async def call(name: str, function: Callable[..., Any], timeout_s: float, **arguments: Any) -> Any:
    """Return what a function, plain or async, returns.

    Args:
        name: whom a fault blames.
        function: takes `arguments`.
        timeout_s: its limit; time spent `outside` (waiting.py) does not count.
        **arguments: for the function.

    Raises RewardTimeoutFault past the limit (JudgeAwayError where it was busy with a judge),
    RewardRaisedFault for whatever it raises, but SandboxError, JudgeError and EngineError, which are failures
    of the infrastructure, as they are.
    """
    waiting = Waiting(current())
    awaited = is_async(function)

    async def work() -> Any:
        with waiting.here():
            if awaited:
                return await function(**arguments)
            found = await in_thread(
                f"reward {name}",
                lambda: function(**arguments),
                raised=RewardRaisedFault,
                overdue=RewardTimeoutFault,
            )
            return await found if isawaitable(found) else found

    try:
        return await _within(name, work, timeout_s, waiting, "" if awaited else _GOES_ON)
    except HeadwayError as error:
        if isinstance(error, (SandboxError, JudgeError, EngineError, RewardTimeoutFault)):
            raise
        raise RewardRaisedFault(f"reward {name} raised {error}") from error
    except Exception as error:  # it may raise anything
        place = place_in_hook(error)
        at = f" at {place}" if place else ""
        raise RewardRaisedFault(f"reward {name} raised {type(error).__name__}: {error}{at}") from error


async def _within(
    name: str, work: Callable[[], Awaitable[Any]], timeout_s: float, waiting: Waiting, goes_on: str
) -> Any:
    began, overdue, busy_with = stopwatch(), False, ""
    found: list[Any] = []
    raised: list[Exception] = []

    async def contained() -> None:
        try:
            found.append(await work())
        except Exception as error:
            raised.append(error)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(contained())
        while not task.done():
            left_s = timeout_s + waiting.outside_s - (stopwatch() - began)
            if left_s <= 0:
                overdue, busy_with = True, waiting.busy_with
                task.cancel()
                break
            await asyncio.wait({task}, timeout=left_s)
    if overdue:
        if busy_with:
            raise JudgeAwayError(f"reward {name} must end within {timeout_s:g} s; it waited for {busy_with}")
        raise RewardTimeoutFault(f"reward {name} must end within {timeout_s:g} s{goes_on}")
    if raised:
        raise raised[0]
    return found[0]
