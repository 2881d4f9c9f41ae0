"""What the engines worked on, from a journal: each answer with when it was prefilled and decoded.

The journal tells when an answer ended and how long each part took. Where KV is computed anew with a new
version, that pause is in prefill_s of whatever was being decoded (`VersionApplied.pause_s` tells it), so that
the answer began the earlier.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.matching.recorded_run import Recording


@dataclass(frozen=True, slots=True)
class Request:
    """One answer as the engine saw it."""

    replica: str
    begin_s: float  # of decoding
    end_s: float
    decode_s: float  # without pauses in which KV was computed anew
    prefill_s: float  # its own
    prefill_tokens: int  # that were not in the cache, as far as the journal tells
    context_tokens: int  # when decoding began
    num_tokens: int
    partial: bool  # it was ended before its end: it tells of the load alone


def requests_of(recording: Recording) -> list[Request]:
    """Return every answer that an engine worked on, also those of attempts that were ended."""
    found: list[Request] = []
    rates: list[float] = []
    asked = _asked(recording)
    fresh = _computed(recording, asked)
    for number, place, begin_s, prefill_s in asked:
        turn = recording.attempts[number].turns[place]
        found.append(
            Request(
                turn.replica, begin_s, turn.ended_s, turn.decode_s, prefill_s, fresh[number, place],
                turn.prompt_tokens, turn.num_tokens, turn.finish in ("aborted", "lost"),
            )
        )  # fmt: skip
        if turn.num_tokens:
            rates.append(turn.decode_s / turn.num_tokens)
    token_s = float(np.median(rates)) if rates else 0.0
    for attempt in recording.attempts:
        unfinished = attempt.num_tokens - attempt.num_answered
        if attempt.outcome in ("stopped", "failed") and unfinished > 0 and attempt.over_s is not None:
            context = attempt.turns[-1].resident_tokens if attempt.turns else 0
            took = unfinished * token_s
            begin = attempt.over_s - took
            found.append(
                Request(
                    attempt.replica, begin, attempt.over_s, took, 0.0, 0, context, unfinished, partial=True
                )
            )
    return found


def _asked(recording: Recording) -> list[tuple[int, int, float, float]]:
    """Return (attempt, turn, when it was decoded first, seconds of its own prefill) in the order of prefill.

    Where KV is computed anew with a new version, that pause is in prefill_s of whatever was being decoded.
    """
    applied: dict[str, list[tuple[float, float]]] = {}
    for replica, t, pause_s in recording.applies:
        applied.setdefault(replica, []).append((t, pause_s))
    keeps = keeps_kv(recording)
    found: list[tuple[int, int, float, float]] = []
    for number, attempt in enumerate(recording.attempts):
        for place, turn in enumerate(attempt.turns):
            begin, prefill = turn.ended_s - turn.decode_s, turn.prefill_s
            pauses = applied.get(turn.replica, [])
            later = 0 if keeps else bisect_right(pauses, (turn.ended_s, 0.0))
            while later and pauses[later - 1][0] > begin - pauses[later - 1][1] and prefill:
                later -= 1
                pause_s = pauses[later][1]
                if prefill < 0.999 * pause_s:
                    break
                begin, prefill = begin - pause_s, max(0.0, prefill - pause_s)
            found.append((number, place, begin, prefill))
    return sorted(found, key=lambda one: (one[2] - one[3], one[0], one[1]))


def _computed(
    recording: Recording, asked: Sequence[tuple[int, int, float, float]]
) -> dict[tuple[int, int], int]:
    """Return the tokens that each turn's prefill had to compute: what no prefix cache held.

    A turn goes on from what its replica held of the one before; else from the prompt that its group shares,
    if another member's was computed. Both are lost with a new version, where the KV is not kept.
    """
    applied: dict[str, list[float]] = {}
    for replica, t, _ in recording.applies:
        applied.setdefault(replica, []).append(t)
    keeps = keeps_kv(recording)

    def age(replica: str, t: float) -> int:
        return 0 if keeps else bisect_right(applied.get(replica, ()), t)

    fresh: dict[tuple[int, int], int] = {}
    prompts: set[tuple[str, str, int]] = set()
    for number, place, begin_s, prefill_s in asked:
        attempt = recording.attempts[number]
        turn, before = attempt.turns[place], attempt.turns[place - 1] if place else None
        now = age(turn.replica, begin_s - prefill_s)
        shared, held = (turn.replica, attempt.group, now), 0
        if before and before.replica == turn.replica and age(turn.replica, before.ended_s) == now:
            held = before.resident_tokens
        elif shared in prompts:
            held = attempt.turns[0].prompt_tokens
        prompts.add(shared)
        fresh[number, place] = max(1, turn.prompt_tokens - held)
    return fresh


def keeps_kv(recording: Recording) -> bool:
    """Whether KV outlives a new version."""
    return recording.header.queue.get("kv") == "keep"
