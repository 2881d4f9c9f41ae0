"""Plain functions of somebody else's, called off the event loop.

Each call runs in a daemon thread of its own. A thread cannot be ended from outside: one whose caller gave up
goes on by itself and holds up no exit; where too many are left so, no further one is started. A function that
never lets go of the interpreter (a C extension that keeps its lock) stalls the process all the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.core.errors import HeadwayError

T = TypeVar("T")

MAX_LEFT = 64  # threads of overdue functions; no more are started beside them
_left: set[threading.Thread] = set()


def num_left() -> int:
    """Return how many threads that nobody waits for still run."""
    _left.intersection_update([thread for thread in _left if thread.is_alive()])
    return len(_left)


async def in_thread(
    name: str,
    function: Callable[[], T],
    *,
    raised: type[HeadwayError],
    overdue: type[HeadwayError] | None = None,
) -> T:
    """Return what a function returns, or raise what it raises; cancelled, leave its thread to itself.

    Args:
        name: whom a fault blames.
        function: takes nothing.
        raised: the fault of one that tries to end the process.
        overdue: the fault where too many threads were left; without one, `raised`.
    """
    if num_left() >= MAX_LEFT:
        rule = f"{name} cannot be called: {MAX_LEFT} calls are overdue and still run"
        remedy = "Bound what they do: a thread cannot be ended from outside"
        raise (overdue or raised)(rule, remedy=remedy)
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
            answer.set_exception(raised(f"{name} raised {type(error).__name__}: {error}"))

    def run() -> None:
        value, fault = None, None
        try:
            value = function()
        except BaseException as error:
            fault = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, fault)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name=f"headway {name}", daemon=True)
    thread.start()
    try:
        return await answer
    finally:
        if not answer.done() or answer.cancelled():
            _left.add(thread)
