"""Work that is done to its end although its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end; a cancellation of the caller takes effect after that, in place of an error."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from task.exception()
    return task.result()


async def to_its_end(work: Callable[[], T]) -> T:
    """Do blocking work in a thread; a cancelled caller waits for its end, for nobody else may touch it."""
    return await whole(_in_thread(work))


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
