"""Calls of somebody else's reward function: off the event loop, bounded in time, and blamed by name.

A coroutine function runs in the event loop, and is cancelled when its time is over; one that goes on all
the same is left to itself. A plain one runs in a thread of its own (core/off_loop.py): one that sleeps or
computes holds up nobody but its own score, and one that is overdue is left to itself. The fault says so.
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
_SWALLOWS = "; it does not end when it is cancelled, and goes on"
_GRACE_S = 1.0  # of a coroutine that is cancelled
_left: set[asyncio.Task[None]] = set()  # the loop itself holds tasks only weakly


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
                raised=_EndedFault,
                overdue=RewardTimeoutFault,
            )
            return await found if isawaitable(found) else found

    try:
        return await _within(name, work, timeout_s, waiting, "" if awaited else _GOES_ON)
    except HeadwayError as error:
        if isinstance(error, (SandboxError, JudgeError, EngineError, RewardTimeoutFault, _EndedFault)):
            raise
        raise RewardRaisedFault(f"reward {name} raised {error}") from error
    except Exception as error:  # it may raise anything
        place = place_in_hook(error)
        at = f" at {place}" if place else ""
        raise RewardRaisedFault(f"reward {name} raised {type(error).__name__}: {error}{at}") from error


class _EndedFault(RewardRaisedFault):
    """A function raised what would end the process, or its own task."""


async def _within(
    name: str, work: Callable[[], Awaitable[Any]], timeout_s: float, waiting: Waiting, goes_on: str
) -> Any:
    began, overdue, busy_with = stopwatch(), False, ""
    found: list[Any] = []
    raised: list[Exception] = []

    async def contained() -> None:
        try:
            found.append(await work())
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except Exception as error:
            raised.append(error)
        except BaseException as error:  # an exit call ends neither the process nor its event loop
            raised.append(_EndedFault(f"reward {name} raised {type(error).__name__}: {error}"))

    # Not in a TaskGroup: a group waits for its tasks without end, and this one may swallow its cancellation.
    task = asyncio.get_running_loop().create_task(contained())
    try:
        while not task.done():
            left_s = timeout_s + waiting.outside_s - (stopwatch() - began)
            if left_s <= 0:
                overdue, busy_with = True, waiting.busy_with
                break
            await asyncio.wait({task}, timeout=left_s)
    finally:
        if not task.done():
            task.cancel()
            # Whoever cancels the caller has a grace of its own; nothing may be left behind unseen.
            await asyncio.wait({task}, timeout=_GRACE_S if overdue else None)
    if overdue:
        if not task.done():
            _left.add(task)
            task.add_done_callback(_left.discard)
            goes_on = _SWALLOWS
        if busy_with:
            raise JudgeAwayError(f"reward {name} must end within {timeout_s:g} s; it waited for {busy_with}")
        raise RewardTimeoutFault(f"reward {name} must end within {timeout_s:g} s{goes_on}")
    if task.cancelled():
        raise _EndedFault(f"reward {name} cancelled itself: it raised CancelledError")
    if raised:
        raise raised[0]
    return found[0]
