"""One replica of a simulated generator: a line, prefills, and decoding as processor sharing.

All requests that decode get tokens at the same pace, so one virtual clock counts them: it goes forward one
for each token that a request gets, at `tokens_per_iteration / decode_s(running, resident)` a second. A
request that begins to decode at v and wants n tokens ends at v + n, whoever comes and goes meanwhile; the
next end is the top of a heap, and nothing loops over tokens. While nobody comes or goes, the resident tokens
grow along a straight line, so that `decode_s` at their midpoint integrates an affine one exactly.

It consumes requests and versions; a request waits in the line for a place and for memory, then for its
prefill, which an end, a preemption or a request that is taken away gives room to. Each composition change
settles the virtual clock and plans the next end; a plan that fires early, because requests came, plans anew.

Memory: what decodes or prefills holds its whole context. What conversations that are elsewhere left in the
prefix cache is thrown out for it, longest unused first; then the youngest request is preempted: it stands
first in line and its context is computed anew. Tokens of a prompt that a group shares are counted for each of
its requests, though an engine holds them once.

Invariants: the tokens that a request gets are those that it wants; each is of the version that the replica
held when the virtual clock passed it; no request is faster than it would be alone.
"""

from __future__ import annotations

import heapq
from math import inf, sqrt
from typing import TYPE_CHECKING

from headway.core.records import VersionSpan
from headway.matching.engine_request import Request, Timer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headway.matching.contracts import EngineModel

__all__ = ["Replica", "Request", "Timer"]

_EPSILON = 1e-6  # of a token, by which rounding may miss an end
_HEADROOM = 16  # tokens that must stay free for each request, or who is let in would be put out again at once
_MAX_PROMPTS = 512  # shared prompts that a replica remembers


