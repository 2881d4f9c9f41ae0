"""The decode loop: one thread that owns the decoder, the KV and every request.

Consumes: jobs from its inbox (submit, abort, swap, ...), all run between two decode steps.
Waits for: the inbox, when no request is there. Unblocked by a job, and by the inbox's `stop`.

An iteration: jobs; waiting requests take places; one chunk of prefill; one decode step of all that are ready.
When the thread ends, by `stop` or by a failure, every request gets its terminal chunk and every job left its
refusal.

Invariant: weights change between decode steps only, so each token has exactly one version.
"""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from headway.core.clock import stopwatch
from headway.core.protocols import EngineStats
from headway.core.records import ROUTED_EXPERTS, FinishReason, Stream
from headway.generator.decoder import Decoder, Fed, Piece
from headway.generator.exact import ExactDecoder
from headway.generator.inbox import Inbox, Job
from headway.generator.kv import KvCache
from headway.generator.places import Places
from headway.generator.policies import Policies, Served
from headway.generator.prompts import next_chunk
from headway.generator.rebuilds import Rebuilds
from headway.generator.sampling import Draw, Drawn, draw_tokens
from headway.generator.slots import Slots
from headway.generator.streams import routed_experts

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headway.generator.adapters import AdapterWeights
    from headway.generator.exact import Tensors
    from headway.generator.live import Live
    from headway.generator.packed import PackedWeights

_RATE_STEPS = 32  # decode steps that the tokens/s of the stats look back over


@dataclass(slots=True)
class LoopLimits:
    """What the loop keeps to."""

    prefill_chunk_tokens: int
    chunk_tokens: int  # answer tokens a chunk that is not the terminal one; 0 for none


