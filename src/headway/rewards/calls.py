"""Calls of somebody else's reward function: off the event loop, bounded in time, and blamed by name.

A coroutine function runs in the event loop, and is cancelled when its time is over. A plain one runs in a
thread of its own: one that sleeps or computes holds up nobody but its own score. A thread cannot be ended
from outside. One that is overdue is left to itself, which the fault says; it is a daemon, so it holds
up no exit, and where too many are left no further one is started. A plain function that never lets go of the
interpreter (a C extension that keeps its lock) stalls the process all the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar, cast

from headway.core.clock import stopwatch
from headway.core.errors import EngineError, HeadwayError, SandboxError
from headway.core.hooks import place_in_hook
from headway.rewards.faults import JudgeError, RewardRaisedFault, RewardTimeoutFault
from headway.rewards.waiting import Waiting, current

T = TypeVar("T")

MAX_LEFT = 64  # threads of overdue functions; more are refused
_GOES_ON = "; its thread cannot be ended and goes on"
_left: set[threading.Thread] = set()


def is_async(function: Callable[..., Any]) -> bool:
    """Say whether a function, or an object that is called, is awaited."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def num_left() -> int:
    """Return how many threads of overdue functions still run."""
    _left.intersection_update([thread for thread in _left if thread.is_alive()])
    return len(_left)


async def call(name: str, function: Callable[..., Any], timeout_s: float, **arguments: Any) -> Any:
    """Return what a function, plain or async, returns.

    Args:
        name: whom a fault blames.
        function: takes `arguments`.
        timeout_s: its limit; time spent `outside` (waiting.py) does not count.
        **arguments: for the function.

    Raises RewardTimeoutFault past the limit (JudgeError where it was busy with a judge), RewardRaisedFault
    for whatever it raises, but SandboxError, JudgeError and EngineError, which are failures of the
    infrastructure, as they are.
    """
    waiting = Waiting(current())
    awaited = is_async(function)

    async def work() -> Any:
        with waiting.here():
            if awaited:
                return await function(**arguments)
            found = await in_thread(name, lambda: function(**arguments))
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


async def in_thread(name: str, function: Callable[[], T]) -> T:
    """Return what a plain function returns that runs in a daemon thread of its own.

    Cancelled, it leaves the thread to itself. Raises RewardTimeoutFault where too many were left so.
    """
    if num_left() >= MAX_LEFT:
        raise RewardTimeoutFault(
            f"reward {name} cannot be called: {MAX_LEFT} calls of reward functions are overdue and still run",
            remedy="Bound what they do: a thread cannot be ended from outside",
        )
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(cast("T", value))
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            answer.set_exception(error)
        else:  # SystemExit, say: it ends neither the worker nor its event loop
            answer.set_exception(RewardRaisedFault(f"reward {name} raised {type(error).__name__}: {error}"))

    def run() -> None:
        value, fault = None, None
        try:
            value = function()
        except BaseException as error:
            fault = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, fault)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name=f"reward {name}", daemon=True)
    thread.start()
    try:
        return await answer
    finally:
        if not answer.done() or answer.cancelled():
            _left.add(thread)


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
            raise JudgeError(f"reward {name} must end within {timeout_s:g} s; it waited for {busy_with}")
        raise RewardTimeoutFault(f"reward {name} must end within {timeout_s:g} s{goes_on}")
    if raised:
        raise raised[0]
    return found[0]
