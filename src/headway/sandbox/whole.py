"""Work that is done to its end although its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end; a cancellation of the caller takes effect after that, in place of an error."""
    cancelled: asyncio.CancelledError | None = None
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_caught(work))
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    result, failure = task.result()
    if cancelled is not None:
        raise cancelled from failure
    if failure is not None:
        raise failure
    return result[0]


async def to_its_end(work: Callable[[], T]) -> T:
    """Do blocking `work` in a thread, likewise to its end: nobody else may touch the files meanwhile."""
    return await whole(asyncio.to_thread(work))


async def _caught(work: Coroutine[Any, Any, T]) -> tuple[list[T], Exception | None]:
    try:
        return [await work], None
    except Exception as error:  # the caller's, as it is and in no group
        return [], error
