"""Blocking work of a sandbox, in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def to_its_end(work: Callable[[], _T]) -> _T:
    """Do `work` in a thread; a cancelled caller waits for its end, for nobody else may touch the files."""
    done = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        raise
