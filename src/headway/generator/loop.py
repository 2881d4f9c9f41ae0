"""The decode loop: one thread that owns the decoder, the KV and every request.

Consumes: jobs from its inbox (submit, abort, swap, ...), all run between two decode steps.
Waits for: the inbox, when no request is there. Unblocked by `post`, and by `stop`.

An iteration: jobs; waiting requests take slots; one chunk of prefill; one decode step of all that are ready.
When the thread ends, by `stop` or by a failure, every request gets its terminal chunk and every job left its
refusal.

Invariant: weights change between decode steps only, so each token has exactly one version.
"""

from __future__ import annotations

import heapq
import math
import threading
import traceback
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from torch import Tensor

from headway.core.clock import stopwatch
from headway.core.errors import EngineError
from headway.core.protocols import Chunk, EngineStats
from headway.core.records import FLOATS, ROUTED_EXPERTS, TOKENS, FinishReason, Stream
from headway.generator.decoder import Decoder, Fed, Piece
from headway.generator.exact import ExactDecoder
from headway.generator.kv import KvCache
from headway.generator.live import Live
from headway.generator.policies import Policies, Served
from headway.generator.sampling import Draw, Drawn, draw_tokens
from headway.generator.slots import Slots, common_prefix

if TYPE_CHECKING:
    from headway.generator.adapters import AdapterWeights
    from headway.generator.exact import Tensors
    from headway.generator.packed import PackedWeights

_RATE_STEPS = 32  # decode steps that the tokens/s of the stats look back over


@dataclass(slots=True)
class Job:
    """Something to do in the loop's thread."""

    run: Callable[[], None]
    refuse: Callable[[FinishReason, str], None]  # instead of run, when the loop has ended


@dataclass(slots=True)
class _Rebuild:
    """Running requests whose KV is being computed anew after a swap."""

    lives: set[Live]
    pause_s: float
    done: Future[float]


@dataclass(slots=True)
class LoopLimits:
    """What the loop keeps to."""

    max_running: int
    prefill_chunk_tokens: int
    chunk_tokens: int  # answer tokens a chunk that is not the terminal one; 0 for none