@dataclass(slots=True)
class DecodeLoop:
    """State of the decode loop. All methods but `free` run in its thread."""

    decoder: Decoder | ExactDecoder
    cache: KvCache
    slots: Slots
    places: Places
    limits: LoopLimits
    replica: str
    policies: Policies
    decode_text: Callable[[Sequence[int]], str] | None
    full_blocks: int  # of KV, when all that may run is as long as it may be, or when the cap is reached
    draw: Callable[[Tensor, Sequence[Draw]], Drawn] | None = None  # of an exact decoder
    stats: EngineStats = field(default_factory=lambda: EngineStats(0, 0, 0.0, 0.0))
    inbox: Inbox = field(default_factory=Inbox)
    _rebuilds: Rebuilds = field(default_factory=Rebuilds)
    _steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RATE_STEPS))

    def free(self) -> None:
        """Let go of weights and KV, after the thread has ended."""
        del self.decoder, self.cache, self.slots, self.places

    def run(self) -> None:
        """Decode until stopped."""
        reason: FinishReason = "aborted"
        message = "the engine was closed"
        try:
            while not self.inbox.stopping:
                while (job := self.inbox.next_job(self._is_busy)) is not None:
                    self._do(job)
                    if not self._is_busy():
                        self._publish_stats()  # no step follows
                self.step()
        except BaseException as error:  # every consumer hears of it, in its terminal chunk
            reason, message = "lost", f"the engine's thread died: {type(error).__name__}: {error}"
            self.inbox.failure = traceback.format_exc()
        left = self.inbox.end(reason, message)
        for live in self.places.all():
            live.deliver(reason, message, self.replica)
        self._rebuilds.fail(message)
        self.places.clear()
        self.stats = EngineStats(0, 0, 0.0, 0.0)
        for job in left:
            job.refuse(reason, message)

    def _is_busy(self) -> bool:
        return bool(self.places.running or self.places.num_waiting)

    def _do(self, job: Job) -> None:
        try:
            job.run()
        except BaseException as error:
            job.refuse("lost", f"{type(error).__name__}: {error}")
            raise

    # --- jobs ---

    def submit(self, live: Live) -> None:
        """Take in a request."""
        name = live.request.request_id
        if any(other.request.request_id == name for other in self.places.all()):
            live.deliver("rejected", f"a request with the id {name!r} is running already", self.replica)
            return
        served = self.policies.named(live.request.policy)
        if served is None:
            live.deliver("rejected", self.policies.refusal(live.request.policy), self.replica)
            return
        live.served = served
        self.places.add(live)

    def abort(self, request_ids: Sequence[str] | None) -> None:
        """End these requests, or all, with the tokens they have."""
        wanted = None if request_ids is None else set(request_ids)
        for live in self.places.all():
            if wanted is None or live.request.request_id in wanted:
                self._finish(live, "aborted", "")

    def swap(
        self, weights: PackedWeights | Tensors, lineage: int, number: int, kv: str, done: Future[float]
    ) -> None:
        """Go on with other weights; `done` gets the seconds without decoding once all KV is as asked."""
        began = stopwatch()
        self.decoder.weights = weights  # pyright: ignore - the engine read them for its decoder
        self._renew(self.policies.main, lineage, number, kv, began, done)

    def load_adapter(
        self, name: str, lineage: int, number: int, weights: AdapterWeights, kv: str, done: Future[float]
    ) -> None:
        """Answer under a new name, or go on with other weights under one; `done` is as in `swap`."""
        began = stopwatch()
        served = self.policies.adapters.get(name)
        if served is None:
            self.policies.add(Served(name, lineage, number, adapter=weights))
            self._publish_stats()
            done.set_result(stopwatch() - began)
            return
        served.adapter = weights
        self._renew(served, lineage, number, kv, began, done)

    def drop_adapter(self, name: str, done: Future[float]) -> None:
        """End an adapter's requests as aborted and forget it."""
        served = self.policies.adapters.pop(name)
        for live in self.places.all():
            if live.served is served:
                self._finish(live, "aborted", f"the adapter {name!r} was dropped")
        self.slots.forget(served.salt)
        self._publish_stats()
        done.set_result(0.0)

    def _renew(
        self, served: Served, lineage: int, number: int, kv: str, began: float, done: Future[float]
    ) -> None:
        """A policy's weights have changed: see to its version and its KV."""
        keep = kv == "keep"
        old = served.salt
        served.update(lineage, number)
        self.slots.resalt(old, served.salt, keep=keep)
        stale = [] if keep else [live for live in self.places.all() if live.served is served]
        self._rebuilds.add(stale, began, done)
        self._rebuilds.settle(self.places.running)

    # --- one iteration ---

    def step(self) -> None:
        """Admit, compute a chunk of prompts, and a token of each request that is ready."""
        self.places.admit()
        self._prefill()
        self._decode()
        self._publish_stats()

    def _prefill(self) -> None:
        began = stopwatch()
        chunk = self.places.make_room(
            next_chunk(self.places.running, self.slots, self.limits.prefill_chunk_tokens)
        )
        if not chunk:
            return
        pieces: list[Piece] = []
        for live, n in chunk:
            slot = live.slot
            assert slot is not None
            ids = live.tokens[slot.resident : slot.resident + n]
            pieces.append(Piece(slot.index, slot.resident, ids, live.served, live.scores, slot.parts))
        broken = self.decoder.prefill(pieces, self.cache)
        for live, n in chunk:
            assert live.slot is not None
            live.slot.resident += n
        for live, _ in chunk:
            if live.slot is not None and live.slot.index in broken:
                self._lose(live)
        self._rebuilds.pause(stopwatch() - began)
        self._rebuilds.settle(self.places.running)

    def _decode(self) -> None:
        wants = [(live, 1) for live in self.places.running if not live.lacking]
        ready = [live for live, _ in self.places.make_room(wants)]
        if not ready:
            return
        began = stopwatch()
        slots = [live.slot for live in ready if live.slot is not None]
        self.slots.make_dense(slots)
        ready.sort(key=lambda live: live.slot.index if live.slot else 0)
        for live in ready:
            live.enter("decode", began)
        logits = self.decoder.decode([_fed(live) for live in ready], self.cache)
        drawn = (self.draw or draw_tokens)(logits, [live.draw() for live in ready])
        for row, (live, token, logprob) in enumerate(
            zip(ready, drawn.token_ids, drawn.logprobs, strict=True)
        ):
            assert live.slot is not None
            live.slot.resident += 1
            if not math.isfinite(logprob):
                self._lose(live)
                continue
            live.take(token, logprob)
            live.extra.take(drawn.kept.get(row), drawn.model_logprobs.get(row))
            reason = live.finish_reason(self.decode_text)
            if reason is not None:
                self._finish(live, reason, "")
            elif self.limits.chunk_tokens and live.num_answer - live.num_sent >= self.limits.chunk_tokens:
                live.deliver(None, "", self.replica)
        self._steps.append((stopwatch(), len(ready)))

    # --- bookkeeping ---

    def _lose(self, live: Live) -> None:
        """End a request whose values are not finite; no other row may meet them, not even multiplied by 0."""
        assert live.slot is not None
        self.slots.erase(live.slot)
        self._finish(live, "lost", f"{live.served} computed values that are not finite")

    def _finish(self, live: Live, reason: FinishReason, message: str) -> None:
        streams = self._streams(live)
        resident = live.slot.resident if live.slot else 0
        self.places.remove(live)
        live.deliver(reason, message, self.replica, streams, resident)
        self._rebuilds.settle(self.places.running)

    def _streams(self, live: Live) -> dict[str, Stream]:
        """Return the streams that a request asked for, of all its tokens so far."""
        if ROUTED_EXPERTS not in live.request.streams or live.slot is None:
            return {}
        known = self.slots.routes_of(live.slot)
        assert known is not None, "the engine rejects what its model does not have"
        return routed_experts(known, len(live.tokens))

    def _publish_stats(self) -> None:
        places = self.places
        rate = 0.0
        if places.running and len(self._steps) > 1:
            span = self._steps[-1][0] - self._steps[0][0]
            rate = sum(n for _, n in list(self._steps)[1:]) / span if span > 0 else 0.0
        used = self.slots.blocks_in_use() / self.full_blocks
        self.stats = EngineStats(
            len(places.running),
            places.num_waiting,
            used,
            rate,
            num_preemptions=places.num_preemptions,
            num_adapters=len(self.policies.adapters),
            adapter_bytes=self.policies.num_bytes,
        )


def _fed(live: Live) -> Fed:
    assert live.slot is not None
    return Fed(live.tokens, live.served, live.request.sampling.temperature, live.slot.parts)
