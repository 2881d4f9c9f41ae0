"""Plain functions of a user, off the event loop that all rollouts of a worker share."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any

from headway.core.errors import EnvironmentFault

if TYPE_CHECKING:
    from collections.abc import Callable


MAX_LEFT = 256  # threads that nobody waits for
_left: set[threading.Thread] = set()


async def in_thread(function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """Run a plain function in a daemon thread of its own; one that hangs holds up nothing but itself.

    Raises EnvironmentFault where too many threads were left to themselves.
    """
    _left.intersection_update([thread for thread in _left if thread.is_alive()])
    if len(_left) >= MAX_LEFT:
        raise EnvironmentFault(
            f"tools cannot be called: {MAX_LEFT} calls of them took too long and still run",
            remedy="Bound what they do: a thread cannot be ended from outside",
        )
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():  # given up
            return
        if error is None:
            done.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:  # a future takes neither, and neither may end the worker
            done.set_exception(EnvironmentFault(f"a tool raised {type(error).__name__}: {error}"))

    def work() -> None:
        value, raised = None, None
        try:
            value = context.run(lambda: function(*given, **named))
        except BaseException as error:  # SystemExit too is the waiter's to see
            raised = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, raised)

    thread = threading.Thread(target=work, name=f"tool {function.__name__}", daemon=True)
    thread.start()
    try:
        return await done
    finally:
        if not done.done() or done.cancelled():
            _left.add(thread)
