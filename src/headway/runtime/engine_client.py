"""A generator replica as an environment worker sees it: the Engine contract over a connection.

`run` connects to the replica's address, again and again while the worker lives, hands each answer to the
request that waits for it, and waits for the connection's end. Then every request that had gone out gets its
terminal chunk, lost. A request that comes while nobody listens waits for the next connection, at most
`_WAIT_S`; so a replica whose process was started anew is the same replica to whoever asks it.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.errors import EngineError
from headway.core.protocols import Chunk, EngineCapabilities, EngineStats, GenerateRequest
from headway.core.records import FLOATS, TOKENS, FinishReason
from headway.runtime.wire import connect

if TYPE_CHECKING:
    from headway.runtime.wire import Link

_AGAIN_S = 0.05  # between two tries to connect
_WAIT_S = 5.0  # of a request for a connection


@dataclass(slots=True)
class _Open:
    """A request that waits for its terminal chunk."""

    request: GenerateRequest
    sent: bool = False
    chunks: asyncio.Queue[Chunk] = field(default_factory=asyncio.Queue[Chunk])


class RemoteEngine:
    """Requests go out on the present connection, chunks come back."""

    def __init__(self, at: str, replica: str, capabilities: EngineCapabilities) -> None:
        self._at = at
        self._replica = replica
        self._capabilities = capabilities
        self._link: Link | None = None
        self._open: dict[str, _Open] = {}
        self._closed = False

    async def run(self) -> None:
        """Connect and hand out answers until `close`; to be cancelled otherwise."""
        try:
            while not self._closed:
                link = await connect(self._at)
                if link is None:
                    await asyncio.sleep(_AGAIN_S)
                    continue
                self._link = link
                for entry in self._open.values():
                    self._send(entry)
                await self._read(link)
        finally:
            if self._link is not None:
                self._link.close()

    async def _read(self, link: Link) -> None:
        try:
            while (message := await link.receive()) is not None:
                _, request_id, chunk = message
                if (entry := self._open.get(request_id)) is not None:
                    entry.chunks.put_nowait(chunk)
        finally:
            self._link = None
            link.close()
            for entry in self._open.values():
                if entry.sent:
                    entry.chunks.put_nowait(self._ending("lost", "its connection ended"))

    def _send(self, entry: _Open) -> None:
        if self._link is not None and not entry.sent:
            self._link.send("generate", entry.request)
            entry.sent = True

    def capabilities(self) -> EngineCapabilities:
        """Return what the replica said it can do."""
        return self._capabilities

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Yield the replica's chunks. Leaving early aborts the request."""
        if self._closed:
            yield self._ending("lost", "its connection was closed")
            return
        entry = self._open[request.request_id] = _Open(request)
        self._send(entry)
        waiting = asyncio.get_running_loop().call_later(_WAIT_S, self._give_up, entry)
        finished = False
        try:
            while not finished:
                chunk = await entry.chunks.get()
                finished = chunk.finish is not None
                yield chunk
        finally:
            waiting.cancel()
            del self._open[request.request_id]
            if not finished:
                self._tell("abort", [request.request_id])

    def _give_up(self, entry: _Open) -> None:
        if not entry.sent:
            entry.chunks.put_nowait(self._ending("lost", f"it could not be reached for {_WAIT_S:g} s"))

    async def abort(self, request_ids: Sequence[str] | None) -> None:
        """End these requests, or all of this worker's."""
        ids = list(self._open) if request_ids is None else list(request_ids)
        for name in ids:
            if (entry := self._open.get(name)) is not None and not entry.sent:
                entry.sent = True  # never
                entry.chunks.put_nowait(self._ending("aborted", ""))
        self._tell("abort", ids)

    async def end_session(self, session: str) -> None:
        """Free what the replica keeps for a session."""
        self._tell("end_session", session)

    async def apply(self, lineage: int, number: int, manifest: str, kv: str) -> float:
        """Versions are the driver's business."""
        raise EngineError("an environment worker cannot change the weights")

    async def load_adapter(self, policy: str, lineage: int, number: int, manifest: str, kv: str) -> float:
        """Adapters are the driver's business too."""
        raise EngineError("an environment worker cannot load adapters")

    async def drop_adapter(self, policy: str) -> None:
        """Adapters are the driver's business too."""
        raise EngineError("an environment worker cannot drop adapters")

    def stats(self) -> EngineStats:
        """Return this worker's own share of the load."""
        return EngineStats(len(self._open), 0, 0.0, 0.0)

    async def close(self) -> None:
        """End every request as aborted and the connection; idempotent."""
        await self.abort(None)
        self._closed = True
        for entry in self._open.values():
            entry.chunks.put_nowait(self._ending("aborted", "its connection was closed"))
        if self._link is not None:
            self._link.close()

    def _tell(self, *message: object) -> None:
        """Send what concerns requests that the replica has; without a connection it has none."""
        if self._link is not None:
            self._link.send(*message)

    def _ending(self, finish: FinishReason, why: str) -> Chunk:
        message = f"generator {self._replica}: {why}" if why else ""
        return Chunk(array(TOKENS), array(FLOATS), (), finish, message, self._replica)
