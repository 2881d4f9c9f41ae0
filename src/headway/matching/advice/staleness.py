"""The staleness limit as the throttle, and what grows too old.

Thresholds: during at least LIMITED of the trainer's waiting as many groups are on their way as the depth
allows, the generator's slots are not full (below ROOM), and rollouts stand in no line (PART of their
time): admitting more would produce more. Discards: at least DISCARDED of the sampled tokens were made for
nothing, about what a bound that fits its lengths loses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.matching.advice.finding import Change, Figure, Finding, at_most, factor_without
from headway.matching.advice.stations import PART, ROOM, STARVED
from headway.matching.advice.when import when
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.matching.advice.reading import Reading

LIMITED = 0.5
DISCARDED = 0.05


def findings(reading: Reading) -> Iterator[Finding]:
    """Yield what the limit costs."""
    yield from _limit(reading)
    yield from _discards(reading)


def _limit(reading: Reading) -> Iterator[Finding]:
    phases, starved, depth = reading.phases, reading.starved, reading.depth
    bound = int(reading.get("queue.bound", 0))
    limited = ratio(phases.total.at_limit_s, phases.total.starved_s)
    used, limits = reading.slots_used, reading.limits
    lines = ratio(
        reading.waits.engine_s + reading.waits.grant_s + reading.waits.score_s, reading.end_to_end_s
    )
    if not depth or starved < STARVED or limited is None or limited < LIMITED or limits is None:
        return  # without depth the run is synchronous, and told so
    if (used is not None and used >= ROOM) or (lines or 0.0) >= PART:
        return  # further rollouts would stand in line
    evidence = [
        Figure(
            "of the trainer's waiting with as many groups on their way as allowed",
            limited,
            "share",
            note=f"{limits.most} groups",
        ),
    ]
    if used is not None:
        evidence.append(
            Figure("of the generator's slots in use", used, "share", note=f"{reading.replicas.slots} in all")
        )
    oldest = reading.summary["rl.staleness.token"]["mean"]
    if oldest is not None:
        evidence.append(
            Figure("staleness of tokens, mean", oldest, "steps", "rl.staleness.token", note=f"bound {bound}")
        )
    if depth < bound:
        change = Change("let generation run one step further ahead", {"queue.depth": str(depth + 1)})
    elif int(reading.get("queue.depth", -1)) >= 0:
        change = Change(
            "one step more of staleness", {"queue.bound": str(bound + 1), "queue.depth": str(depth + 1)}
        )
    else:
        change = Change("one step more of staleness", {"queue.bound": str(bound + 1)})
    factor = (depth + 2) / (depth + 1)
    numbers = sorted(phases.steps)
    holds = [
        phases.steps[n].at_limit_s >= LIMITED * phases.steps[n].starved_s > 0.05 * phases.steps[n].total_s
        for n in numbers
    ]
    yield Finding(
        code="staleness_limit",
        title=f"{'queue.depth' if depth < bound else 'The staleness limit'} holds generation back",
        stake=starved * limited,
        evidence=tuple(evidence),
        when=when(numbers, holds),
        change=change,
        gain=at_most(
            factor,
            starved * limited,  # the rest of the wait has another cause
            f"{factor:.2f} times as many groups on their way (Little's law)",
        ),
        caution=f"Trained tokens are up to {depth + 1} steps old.",
    )


def _discards(reading: Reading) -> Iterator[Finding]:
    summary = reading.summary
    fates = summary["conservation.tokens_by_fate"]
    whole = sum(fates.values()) - fates.get("evaluated", 0)
    lost = summary["rl.discard.stale.tokens"] + _voided(reading)
    share = ratio(lost, whole)
    if share is None or share < DISCARDED:
        return
    bound = int(reading.get("queue.bound", 0))
    yield Finding(
        code="stale_discards",
        title="Rollouts grow too old, and are thrown away",
        stake=share,
        evidence=(
            Figure(
                "of the sampled tokens, thrown away for their age", share, "share", "rl.discard.stale.tokens"
            ),
            Figure("rollouts", summary["rl.discard.stale.rollouts"], "count", "rl.discard.stale.rollouts"),
            Figure("rollout's tokens, p99 against p50", _tail(summary), "ratio", "rl.rollout.tokens"),
        ),
        change=Change(
            "a wider bound at the same depth",
            {"queue.bound": str(bound + 1), "queue.depth": str(reading.depth)},
        ),
        gain=at_most(factor_without(share), max(reading.starved, 0.0), "their tokens trained"),
        caution=f"Trained tokens are up to {bound + 1} steps old.",
    )


def _voided(reading: Reading) -> int:
    """Groups are voided for a stale member, or for a lost one where the run voids these."""
    voids = reading.get("queue.on_failed_rollout", "shrink") == "void"
    return 0 if voids else int(reading.summary["rl.discard.voided.tokens"])


def _tail(summary: dict[str, dict[str, float | None]]) -> float:
    tail = summary["rl.rollout.tokens"]
    return (ratio(tail["p99"] or 0.0, tail["p50"] or 0.0)) or 0.0
