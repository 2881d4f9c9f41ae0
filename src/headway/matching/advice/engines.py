"""Engines that preempt, and one slow engine among many.

Thresholds: PREEMPTED of the answers were interrupted for want of memory, each computed anew. Slow: a
replica's seconds a token are SLOW times the median of the others', with MIN_TURNS answers on each side,
and chance does not explain it (Mann-Whitney, p < 1e-4); machines of one kind differ by less.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import TYPE_CHECKING

from headway.matching.advice.finding import Change, Figure, Finding, at_most, factor_without
from headway.matching.estimators import p_greater
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.matching.advice.reading import Reading

PREEMPTED = 0.05
SLOW = 1.25
MIN_TURNS = 30
_P = 1e-4
_MAX_COMPARED = 4000  # answers of each side: more change nothing


def findings(reading: Reading) -> Iterator[Finding]:
    """Yield what holds for the replicas."""
    yield from _preempting(reading)
    yield from _slow(reading)


def _preempting(reading: Reading) -> Iterator[Finding]:
    replicas = reading.replicas
    share = ratio(replicas.num_preemptions, replicas.num_turns)
    if share is None or share < PREEMPTED:
        return
    kv = replicas.mean("kv_used") or 0.0
    engine = reading.part_share("prefill_s") + reading.part_share("decode_s")
    cap = int(reading.get("generator.kv_cache_mb", 0))
    if reading.get("concurrency.mode", "fixed") == "fixed":
        change = Change(
            "let the KV's use decide how many rollouts are in flight", {"concurrency.mode": '"adaptive"'}
        )
    elif cap:
        change = Change("more memory for KV", {"generator.kv_cache_mb": str(round(1.5 * cap))})
    else:
        change = Change("fewer requests at once: generator.max_running, concurrency.high")
    lost = min(0.5, share) * engine
    yield Finding(
        code="preemptions",
        title="Engines preempt requests, and compute them anew",
        stake=max(reading.starved, 0.1) * min(1.0, share) * max(engine, 0.1),
        evidence=(
            Figure(
                "preemptions, of all answers",
                share,
                "share",
                "rl.generator.preemptions",
                note=f"{replicas.num_preemptions:,} in all",
            ),
            Figure("of the KV cache in use", kv, "share"),
        ),
        change=change,
        gain=at_most(
            1.0 / (1.0 - lost / 2),
            reading.starved,
            "half an answer's time saved for each that is not interrupted",
        ),
    )


def _slow(reading: Reading) -> Iterator[Finding]:
    by_name = reading.replicas.by_name
    for name, seen in by_name.items():
        others = [value for other, one in by_name.items() if other != name for value in one.token_s]
        if len(by_name) < 2 or len(seen.token_s) < MIN_TURNS or len(others) < MIN_TURNS:
            continue
        mine, rest = _thinned(list(seen.token_s)), _thinned(others)
        factor = ratio(median(mine), median(rest)) or 0.0
        if factor < SLOW or p_greater(mine, rest) > _P:
            continue
        decode = reading.part_share("decode_s")
        part = (1.0 - 1.0 / factor) * decode / len(by_name)
        yield Finding(
            code="slow_engine",
            title=f"Replica {name} is slower than the others",
            stake=max(reading.starved, 0.1) * (1.0 - 1.0 / factor) * decode,
            evidence=(
                Figure(
                    f"seconds a token on {name}, against the others' median",
                    factor,
                    "ratio",
                    note=f"{1000 * median(mine):.3g} against {1000 * median(rest):.3g} ms",
                ),
                Figure("answers compared", len(seen.token_s), "count", note=f"{len(others):,} of the others"),
            ),
            change=Change(
                f"look at {name}'s machine (clocks, a neighbour, its link); leave it out if it stays slow"
            ),
            gain=at_most(
                factor_without(part),
                reading.starved,
                "its rollouts as fast as the others', waits for them left out",
            ),
        )


def _thinned(values: list[float]) -> list[float]:
    step = max(1, len(values) // _MAX_COMPARED)
    return values[::step]