class Replica:
    """See the module.

    Attributes:
        name: as the scheduler knows it.
        epoch: one more each time that it comes back.
        dead: whether it serves nobody any more.
        num_preemptions: for want of memory.
        num_decoded, num_prefilled: tokens, so far.
        decoded_s, prefilled_s: seconds in which it decoded, and of prefills.
        running_s, resident_s: integrals over time of the requests and of the tokens that decode.
    """

    def __init__(
        self,
        name: str,
        engine: EngineModel,
        timer: Timer,
        ended: Callable[[Any], None],
        version: tuple[int, int],
        epoch: int = 0,
    ) -> None:
        """Serve requests; `ended` is called with each that has its answer, when all is settled here."""
        self.name, self.epoch, self.dead = name, epoch, False
        self.num_preemptions = self.num_prefilled = 0
        self.num_decoded = self.decoded_s = self.prefilled_s = self.running_s = self.resident_s = 0.0
        self._engine, self._timer, self._ended = engine, timer, ended
        self._slots, self._capacity = engine.max_running, engine.kv_tokens or inf
        self._with_host = self._capacity + engine.offload_tokens
        lines = engine.prefill_lines or inf
        self._lines = lines if engine.separate_prefill else 1
        self._shares = not engine.separate_prefill  # prefill takes the whole replica
        self._pace = engine.tokens_per_iteration
        self._versions: list[tuple[float, int, int]] = [(0.0, *version)]  # (virtual time, lineage, number)
        self._line: list[tuple[float, int, Request, int]] = []
        self._prefilling: dict[Request, float] = {}  # -> when it is done; while standing still, what is left
        self._decoding: list[tuple[float, int, Request, int]] = []
        self._running: dict[Request, None] = {}  # that decode, in the order in which they began
        self._num = 0  # of these
        self._resident = 0.0  # tokens of all that decode or prefill
        self._count = 0
        self._v, self._at = 0.0, 0.0  # virtual time, and when that was
        self._a, self._b = 0.0, 0.0  # seconds of d further tokens each: d * (a + b * d)
        self._planned = inf  # when it fires next
        self._due = 0.0  # when it should, by the newest plan; it may fire earlier, by an older one
        self._standing = 0  # reasons to stand still: a version, a recomputation
        self._stood_s = 0.0  # since when, or until when it is counted as prefill already
        self._cached: dict[Request, int] = {}  # tokens of conversations elsewhere, longest unused first
        self._num_cached = 0
        self._prompts: dict[str, None] = {}  # groups whose prompt is in the prefix cache

    # --- what it is asked

    @property
    def running(self) -> int:
        """Requests that hold a place."""
        return self._num + len(self._prefilling)

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return sum(request.part == part for _, _, request, part in self._line)

    def load(self) -> tuple[float, float]:
        """Return the used share of the memory, 0 where it has no end, and the tokens a second now."""
        self._settle(self._timer.now_s)
        used = min(1.0, self._resident / self._capacity) if self._capacity < inf else 0.0
        return used, self._num / self._a if self._a else 0.0

    def submit(self, request: Request) -> None:
        """Put a request into the line."""
        request.since_s = self._timer.now_s
        self._stand_in_line(request, request.priority)
        if self._may_serve():
            self._serve()

    def take(self, request: Request) -> None:
        """Take a request away; it keeps the tokens that it has, and its memory is free."""
        now, place = self._timer.now_s, request.place
        if place == "out":
            return
        if place == "line":
            request.waited_s += now - request.since_s
        elif place == "prefill":
            self._leave_prefill(request, now)
        else:
            self._settle(now)
            self._leave_decode(request, now, whole=False)
        request.place = "out"
        request.part += 1
        if place != "line":
            self._serve()

    def forget(self, request: Request) -> None:
        """A conversation is over: nothing of it needs to stay in the prefix cache."""
        self._num_cached -= self._cached.pop(request, 0)

    def stand(self) -> None:
        """Stand still, until `take_up`."""
        now = self._timer.now_s
        self._settle(now)
        self._a = self._b = 0.0
        if not self._standing:
            self._stood_s = now
            for request, end in self._prefilling.items():
                self._prefilling[request] = end - now
                request.part += 1
                request.prefill_s += now - request.since_s
                request.since_s = now
        self._standing += 1

    def take_up(self, lineage: int, number: int, *, recompute: bool) -> float:
        """Decode with a version from now on; compute the memory of what decodes anew, or keep it.

        Returns the further seconds that it stands still for that. As in the live engine, the whole pause of a
        request whose memory is computed anew is prefill.
        """
        self._versions.append((self._v, lineage, number))
        oldest = min((request.begun_v for request in self._running), default=self._v)
        while len(self._versions) > 1 and self._versions[1][0] <= oldest:
            del self._versions[0]
        if recompute:
            self._cached.clear()
            self._prompts.clear()
            self._num_cached = 0
            if self._running:
                held = [request.resident + self._v - request.begun_v for request in self._running]
                each = [self._engine.prefill_s(tokens, 0) for tokens in held]
                rest_s = max(max(each), sum(each) / self._lines)
                until_s = self._timer.now_s + rest_s
                pause_s = max(0.0, until_s - self._stood_s)
                self._stood_s += pause_s  # a further version within this pause adds what goes beyond it
                for request in self._running:
                    request.prefill_s += pause_s
                    request.decode_s -= pause_s
                self._timer.at(rest_s, self._go_on)
                return rest_s
        self._go_on()
        return 0.0

    # --- the line and prefill

    def _stand_in_line(self, request: Request, priority: float) -> None:
        self._count += 1
        request.place = "line"
        request.part += 1
        heapq.heappush(self._line, (priority, self._count, request, request.part))

    def _may_serve(self) -> bool:
        busy = len(self._prefilling)
        return busy < self._lines and self._num + busy < self._slots and not self._standing

    def _serve(self) -> None:
        """Let in whom there is room for, and plan what comes next."""
        now = self._timer.now_s
        line, prefilling = self._line, self._prefilling
        if line and now > self._at:
            self._settle(now)
        while line and not self.dead:
            running = self._num + len(prefilling)
            if len(prefilling) >= self._lines or running >= self._slots or self._standing:
                break
            _, _, request, part = line[0]
            if request.part != part:
                heapq.heappop(line)
                continue
            resident = request.context_tokens
            if request.answer:
                resident += request.num_answered
            if running and self._resident + resident + _HEADROOM * (running + 1) > self._capacity:
                break  # ends make room
            heapq.heappop(line)
            self._let_in(request, resident, now)
        self._plan(now)

    def _let_in(self, request: Request, resident: int, now: float) -> None:
        cached = self._hit(request, resident)
        self._resident += resident
        if self._resident + self._num_cached > self._with_host:
            self._evict()
        request.resident = resident
        request.waited_s += now - request.since_s
        request.place = "prefill"
        request.part += 1
        request.since_s = now
        took_s = self._engine.prefill_s(resident - cached, cached)
        self.num_prefilled += resident - cached
        self.prefilled_s += took_s
        if took_s > 0.0:
            self._prefilling[request] = now + took_s
            self._timer.at(took_s, self._prefilled, (request, request.part))
        else:
            self._decode(request, now)

    def _hit(self, request: Request, resident: int) -> int:
        """Return how many tokens of its context the prefix cache holds: all but the last one at most."""
        cached = self._cached.pop(request, 0)
        self._num_cached -= cached
        if request.group not in self._prompts:
            if len(self._prompts) >= _MAX_PROMPTS:
                del self._prompts[next(iter(self._prompts))]
            self._prompts[request.group] = None
        elif not cached:
            cached = request.prompt_tokens
        hit = (cached if cached < resident else resident - 1) - request.recomputed_tokens
        return hit if hit > 0 else 0

    def _evict(self) -> None:
        cached = self._cached
        while cached and self._resident + self._num_cached > self._with_host:
            request = next(iter(cached))
            self._num_cached -= cached.pop(request)
            self._prompts.pop(request.group, None)

    def _leave_prefill(self, request: Request, now: float) -> None:
        del self._prefilling[request]
        if self._standing:
            request.waited_s += now - request.since_s
        else:
            request.prefill_s += now - request.since_s
        self._resident -= request.resident

    def _prefilled(self, planned: tuple[Request, int]) -> None:
        request, part = planned
        if request.part != part or self.dead:
            return
        now = self._timer.now_s
        del self._prefilling[request]
        self._settle(now)
        self._decode(request, now)
        self._serve()

    # --- decoding

    def _decode(self, request: Request, now: float) -> None:
        request.place = "decode"
        request.part += 1
        request.prefill_s += now - request.since_s
        request.since_s = now
        request.begun_v = self._v
        request.end_v = self._v + request.num_left
        self._count += 1
        self._num += 1
        self._running[request] = None
        heapq.heappush(self._decoding, (request.end_v, self._count, request, request.part))

    def _settle(self, now: float) -> None:
        """Bring the virtual clock to now; it stands still while a plan is not being followed."""
        passed, a = now - self._at, self._a
        self._at = now
        if a and passed > 0.0:
            b, num = self._b, self._num
            if b > 0.0:
                tokens = 2.0 * passed / (a + sqrt(a * a + 4.0 * b * passed))
                self._a = a + 2.0 * b * tokens
            else:
                tokens = passed / a
            self._v += tokens
            grown = num * tokens
            self.num_decoded += grown
            self.decoded_s += passed
            self.running_s += num * passed
            self.resident_s += (self._resident + 0.5 * grown) * passed
            self._resident += grown

    def _plan(self, now: float) -> None:
        """Find the next end, or the moment at which memory is full, from what is here now."""
        if now > self._at:
            self._settle(now)
        self._a = self._b = 0.0
        decoding = self._decoding
        while decoding and decoding[0][2].part != decoding[0][3]:
            heapq.heappop(decoding)
        if not decoding or self._standing or (self._shares and self._prefilling):
            return
        num, resident = self._num, self._resident
        tokens = decoding[0][0] - self._v
        if num > 1 and resident + num * tokens > self._capacity:
            tokens = (self._capacity - resident) / num
        if tokens < _EPSILON:
            tokens = _EPSILON
        decode_s = self._engine.decode_s
        a = decode_s(num, resident) / self._pace
        mean = decode_s(num, resident + 0.5 * num * tokens) / self._pace
        self._a = a
        if mean > a:
            self._b = (mean - a) / tokens
        at = self._due = now + tokens * mean
        if at < self._planned:
            self._planned = at
            self._timer.at(at - now, self._fire, at)

    def _fire(self, at: float) -> None:
        if at != self._planned:
            return  # an earlier one was planned since, and planned anew
        self._planned = inf
        if self.dead or not self._a:
            return  # it stands still; what lets it go on plans
        now = self._timer.now_s
        if at < self._due:
            self._planned = self._due
            self._timer.at(self._due - now, self._fire, self._due)
            return
        self._settle(now)
        ended: list[Request] = []
        decoding, limit = self._decoding, self._v + _EPSILON
        while decoding and (decoding[0][0] <= limit or decoding[0][2].part != decoding[0][3]):
            _, _, request, part = heapq.heappop(decoding)
            if request.part == part:
                self._leave_decode(request, now, whole=True)
                request.place = "out"
                request.part += 1
                ended.append(request)
        if not ended and self._resident + 2 * _EPSILON * self._num >= self._capacity and self._num > 1:
            self._preempt(now)
        self._serve()
        for request in ended:
            self._ended(request)

    def _leave_decode(self, request: Request, now: float, *, whole: bool) -> None:
        """Give a request the tokens that it has by now: all, or one less than all at most."""
        self._num -= 1
        del self._running[request]
        passed = self._v - request.begun_v
        self._resident = self._resident - request.resident - passed if self._num or self._prefilling else 0.0
        num = request.num_left if whole else min(request.num_left - 1, int(passed + _EPSILON))
        self._cut(request, num)
        request.num_left -= num
        decode_s = request.decode_s + now - request.since_s
        request.decode_s = decode_s if decode_s > 0.0 else 0.0
        if whole:
            kept = request.resident + num
            self._cached[request] = kept
            self._num_cached += kept
            if self._resident + self._num_cached > self._with_host:
                self._evict()

    def _cut(self, request: Request, num: int) -> None:
        """Append `num` tokens to a request's answer, by the version that each was decoded with."""
        versions, answer, begun, done = self._versions, request.answer, request.begun_v, 0
        if len(versions) == 1 and not answer:
            if num:
                answer.append(VersionSpan(versions[0][1], versions[0][2], num))
            return
        for index in range(len(versions)):
            until = int(versions[index + 1][0] - begun + _EPSILON) if index + 1 < len(versions) else num
            part = min(until, num) - done
            if part > 0:
                _, lineage, number = versions[index]
                if answer and answer[-1][0] == lineage and answer[-1][1] == number:
                    answer[-1] = VersionSpan(lineage, number, answer[-1][2] + part)
                else:
                    answer.append(VersionSpan(lineage, number, part))
                done += part

    def _preempt(self, now: float) -> None:
        """Memory is full: the request that began last gives its own up and stands first in line."""
        request = next(reversed(self._running))
        self._leave_decode(request, now, whole=False)
        self.num_preemptions += 1
        request.since_s = now
        self._stand_in_line(request, -inf)

    def _go_on(self, _: Any = None) -> None:
        """One reason less to stand still."""
        if self.dead:
            return
        now = self._timer.now_s
        self._standing -= 1
        if not self._standing:
            for request, left in list(self._prefilling.items()):
                self._prefilling[request] = now + left
                request.part += 1
                request.waited_s += now - request.since_s
                request.since_s = now
                self._timer.at(left, self._prefilled, (request, request.part))
        self._serve()
