"""What one replica's engine does under a steady load: one point of the fluid model.

n requests decode at once, hold r tokens each, and get a token every decode_s(n, n r). Where prefill shares
the replica, rollouts that arrive at a rate x keep it busy for x P of the time (P seconds of prefill each) and
decoding has the rest: x (A t + n P) = n, with A sampled tokens and t seconds a token. The prefix cache has
the room that decoding leaves, and that in host memory; a conversation that waits at a tool finds itself there
as far as it fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.matching.contracts import EngineModel
    from headway.matching.sampled import PrefillTimes

MOST_PREFILL = 0.98
"""Of the time that prefill machines can be busy: beyond it their line grows without end."""


@dataclass(frozen=True, slots=True)
class Means:
    """What the fluid model needs of a sample."""

    answer_tokens: float
    resident_tokens: float  # of a busy slot
    idle_token_s: float  # of a rollout, at tools
    turns: float


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica at n decoding requests."""

    running: float
    token_s: float  # between two tokens of a request, prefills of others included
    rate: float  # rollouts/s through this replica
    prefill_fraction: float  # of its time
    prefill_s: float  # of a rollout, waiting for other prefills included
    hit: float  # of the prefix cache
    kv_used: float  # share of the room that decoding holds; 0 where it has no end
    prefill_bound: bool


def most_running(engine: EngineModel, means: Means) -> tuple[float, str]:
    """Return how many requests a replica can decode at once, and whether `kv` or `setting` says so."""
    if engine.kv_tokens:
        by_memory = engine.kv_tokens / means.resident_tokens
        if by_memory < engine.max_running:
            return max(1.0, by_memory), "kv"
    return float(engine.max_running), "setting"


def replica_at(
    running: float, engine: EngineModel, means: Means, prefill: PrefillTimes, still: float
) -> Replica:
    """Return what a replica does while `running` requests decode.

    Args:
        running: above 0; not a whole number in general.
        engine: its model.
        means: of the sample.
        prefill: times of the sample's prefills on this engine.
        still: share of time that it stands still to take up versions.
    """
    resident = running * means.resident_tokens
    step_s = engine.decode_s(running, resident) / engine.tokens_per_iteration / max(0.05, 1.0 - still)
    alone_s = means.answer_tokens * step_s
    room = None
    if engine.kv_tokens:
        room = max(0.0, engine.kv_tokens - resident) + engine.offload_tokens
    hit, rate = 1.0, running / alone_s
    for _ in range(6):
        if room is not None:
            idle = rate * means.idle_token_s
            hit = 1.0 if idle <= room else room / idle
        prefill_s = prefill.seconds(hit)
        if engine.separate_prefill:
            lines = float(engine.prefill_lines) if engine.prefill_lines else 1e9
            rate = min(running / alone_s, MOST_PREFILL * lines / max(prefill_s, 1e-12))
        else:
            rate = running / (alone_s + running * prefill_s)
        if room is None:
            break
    busy = rate * prefill.seconds(hit)
    token_s, bound, lines = step_s, False, 1.0
    if engine.separate_prefill:
        lines = float(engine.prefill_lines) if engine.prefill_lines else 1e9
        busy /= lines
        bound = busy > 0.97 * MOST_PREFILL
    else:
        token_s = step_s / max(1e-3, 1.0 - busy)
    wait = 1.0 + busy / (2.0 * lines * max(0.02, 1.0 - busy))  # M/D/1 for one line
    used = min(1.0, resident / engine.kv_tokens) if engine.kv_tokens else 0.0
    return Replica(running, token_s, rate, busy, prefill.seconds(hit) * wait, hit, used, bound)
