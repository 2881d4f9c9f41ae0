"""A generator replica as an environment worker sees it: the Engine contract over a connection.

`run` consumes the replica's answers and hands each to the request that waits for it. When the connection
ends, every open request gets its terminal chunk: lost.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from headway.core.errors import EngineError
from headway.core.protocols import Chunk, EngineCapabilities, EngineStats, GenerateRequest
from headway.core.records import FLOATS, TOKENS

if TYPE_CHECKING:
    from headway.runtime.wire import Link


class RemoteEngine:
    """Requests go out on the link, chunks come back."""

    def __init__(self, link: Link, replica: str, capabilities: EngineCapabilities) -> None:
        self._link = link
        self._replica = replica
        self._capabilities = capabilities
        self._waiting: dict[str, asyncio.Queue[Chunk]] = {}
        self._gone = False

    async def run(self) -> None:
        """Hand out answers until the connection ends."""
        try:
            while (message := await self._link.receive()) is not None:
                _, request_id, chunk = message
                if (queue := self._waiting.get(request_id)) is not None:
                    queue.put_nowait(chunk)
        finally:
            self._gone = True
            for queue in self._waiting.values():
                queue.put_nowait(self._lost())

    def capabilities(self) -> EngineCapabilities:
        """Return what the replica said it can do."""
        return self._capabilities

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Yield the replica's chunks. Leaving early aborts the request."""
        if self._gone:
            yield self._lost()
            return
        queue: asyncio.Queue[Chunk] = asyncio.Queue()
        self._waiting[request.request_id] = queue
        self._link.send("generate", request)
        finished = False
        try:
            while not finished:
                chunk = await queue.get()
                finished = chunk.finish is not None
                yield chunk
        finally:
            del self._waiting[request.request_id]
            if not finished:
                self._link.send("abort", [request.request_id])

    async def abort(self, request_ids: Sequence[str] | None) -> None:
        """End these requests, or all of this worker's."""
        ids = list(self._waiting) if request_ids is None else list(request_ids)
        self._link.send("abort", ids)

    async def end_session(self, session: str) -> None:
        """Free what the replica keeps for a session."""
        self._link.send("end_session", session)

    async def apply(self, lineage: int, number: int, manifest: str, kv: str) -> float:
        """Versions are the driver's business."""
        raise EngineError("an environment worker cannot change the weights")

    def stats(self) -> EngineStats:
        """Return this worker's own share of the load."""
        return EngineStats(len(self._waiting), 0, 0.0, 0.0)

    async def close(self) -> None:
        """Abort what is open and close the connection."""
        await self.abort(None)
        self._link.close()

    def _lost(self) -> Chunk:
        message = f"the connection to generator {self._replica} ended"
        return Chunk(array(TOKENS), array(FLOATS), (), "lost", message, self._replica)
