"""One request while the engine has it: its tokens, its times, and the way back to its consumer."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from headway.core.clock import stopwatch
from headway.core.protocols import Chunk, GenerateRequest
from headway.core.records import FLOATS, KEPT_IDS, PROMPT_LOGPROBS, TOKENS, FinishReason, Stream, VersionSpan
from headway.generator.policies import Served
from headway.generator.prefixes import Slot
from headway.generator.sampling import Draw, draw_key, uniform
from headway.generator.streams import PromptLogprobs, SampledStreams

Phase = Literal["waiting", "prefill", "decode"]

# Tokens before a stop string's own that are decoded with it: some decode to nothing.
_STOP_SLACK = 8


def _no_logprobs() -> array[float]:
    return array(FLOATS)


@dataclass(slots=True, eq=False)
class Live:
    """A request between its arrival and its terminal chunk. Touched by the engine's thread alone."""

    request: GenerateRequest
    room: int  # tokens that may still be generated at arrival
    send: Callable[[Chunk], None]
    tokens: array[int]  # prompt and answer
    served: Served  # the policy that answers
    logprobs: array[float] = field(default_factory=_no_logprobs)  # of the answer
    spans: list[VersionSpan] = field(default_factory=list[VersionSpan])
    slot: Slot | None = None
    num_sent: int = 0  # answer tokens delivered already
    order: tuple[int, int] = (0, 0)  # priority and arrival: who is first, and who is preempted last
    extra: SampledStreams = field(default_factory=lambda: SampledStreams.of(()))
    scores: PromptLogprobs | None = None  # of the prompt, where they are wanted
    max_kept: int = 0  # ids of a token that are kept at most, where they are wanted
    _key: int = 0
    _phase: Phase = "waiting"
    _since: float = 0.0
    _spent: dict[Phase, float] = field(default_factory=dict[Phase, float])

    @staticmethod
    def of(
        request: GenerateRequest, served: Served, room: int, send: Callable[[Chunk], None], max_kept: int
    ) -> Live:
        """Take in a request."""
        sampling = request.sampling
        tokens = array(TOKENS, request.prompt_ids)
        key = draw_key(sampling.seed)
        live = Live(request, room, send, tokens, served, _key=key, _since=stopwatch())
        live.extra = SampledStreams.of(request.streams)
        live.max_kept = max_kept if KEPT_IDS in request.streams else 0
        live.scores = PromptLogprobs(request.prompt_ids) if PROMPT_LOGPROBS in request.streams else None
        return live

    @property
    def num_answer(self) -> int:
        """Tokens generated so far."""
        return len(self.logprobs)

    @property
    def lacking(self) -> int:
        """Tokens whose KV must be computed before the next decode step can feed the last one."""
        assert self.slot is not None, "only admitted requests have KV"
        return len(self.tokens) - 1 - self.slot.resident

    @property
    def usable(self) -> int:
        """Tokens whose KV may come from a cache: without the prompt's log-probs all but the last one."""
        limit = len(self.tokens) - 1
        return limit if self.scores is None or self.scores.complete else min(limit, self.scores.num_known)

    def draw(self) -> Draw:
        """Return how the next token is drawn."""
        sampling = self.request.sampling
        at = uniform(self._key, self.request.num_answer_tokens + self.num_answer)
        wants = self.max_kept, self.extra.wants_model
        return Draw(sampling.temperature, sampling.top_p, sampling.top_k, at, sampling.min_p, *wants)

    def enter(self, phase: Phase, now: float) -> None:
        """Count the time until now for the phase that ends, if it is another."""
        if phase != self._phase:
            self._count(now)
            self._phase = phase

    def _count(self, now: float) -> None:
        self._spent[self._phase] = self._spent.get(self._phase, 0.0) + now - self._since
        self._since = now

    def take(self, token: int, logprob: float) -> None:
        """Append a sampled token; its KV is not there yet."""
        lineage, number = self.served.lineage, self.served.number
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if self.spans and self.spans[-1][:2] == (lineage, number):
            self.spans[-1] = VersionSpan(lineage, number, self.spans[-1].num_tokens + 1)
        else:
            self.spans.append(VersionSpan(lineage, number, 1))

    def finish_reason(self, decode_text: Callable[[Sequence[int]], str] | None) -> FinishReason | None:
        """Return why the answer ends with its newest token, or None."""
        sampling = self.request.sampling
        if self.tokens[-1] in sampling.stop_ids:
            return "stop"
        if sampling.stop_strings and decode_text is not None:
            # A string that the newest token completes lies within as many tokens as it has bytes.
            width = max(len(text.encode()) for text in sampling.stop_strings) + _STOP_SLACK
            known = self.num_answer + self.request.num_answer_tokens
            tail = decode_text(self.tokens[-min(width, known) :])
            if any(text in tail for text in sampling.stop_strings):
                return "stop"
        return "length" if self.num_answer >= self.room else None

    def deliver(
        self,
        finish: FinishReason | None,
        message: str,
        replica: str,
        streams: Mapping[str, Stream] | None = None,
        num_resident_tokens: int = 0,
    ) -> None:
        """Send what was not sent yet; with a finish reason it is the terminal chunk, with streams."""
        start = self.num_sent
        self.num_sent = self.num_answer
        first = len(self.request.prompt_ids) + start
        spans = _spans_from(self.spans, start)
        if finish is None:
            tokens, logprobs = self.tokens[first:], self.logprobs[start:]
            self.send(Chunk(tokens, logprobs, spans, replica=replica, streams=self.extra.flush()))
            return
        self._count(stopwatch())
        self.send(
            Chunk(
                self.tokens[first:],
                self.logprobs[start:],
                spans,
                finish,
                message,
                replica,
                num_resident_tokens=num_resident_tokens,
                waiting_s=self._spent.get("waiting", 0.0),
                prefill_s=self._spent.get("prefill", 0.0),
                decode_s=self._spent.get("decode", 0.0),
                streams={
                    **self.extra.flush(),
                    **(self.scores.streams() if self.scores else {}),
                    **(streams or {}),
                },
            )
        )


def refusal_chunk(reason: FinishReason, message: str, replica: str) -> Chunk:
    """Return the terminal chunk of a request that never ran."""
    return Chunk(array(TOKENS), array(FLOATS), (), reason, message, replica)


def _spans_from(spans: Sequence[VersionSpan], start: int) -> tuple[VersionSpan, ...]:
    """Return the spans of the tokens from `start` on."""
    result: list[VersionSpan] = []
    at = 0
    for span in spans:
        at += span.num_tokens
        if at > start:
            result.append(span._replace(num_tokens=min(span.num_tokens, at - start)))
    return tuple(result)


class Mailbox:
    """Chunks of one request on their way from the engine's thread to a consumer's event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[Chunk] = asyncio.Queue()

    def put(self, chunk: Chunk) -> None:
        """Hand over a chunk, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
        except RuntimeError:
            # The consumer's loop was closed under it: nobody is left to read.
            if not self._loop.is_closed():
                raise

    async def get(self) -> Chunk:
        """Wait for the next chunk; the engine sends a terminal one, whatever happens."""
        return await self._chunks.get()
