"""Stragglers: the trainer waits for the last few rollouts of a batch while most slots stand empty.

Threshold: while the trainer waits, at most EMPTY of the rollouts that are usually in flight are; and the
rollout that ends a wait took CLOSER times the mean or more. A batch of answers whose lengths spread by
half (lognormal, sigma 0.5) has its last one at 2.2 times the mean of 16 and fills its slots meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.matching.advice.finding import Change, Figure, Finding, Gain, at_most
from headway.matching.advice.stations import STARVED
from headway.matching.advice.when import when

if TYPE_CHECKING:
    from headway.matching.advice.reading import Reading

EMPTY = 0.6
CLOSER = 1.5
MIN_WAITS = 3  # that ended with a batch: fewer are chance


def findings(reading: Reading) -> Iterator[Finding]:
    """Yield the finding, if it holds."""
    starved, phases = reading.starved, reading.phases
    usual, waiting = phases.level(0.95), phases.total.mean_running("wait")
    num = sum(bucket.num_rollouts for bucket in reading.buckets.values())
    if starved < STARVED or not usual or waiting is None or reading.num_closers < MIN_WAITS or not num:
        return
    full = waiting / usual
    closer = reading.closers_s / reading.num_closers / (reading.end_to_end_s / num)
    if full > EMPTY or closer < CLOSER:
        return
    straggler = reading.summary["rl.group.straggler_ratio"]["mean"]
    evidence = [
        Figure(
            "rollouts in flight while the trainer waits",
            full,
            "share",
            note=f"{waiting:,.0f} of {usual:,.0f}, the 95th percentile",
        ),
        Figure(
            "the rollout that ends a wait, against the mean",
            closer,
            "ratio",
            note=f"{reading.num_closers} waits",
        ),
    ]
    if straggler is not None:
        evidence.append(
            Figure("a group's slowest against its mean", straggler, "ratio", "rl.group.straggler_ratio")
        )
    numbers = sorted(set(phases.steps) & {record.step for record in reading.records})
    holds = [
        phases.steps[n].starved_s >= STARVED * phases.steps[n].total_s
        and (phases.steps[n].mean_running("wait") or 0.0) <= EMPTY * usual
        for n in numbers
    ]
    change, caution = _change(reading)
    yield Finding(
        code="stragglers",
        title="Stragglers: batches wait for their last rollouts",
        stake=starved * (1.0 - full),
        evidence=tuple(evidence),
        when=when(numbers, holds),
        change=change,
        gain=_gain(starved, full),
        caution=caution,
    )


def _gain(starved: float, full: float) -> Gain:
    """The work that is left when waiting would take `full` of the time with all slots in use."""
    factor = 1.0 / (1.0 - starved * (1.0 - full))
    return at_most(factor, starved, "the waiting's work done with as many in flight as usual")


def _change(reading: Reading) -> tuple[Change, str]:
    if int(reading.get("queue.bound", 0)) and reading.get("partial.park", "never") == "never":
        change = Change(
            "set stragglers aside when a batch is full, and go on with them later",
            {"partial.park": '"batch"'},
        )
        return (
            change,
            "Tokens of a resumed rollout are of several versions, and its context is computed anew.",
        )
    extra = int(reading.get("oversampling.groups_extra", 0))
    batch = max(1, reading.batch_rollouts // max(1, int(reading.get("queue.group_size", 1))))
    if not extra:
        more = max(1, round(batch / 4))
        change = Change(
            "start more groups than a batch needs, and take the first",
            {"oversampling.groups_extra": str(more)},
        )
        return (
            change,
            "Short rollouts are trained more often than long ones; `headway report` tells by how much.",
        )
    return Change(
        "cut the longest short: pruning.max_tokens, sandbox.wall_s, environment.rollout_timeout_s"
    ), ""
