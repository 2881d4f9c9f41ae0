"""One answer of the policy while it grows, over one engine request or several.

An answer that was parked goes on as a new request, whose prompt is the context with the tokens so far and
whose budget is what is left. Its draws go on too: the engine fixes each by the seed and the position in the
whole answer, so that none comes twice, and under the same weights the same tokens follow.

Invariant: ids, log-probs and spans stay of one length, and never exceed the budget.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.errors import EngineError
from headway.core.kept import Kept, grown
from headway.core.records import FLOATS, TOKENS, FinishReason, Message, Stream, VersionSpan, merge_spans

if TYPE_CHECKING:
    from headway.core.protocols import Chunk


def _ids() -> array[int]:
    return array(TOKENS)


def _floats() -> array[float]:
    return array(FLOATS)


@dataclass(slots=True)
class Answer:
    """What is known of an answer; ends as a Turn."""

    messages: list[Message]  # that the environment put before it
    cap: int | None  # the environment's own limit
    prompt: array[int]  # ids of the messages, [p]
    budget: int  # tokens at most
    parent: int = -1  # index of the turn that it continues, -1 for none
    stop: tuple[str, ...] = ()  # text that ends it, beside the environment's
    ids: array[int] = field(default_factory=_ids)  # sampled, [n]
    logprobs: array[float] = field(default_factory=_floats)  # [n]
    spans: list[VersionSpan] = field(default_factory=list[VersionSpan])  # lengths sum to n
    num_parts: int = 0  # requests so far
    num_losses: int = 0  # requests in a row that brought no token
    waiting_s: float = 0.0  # totals of the requests
    prefill_s: float = 0.0
    decode_s: float = 0.0
    replica: str = ""  # of the last request
    num_resident_tokens: int = 0  # that the last request left in the KV cache
    streams: Mapping[str, Stream] = field(default_factory=dict[str, Stream])  # of the whole context
    kept: Kept | None = None  # of truncated sampling, [n]

    @property
    def left(self) -> int:
        """Tokens that may still be sampled."""
        return self.budget - len(self.ids)

    @property
    def turn_streams(self) -> dict[str, Stream]:
        """Return the streams of the turn that this becomes."""
        return {**self.streams, **(self.kept.streams() if self.kept else {})}

    def take(self, chunk: Chunk) -> None:
        """Append what the engine sampled.

        Raises EngineError when a token lacks its log-prob, its version or what it was drawn from.
        """
        counts = len(chunk.token_ids), len(chunk.logprobs), sum(span.num_tokens for span in chunk.spans)
        if len(set(counts)) != 1:
            raise EngineError("an engine must give one log-prob and one version a token", value=counts)
        try:
            self.kept = grown(self.kept, len(self.ids), chunk.streams, len(chunk.token_ids))
        except ValueError as error:
            raise EngineError(str(error)) from error
        self.ids.extend(chunk.token_ids)
        self.logprobs.extend(chunk.logprobs)
        self.spans = merge_spans([*self.spans, *chunk.spans])

    def part_ended(self, last: Chunk) -> None:
        """Add up a request that ended."""
        self.num_parts += 1
        self.replica, self.num_resident_tokens = last.replica, last.num_resident_tokens
        self.streams = {name: stream for name, stream in last.streams.items() if stream.axis == "token"}
        self.waiting_s += last.waiting_s
        self.prefill_s += last.prefill_s
        self.decode_s += last.decode_s

    def is_over(self, text: str, stop_ids: Sequence[int], stop_strings: Sequence[str]) -> FinishReason | None:
        """Return why an answer needs no more tokens although its request was cut off, None when it does."""
        if self.ids and (self.ids[-1] in stop_ids or any(stop in text for stop in stop_strings)):
            return "stop"
        return "length" if self.left < 1 else None
