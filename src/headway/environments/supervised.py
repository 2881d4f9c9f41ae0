"""Runs somebody else's coroutine so that it can neither outstay its time nor hold its caller up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headway.core.clock import stopwatch
from headway.core.errors import EnvironmentFault, HeadwayError

T = TypeVar("T")


class OverdueError(HeadwayError):
    """A coroutine did not end within its allowed time and was cancelled."""


class AbandonedError(HeadwayError):
    """A coroutine went on after its cancellation and was left to itself."""


async def supervise(work: Coroutine[Any, Any, T], allowed_s: Callable[[], float] | None, grace_s: float) -> T:
    """Return what `work` returns, or raise what it raises.

    Consumes one coroutine. Waits for its end; `allowed_s()` seconds unblock the wait, and so does the
    caller's cancellation; then `work` is cancelled and gets `grace_s` more. Raises OverdueError after the
    first, AbandonedError when it is still there after the second.
    """
    began = stopwatch()
    # Not in a TaskGroup: a group waits for its tasks without end, and this one may swallow its cancellation.
    inner = asyncio.get_running_loop().create_task(_contained(work))
    try:
        while not inner.done():
            left_s = None if allowed_s is None else allowed_s() - (stopwatch() - began)
            if left_s is not None and left_s <= 0:
                raise OverdueError("a coroutine must end within its allowed time")
            await asyncio.wait({inner}, timeout=left_s)
    finally:
        if not inner.done():
            inner.cancel()
            await asyncio.wait({inner}, timeout=grace_s)
            if not inner.done():
                _abandoned.add(inner)
                inner.add_done_callback(_abandoned.discard)
                raise AbandonedError(f"a coroutine must end within {grace_s} s of its cancellation")
            if not inner.cancelled():
                inner.exception()  # seen; what a cancelled coroutine raised on its way out is of no use
    if inner.cancelled():
        raise EnvironmentFault("a coroutine must not cancel itself")
    return inner.result()


_abandoned: set[asyncio.Task[Any]] = set()  # the loop itself holds tasks only weakly


async def _contained(work: Coroutine[Any, Any, T]) -> T:
    """Keep an exit call or a library's panic in somebody else's code from ending the worker's event loop."""
    try:
        return await work
    except (Exception, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        raise EnvironmentFault(f"a coroutine must not raise {type(error).__name__}") from error
