"""Generation is short: which part of a rollout's way holds production up.

Threshold: the trainer waits for rollouts at least STARVED of the time, and the part takes at least PART of
a rollout's time. Below the first, all that a change could gain is 1 / (1 - 0.15) - 1 = 18 %, which
ordinary drift eats; below the second, removing the part altogether would gain a third at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headway.matching.advice.field import TOOL_CALLS
from headway.matching.advice.finding import Change, Figure, Finding, Gain, at_most, factor_without
from headway.matching.advice.when import when
from headway.queue.settings import verify_places
from headway.telemetry.metrics import LATENCY_PARTS
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.matching.advice.reading import Reading

STARVED = 0.15
PART = 0.25
FULL_KV = 0.85  # share of the KV cache above which it is memory that is short, not slots
FULL = 0.9  # share of the slots in use above which more rollouts stand in line
HALF_KV = 0.5  # likewise, where there is a line although slots are free: the next one does not fit
ROOM = 0.7  # share of the slots in use below which more rollouts find a place
Advice = tuple[Change, Gain, tuple[Figure, ...]]


def findings(reading: Reading) -> Iterator[Finding]:
    """Yield the parts that hold production up."""
    starved, whole = reading.starved, reading.end_to_end_s
    if starved < STARVED or not whole or not reading.records:
        return
    waits = reading.waits
    lines = {"engine": waits.engine_s, "grant": waits.grant_s, "score": waits.score_s}
    rest = max(0.0, reading.part_s("queue_s") - sum(lines.values()))
    stations: list[tuple[str, str, float, str, Callable[[Reading, float], Advice]]] = [
        ("decode", "Decoding", reading.part_s("decode_s"), "decode_s", _decode),
        ("prefill", "Prefill", reading.part_s("prefill_s"), "prefill_s", _prefill),
        ("tools", "Tool calls", reading.part_s("tool_s"), "tool_s", _tools),
        ("sandbox_starts", "Sandbox starts", reading.part_s("sandbox_start_s"), "sandbox_start_s", _starts),
        ("sandbox_quota", "The line for a sandbox", waits.grant_s, "queue_s", _quota),
        ("scoring", "Scoring", reading.part_s("score_s") + waits.score_s, "score_s", _scoring),
        ("handover", "The queue between processes", rest, "queue_s", _between),
    ]
    stations.append(_line(reading))
    for code, name, part_s, part, advise in stations:
        share = part_s / whole
        if share < PART or (code == "tools" and (reading.slots_used or 0.0) >= FULL):
            continue  # whoever comes back from a tool sooner would stand in line for a slot
        change, gain, more = advise(reading, share)
        used = reading.slots_used if code in ("decode", "prefill") else None
        shared = Figure(
            f"{name.lower()}, of a rollout's time", share, "share", note=_seconds_note(reading, part_s)
        )
        yield Finding(
            code=f"generation_{code}",
            title="Each answer takes long, while slots are free"
            if code == "decode" and used is not None and used < ROOM
            else f"{name} hold{'' if name in _PLURAL else 's'} generation up",
            stake=starved * share * (1.0 if used is None else max(0.3, used)),  # an idle engine is not it
            evidence=(shared, *more),
            when=_when(reading, part),
            change=change,
            gain=gain,
        )


_PLURAL = ("Tool calls", "Sandbox starts", "Full slots", "Full KV caches")


def _seconds_note(reading: Reading, part_s: float) -> str:
    num = sum(bucket.num_rollouts for bucket in reading.buckets.values())
    return f"{part_s / num:.3g} of {reading.end_to_end_s / num:.3g} s, mean"


def _when(reading: Reading, part: str) -> str:
    place = LATENCY_PARTS.index(part)
    numbers = [record.step for record in reading.records if record.step in reading.buckets]
    buckets = [reading.buckets[number] for number in numbers]
    return when(numbers, [b.parts_s[place] >= PART * b.end_to_end_s > 0.0 for b in buckets])


def _decode(reading: Reading, share: float) -> Advice:
    replicas, used = int(reading.get("generator.replicas", 1)), reading.slots_used
    if used is not None and used < ROOM:
        change = Change(
            "a faster engine for each request: fewer bits, more parallelism, speculative decoding"
        )
        gain = at_most(
            1.0 / (1.0 - 0.1 * share), reading.starved, "for each tenth off that time, as many in flight"
        )
        return change, gain, _slots(reading)
    factor = 1.0 / (1.0 - share + share * replicas / (replicas + 1))
    basis = f"{replicas + 1} replicas for {replicas}, decoding alone grows faster (Amdahl)"
    change = Change(
        "one replica more, where there is a machine for it; shorter answers do the same",
        {"generator.replicas": str(replicas + 1)},
    )
    return change, at_most(factor, reading.starved, basis), _slots(reading)


def _halved(reading: Reading, share: float) -> Gain:
    return at_most(1.0 / (1.0 - share / 2), reading.starved, "half of that time gone, as many in flight")


def _prefill(reading: Reading, share: float) -> Advice:
    seen = reading.replicas.by_name.values()
    again = ratio(sum(one.context_tokens for one in seen), sum(one.num_tokens for one in seen))
    figures = () if again is None else (Figure("context put before each sampled token", again, "ratio"),)
    if reading.get("generator.kv_on_update") == "recompute" and reading.depth:
        change = Change(
            "keep KV over a weight update, where the mismatch that it makes is borne",
            {"generator.kv_on_update": '"keep"'},
        )
    else:
        change = Change(
            "let more sessions keep their KV between turns (generator.max_running, generator.kv_cache_mb), "
            "or split prefill from decoding"
        )
    return change, _halved(reading, share), figures


def _tools(reading: Reading, share: float) -> Advice:
    calls = reading.summary["rl.rollout.tool_calls"]["mean"]
    tail = reading.summary["rl.latency.tool_s"]
    figures = [
        Figure("tool calls of a rollout, mean", calls, "count", "rl.rollout.tool_calls", TOOL_CALLS),
        Figure("in tools, p99 of a rollout", tail["p99"], "seconds", "rl.latency.tool_s"),
        *_slots(reading),
    ]
    change, factor = more_in_flight(reading, factor_without(share))
    basis = f"{factor:.2f} times as many rollouts in flight, each as fast (Little's law)"
    return change, at_most(factor, reading.starved, basis), tuple(figures)


def _starts(reading: Reading, share: float) -> Advice:
    tail, warm = reading.summary["rl.sandbox.start_s"], int(reading.get("sandbox.warm", 0))
    figures = [
        Figure(f"a start, {part}", tail[part], "seconds", "rl.sandbox.start_s")
        for part in ("mean", "p99")
        if tail[part] is not None
    ]
    change = Change("more sandboxes kept ready, or a smaller image", {"sandbox.warm": str(max(8, 2 * warm))})
    return change, _halved(reading, share), tuple(figures)


def _quota(reading: Reading, share: float) -> Advice:
    summary = reading.summary
    wait, live = summary["rl.sandbox.queue_s"]["mean"], summary["rl.sandbox.live"]["max"] or 0.0
    figures = [Figure("sandboxes at once, most", live, "count", "rl.sandbox.live")]
    if wait is not None:
        figures.append(Figure("in line for a sandbox, mean", wait, "seconds", "rl.sandbox.queue_s"))
    most, rate = int(reading.get("sandbox.max_live", 0)), float(reading.get("sandbox.max_starts_per_s", 0.0))
    at_once, starting = (
        int(reading.get("sandbox.max_starting", 0)),
        summary["rl.sandbox.starting"]["max"] or 0,
    )
    if most and live >= most - verify_places(most):  # some are kept for verifiers
        change = Change("more sandboxes at once", {"sandbox.max_live": str(2 * most)})
    elif rate:
        key = {"sandbox.max_starts_per_s": f"{2 * rate:g}"}
        change = Change("a higher rate of starts, if the provider bears it", key)
    elif at_once and starting >= at_once:
        key = {"sandbox.max_starting": str(2 * at_once)}
        change = Change("more starts at once, if the provider bears them", key)
    else:
        change = Change("ask the provider for more: it refuses starts")
    factor = min(2.0, factor_without(share))
    return change, at_most(factor, reading.starved, "twice the places, or nobody in line"), tuple(figures)


def _scoring(reading: Reading, share: float) -> Advice:
    summary = reading.summary
    whole = sum(bucket.num_rollouts for bucket in reading.buckets.values())
    figures = (
        Figure("in line for the scorer, mean", reading.waits.score_s / whole, "seconds"),
        Figure("a reward, p99", summary["rl.latency.score_s"]["p99"], "seconds", "rl.latency.score_s"),
    )
    change = Change("make the reward faster, or give it more room: its judge's or verifier's own concurrency")
    return change, _halved(reading, share), figures


def _between(reading: Reading, share: float) -> Advice:
    """More workers share the messages out, where a core is idle; on a machine without they take turns."""
    workers, cores = int(reading.get("environment.workers", 1)), reading.cores
    others = 1 + int(reading.get("trainer.ranks", 1)) + int(reading.get("generator.replicas", 1))
    if cores is None:
        return Change("more environment workers (environment.workers) where cores are idle"), Gain(), ()
    figures = (
        Figure("processes at work", others + workers, "count", note=f"on {cores} core{'s'[: cores != 1]}"),
    )
    more = min(2 * workers, cores - others)
    if more <= workers:
        text = (
            "more cores: trainer, generator, driver and environments share these; more workers would not help"
        )
        return Change(text), Gain(), figures
    left = 1.0 - share + share * workers / more
    gain = at_most(
        1.0 / left, reading.starved, f"{more} workers for {workers}, that time alone divided (Amdahl)"
    )
    return Change("more environment workers", {"environment.workers": str(more)}), gain, figures


def _line(reading: Reading) -> tuple[str, str, float, str, Callable[[Reading, float], Advice]]:
    """Return the line before the engines: for want of memory, or of slots."""
    kv, used = reading.replicas.mean("kv_used") or 0.0, reading.slots_used
    if kv >= FULL_KV or (kv >= HALF_KV and used is not None and used < ROOM):
        return "kv", "Full KV caches", reading.waits.engine_s, "queue_s", _kv
    return "slots", "Full slots", reading.waits.engine_s, "queue_s", _full_slots


def _kv(reading: Reading, share: float) -> Advice:
    cap = int(reading.get("generator.kv_cache_mb", 0))
    used = reading.replicas.mean("kv_used") or 0.0
    figures = (Figure("of the KV cache in use", used, "share"), *_slots(reading))
    if cap:
        change = Change("more memory for KV", {"generator.kv_cache_mb": str(round(1.5 * cap))})
    else:
        change = Change("more memory for KV, KV in fewer bits, or more replicas")
    return change, at_most(1.5, reading.starved, "half as much KV again, half as many again decode"), figures


def _full_slots(reading: Reading, share: float) -> Advice:
    slots = int(reading.get("generator.max_running", 1))
    factor = min(2.0, factor_without(share))
    more = max(slots + 1, round(slots * factor))
    change = Change("more requests decoded together", {"generator.max_running": str(more)})
    basis = "so many more decode at once, each as fast; a bigger batch is slower, so less in truth"
    return change, at_most(factor, reading.starved, basis), _slots(reading)


def _slots(reading: Reading) -> tuple[Figure, ...]:
    used = reading.slots_used
    if used is None:
        return ()
    return (
        Figure("of the generator's slots in use", used, "share", note=f"{reading.replicas.slots} in all"),
    )


def more_in_flight(reading: Reading, factor: float) -> tuple[Change, float]:
    """Return what lets about `factor` times as many rollouts be in flight, and how many it does let."""
    most, bound, depth = (
        int(reading.get("queue.max_running_rollouts", 0)),
        reading.get("queue.bound", 0),
        reading.depth,
    )
    if most and reading.phases.level(0.9) >= 0.9 * most:
        more = max(most + 1, round(factor * most))
        return Change("more rollouts in flight", {"queue.max_running_rollouts": str(more)}), more / most
    if reading.get("concurrency.mode") == "adaptive":
        return Change("wider limits of [concurrency], or concurrency.mode = fixed"), factor
    settings = {"queue.depth": str(depth + 1)}
    if depth + 1 > int(bound):
        settings = {"queue.bound": str(depth + 1)} | (
            {} if int(reading.get("queue.depth", -1)) < 0 else settings
        )
    return Change("let generation run one step further ahead", settings), (depth + 2) / (depth + 1)