@dataclass(slots=True)
class DecodeLoop:
    """State of the decode loop. All methods but `post` and `stop` run in its thread."""

    decoder: Decoder | ExactDecoder
    cache: KvCache
    slots: Slots
    limits: LoopLimits
    replica: str
    policies: Policies
    decode_text: Callable[[Sequence[int]], str] | None
    max_context_tokens: int
    draw: Callable[[Tensor, Sequence[Draw]], Drawn] | None = None  # of an exact decoder
    stats: EngineStats = field(default_factory=lambda: EngineStats(0, 0, 0.0, 0.0))
    failure: str = ""  # traceback of what ended the thread
    _ended: tuple[FinishReason, str] | None = None
    _stopping: bool = False
    _inbox: deque[Job] = field(default_factory=deque[Job])
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _waiting: list[tuple[int, int, Live]] = field(default_factory=list[tuple[int, int, Live]])  # a heap
    _arrivals: Iterator[int] = field(default_factory=count)
    _running: list[Live] = field(default_factory=list[Live])  # by admission
    _rebuilds: list[_Rebuild] = field(default_factory=list[_Rebuild])
    _steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_RATE_STEPS))

    # --- from any thread ---

    def post(self, job: Job) -> None:
        """Run a job between two decode steps, or refuse it at once when the thread has ended."""
        with self._wake:
            ended = self._ended
            if ended is None:
                self._inbox.append(job)
                self._wake.notify()
        if ended is not None:
            job.refuse(*ended)

    def stop(self) -> None:
        """End every request as aborted, then the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()

    def free(self) -> None:
        """Let go of weights and KV, after the thread has ended."""
        del self.decoder, self.cache, self.slots

    # --- the thread ---

    def run(self) -> None:
        """Decode until stopped."""
        reason: FinishReason = "aborted"
        message = "the engine was closed"
        try:
            while not self._stopping:
                while (job := self._next_job()) is not None:
                    self._do(job)
                self._admit()
                self._prefill()
                self._decode()
                self._publish_stats()
        except BaseException as error:  # every consumer hears of it, in its terminal chunk
            reason, message = "lost", f"the engine's thread died: {type(error).__name__}: {error}"
            self.failure = traceback.format_exc()
        with self._wake:
            self._ended = (reason, message)
            left = list(self._inbox)
            self._inbox.clear()
        for live in [*self._running, *(entry[2] for entry in self._waiting)]:
            live.deliver(reason, message, self.replica)
        for rebuild in self._rebuilds:
            rebuild.done.set_exception(EngineError(message))
        self._running.clear()
        self._waiting.clear()
        self._rebuilds.clear()
        self.stats = EngineStats(0, 0, 0.0, 0.0)
        for job in left:
            job.refuse(reason, message)

    def _next_job(self) -> Job | None:
        """Return the oldest job; without one, wait while there is no request to go on with."""
        with self._wake:
            self._wake.wait_for(lambda: self._inbox or self._running or self._waiting or self._stopping)
            return self._inbox.popleft() if self._inbox and not self._stopping else None

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
        if any(other.request.request_id == name for other in self._all()):
            live.deliver("rejected", f"a request with the id {name!r} is running already", self.replica)
            return
        served = self.policies.named(live.request.policy)
        if served is None:
            live.deliver("rejected", self.policies.refusal(live.request.policy), self.replica)
            return
        live.served = served
        heapq.heappush(self._waiting, (live.request.priority, next(self._arrivals), live))

    def abort(self, request_ids: Sequence[str] | None) -> None:
        """End these requests, or all, with the tokens they have."""
        wanted = None if request_ids is None else set(request_ids)
        for live in self._all():
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
        for live in self._all():
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
        lives = set[Live]()
        if not keep:
            lives = {live for live in self._running if live.served is served and live.lacking}
        for live in lives:
            live.enter("prefill", began)
            if live.scores is not None:
                live.scores.forget()
        rebuild = _Rebuild(lives, stopwatch() - began, done)
        self._rebuilds.append(rebuild)
        self._settle_rebuilds()

    # --- one iteration ---

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.limits.max_running:
            live = heapq.heappop(self._waiting)[2]
            live.slot = self.slots.acquire(live.request.session, live.tokens, live.served.salt)
            live.slot.resident = min(live.slot.resident, live.usable)
            live.enter("prefill", stopwatch())
            self._running.append(live)

    def _prefill(self) -> None:
        lacking = [live for live in self._running if live.lacking]
        if not lacking:
            return
        began = stopwatch()
        left = self.limits.prefill_chunk_tokens
        chosen: list[Live] = []
        pieces: list[Piece] = []
        for live in lacking:
            if left == 0:
                break
            slot = live.slot
            assert slot is not None
            self.slots.extend_by_copy(slot, live.usable)
            if live.lacking and not (live.usable == len(live.tokens) - 1 and _will_share(live, chosen)):
                n = min(left, live.lacking)
                ids = live.tokens[slot.resident : slot.resident + n]
                pieces.append(Piece(slot.index, slot.resident, ids, live.served, live.scores))
                chosen.append(live)
                left -= n
        if pieces:
            self.decoder.prefill(pieces, self.cache)
        for live, piece in zip(chosen, pieces, strict=True):
            assert live.slot is not None
            live.slot.resident += len(piece.token_ids)
        for rebuild in self._rebuilds:
            rebuild.pause_s += stopwatch() - began
        self._settle_rebuilds()

    def _decode(self) -> None:
        ready = [live for live in self._running if not live.lacking]
        if not ready:
            return
        began = stopwatch()
        slots = [live.slot for live in ready if live.slot is not None]
        self.slots.make_dense(slots)
        ready.sort(key=lambda live: live.slot.index if live.slot else 0)
        for live in ready:
            live.enter("decode", began)
        fed = [Fed(live.tokens, live.served, live.request.sampling.temperature) for live in ready]
        logits = self.decoder.decode(fed, self.cache)
        drawn = (self.draw or draw_tokens)(logits, [live.draw() for live in ready])
        for row, (live, token, logprob) in enumerate(
            zip(ready, drawn.token_ids, drawn.logprobs, strict=True)
        ):
            assert live.slot is not None
            live.slot.resident += 1
            if not math.isfinite(logprob):
                message = f"{live.served} computed logits that are not finite"
                self.slots.erase(live.slot)
                self._finish(live, "lost", message)
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

    def _all(self) -> list[Live]:
        return [*self._running, *(entry[2] for entry in self._waiting)]

    def _finish(self, live: Live, reason: FinishReason, message: str) -> None:
        streams = self._streams(live)
        if live.slot is None:
            self._waiting = [entry for entry in self._waiting if entry[2] is not live]
            heapq.heapify(self._waiting)
        else:
            self._running.remove(live)
            self.slots.release(live.slot)
        live.deliver(reason, message, self.replica, streams)
        self._settle_rebuilds()

    def _streams(self, live: Live) -> dict[str, Stream]:
        """Return the streams that a request asked for, of all its tokens so far."""
        if live.slot is None or ROUTED_EXPERTS not in live.request.streams:
            return {}
        known = self.cache.routes_of(live.slot.index, live.slot.resident)
        assert known is not None, "the engine rejects what its model does not have"
        rows = known.new_full((len(live.tokens), *known.shape[1:]), -1)
        rows[: len(known)] = known
        data = rows.cpu().numpy().tobytes()
        return {ROUTED_EXPERTS: Stream("token", "int16", tuple(rows.shape), data)}

    def _settle_rebuilds(self) -> None:
        for rebuild in list(self._rebuilds):
            present = set(self._running)
            rebuild.lives = {live for live in rebuild.lives if live in present and live.lacking}
            if not rebuild.lives:
                self._rebuilds.remove(rebuild)
                rebuild.done.set_result(rebuild.pause_s)

    def _publish_stats(self) -> None:
        resident = sum(live.slot.resident for live in self._running if live.slot is not None)
        rate = 0.0
        if self._running and len(self._steps) > 1:
            span = self._steps[-1][0] - self._steps[0][0]
            rate = sum(n for _, n in list(self._steps)[1:]) / span if span > 0 else 0.0
        capacity = self.limits.max_running * self.max_context_tokens
        self.stats = EngineStats(
            len(self._running),
            len(self._waiting),
            resident / capacity,
            rate,
            len(self.policies.adapters),
            self.policies.num_bytes,
        )


def refusal_chunk(reason: FinishReason, message: str, replica: str) -> Chunk:
    """Return the terminal chunk of a request that never ran."""
    return Chunk(array(TOKENS), array(FLOATS), (), reason, message, replica)


def _will_share(live: Live, chosen: Sequence[Live]) -> bool:
    """Whether it pays to wait: a request in this chunk computes at least a quarter of what this one lacks."""
    assert live.slot is not None
    limit = len(live.tokens) - 1
    for other in chosen:
        if other.served is not live.served:
            continue
        common = common_prefix(other.tokens, live.tokens, min(limit, len(other.tokens) - 1))
        if (common - live.slot.resident) * 4 >= live.lacking:
            return True
    return False
