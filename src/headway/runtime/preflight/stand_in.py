"""An engine without a model: it answers every request with the same text, so that a rollout can be tried."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from headway.core.protocols import Chunk, EngineCapabilities, EngineStats, GenerateRequest
from headway.core.records import FLOATS, TOKENS, FinishReason, VersionSpan

if TYPE_CHECKING:
    from headway.renderers.chat import Renderer

ANSWER = "```python\nprint(4)\n```\n"
"""A program, for environments that run one; for others, text that holds a number."""
_LOGPROB = -1.0


class StandInEngine:
    """Says `ANSWER`, as many tokens of it as a request allows, and then the token that ends an answer.

    Attributes:
        longest: tokens of the longest context that a rollout would have had if every answer of it had been as
            long as its request allowed.
    """

    def __init__(self, renderer: Renderer, max_context_tokens: int) -> None:
        self._renderer = renderer
        self._context = max_context_tokens
        self._unsaid: dict[str, int] = {}  # by session: tokens that its answers might have had besides
        self.longest = 0

    def capabilities(self) -> EngineCapabilities:
        """Return what the embedded engine would say."""
        return EngineCapabilities(1, self._context, "sampling", True, True, False, True)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Yield one terminal chunk."""
        room = min(request.sampling.max_tokens, self._context - len(request.prompt_ids))
        if room < 1:
            yield Chunk(
                array(TOKENS), array(FLOATS), (), "rejected", "the prompt leaves no room for an answer"
            )
            return
        whole = self._renderer.encode(ANSWER) + array(TOKENS, self._renderer.stop_ids[:1])
        ids, finish = self._cut(whole[:room], request.sampling.stop_strings)
        before = self._unsaid.get(request.session, 0)
        self.longest = max(self.longest, min(self._context, len(request.prompt_ids) + before + room))
        self._unsaid[request.session] = before + room - len(ids)
        yield Chunk(
            ids,
            array(FLOATS, [_LOGPROB] * len(ids)),
            (VersionSpan(0, 0, len(ids)),),
            finish or ("length" if len(whole) > room else "stop"),
            replica="stand-in",
        )

    def _cut(self, ids: array[int], stop_strings: Sequence[str]) -> tuple[array[int], FinishReason | None]:
        """End at the token that completes a stop string."""
        for end in range(1, len(ids) + 1) if stop_strings else ():
            text = self._renderer.decode(ids[:end])
            if any(stop in text for stop in stop_strings):
                return ids[:end], "stop"
        return ids, None

    async def abort(self, request_ids: Sequence[str] | None) -> None:
        """Nothing runs on."""

    async def end_session(self, session: str) -> None:
        """Nothing is kept."""

    async def apply(self, lineage: int, number: int, manifest: str, kv: str) -> float:
        """There are no weights."""
        return 0.0

    async def load_adapter(self, policy: str, lineage: int, number: int, manifest: str, kv: str) -> float:
        """There are no weights."""
        return 0.0

    async def drop_adapter(self, policy: str) -> None:
        """There are no weights."""

    def stats(self) -> EngineStats:
        """Return no load."""
        return EngineStats(0, 0, 0.0, 0.0)

    async def close(self) -> None:
        """Nothing is held."""
