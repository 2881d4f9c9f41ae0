"""Plain functions of somebody else's, called off the event loop.

Each call runs in a daemon thread of its own. A thread cannot be ended from outside: one whose caller gave up
goes on by itself and holds up no exit; where too many are left so, no further one is started.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from headway.core.errors import RewardFault

T = TypeVar("T")

MAX_LEFT = 64  # threads that nobody waits for
_left: set[threading.Thread] = set()


async def in_thread(name: str, function: Callable[[], T]) -> T:
    """Return what a function returns, or raise what it raises.

    Raises RewardFault when it tries to end the process, and where too many threads were left.
    """
    _left.intersection_update([thread for thread in _left if thread.is_alive()])
    if len(_left) >= MAX_LEFT:
        rule = f"{name} cannot be called: {MAX_LEFT} calls are overdue and still run"
        raise RewardFault(rule, remedy="Bound what it does: a thread cannot be ended from outside")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(cast("T", value))
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            answer.set_exception(error)
        else:
            answer.set_exception(RewardFault(f"{name} raised {type(error).__name__}: {error}"))

    def run() -> None:
        value, fault = None, None
        try:
            value = function()
        except BaseException as error:  # SystemExit, say: it ends no worker
            fault = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, fault)

    thread = threading.Thread(target=run, name=f"headway {name}", daemon=True)
    thread.start()
    try:
        return await answer
    finally:
        if not answer.done() or answer.cancelled():
            _left.add(thread)
