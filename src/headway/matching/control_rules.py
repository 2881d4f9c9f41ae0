"""The controller's rules: what one cycle says should be turned, in which direction, and why. Pure.

Each rule yields turns in the order in which they are worth trying; the controller takes the first that it has
not found useless of late. Little's law is behind all of them: rollouts finished a second = rollouts in flight
/ seconds that one takes. Where engines have room, production grows with what is in flight; where they are
full it does not, and whatever is thrown away costs production.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.config.control import Lever

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.matching.control_levers import Levers
    from headway.matching.control_signals import Cycle, Signals

_ROOM, _FULL = 0.2, 0.3  # share of the answers' time in line: below it engines have room, above it none
_NEAR = 0.5  # share of the wait with most of a batch there, from which the rest is not worth waiting for
_MOST = 0.5  # growth in one turn
_TAIL = 3.0  # length quantile by median, from which pruning is worth it
_EXTRAS: tuple[Lever, ...] = ("groups_extra", "rollouts_extra")
_SPARE = 0.8  # share of max_waste below which more may be wasted
_STALE = 0.05  # share of the tokens that are too old, from which less should run


@dataclass(frozen=True, slots=True)
class Turn:
    """A change that a rule wants."""

    lever: Lever
    value: float
    reason: str
    must_gain: float | None = None  # in rollouts trained a second, as a share; else it is taken back
    is_sure: bool = False  # it must be proven; otherwise it is taken back only where it is refuted
    bars: bool = False  # more of it is not tried sooner, however long the trainer waits, and then by one


def is_full(cycle: Cycle, levers: Levers) -> bool:
    """Say whether the engines can take no more."""
    return cycle.waiting_share > _FULL or cycle.preempted > levers.settings.preempted


def has_room(cycle: Cycle, levers: Levers) -> bool:
    """Say whether the engines would take more."""
    settings = levers.settings
    calm = cycle.waiting_share < _ROOM and cycle.preempted <= settings.preempted / 2
    return calm and cycle.kv_used < settings.kv_high


def overfull(cycle: Cycle, levers: Levers) -> Iterator[Turn]:
    """Engines that preempt, or whose line makes samples too old: fewer at once, by a factor."""
    settings = levers.settings
    if cycle.preempted > settings.preempted:
        why = f"engines preempted {cycle.preempted:.2f} times an answer"
    elif cycle.stale > _STALE and cycle.waiting_share > _FULL:
        why = f"{cycle.stale:.0%} of the tokens became too old, and answers stood in line for "
        why += f"{cycle.waiting_share:.0%} of their time"
    else:
        return
    if not levers.may("running"):
        return
    limit, in_flight = levers.value("running"), cycle.in_flight or float(cycle.in_flight_now)
    base = min(limit, in_flight) if limit else in_flight
    share = 0.8
    if cycle.at_engine > 0 and cycle.kv_used > 0:
        share = cycle.resident / cycle.at_engine * settings.kv_high / cycle.kv_used
    value = _whole_groups(base * min(0.9, max(0.75, share)), levers)
    if not limit or value < limit:
        yield Turn("running", value, f"{why}: {_rollouts(limit)} at once -> {value:g}", must_gain=0.0)


def give_up_waste(cycle: Cycle, levers: Levers, waste: float) -> Iterator[Turn]:
    """Oversampling that throws too much away, or does so while engines are full: less of it at once.

    Args:
        cycle: the newest one.
        levers: to be turned.
        waste: share thrown away since the last change; max_waste while that is too short.
    """
    settings = levers.settings
    if waste > settings.max_waste:
        why = f"oversampling threw {waste:.0%} of the tokens away, more than control.max_waste"
    elif is_full(cycle, levers) and cycle.waste > settings.min_gain:
        why = f"engines are full, and oversampling threw {cycle.waste:.0%} of the tokens away"
    else:
        return
    for lever in _EXTRAS:
        value = levers.value(lever)
        if value and levers.may(lever):
            yield Turn(lever, value - max(1, value // 4), why, bars=waste > settings.max_waste)


def make_more(cycle: Cycle, levers: Levers, signals: Signals, waste: float) -> Iterator[Turn]:
    """The trainer waits and engines have room: more in flight, or less waiting for the slowest."""
    waited = f"the trainer waited {cycle.wait:.0%} of the cycle"
    lack = cycle.wait / max(0.01, 1.0 - cycle.wait)  # by which production would have to grow
    gain = levers.settings.min_gain
    limit = levers.value("running")
    if limit and cycle.in_flight_now + levers.group_size > limit and levers.may("running"):
        grown = max(limit + levers.group_size, limit * (1.0 + min(lack, 0.15)))
        value = min(levers.high("running"), _whole_groups(grown, levers))
        free = value >= levers.most_in_flight
        text = "no limit" if free else f"{value:g}"
        if value > limit:
            yield Turn("running", 0 if free else value, f"{waited}, engines have room: {limit:g} -> {text}")
        return
    depth = levers.value("depth")
    if depth < levers.high("depth") and levers.may("depth"):
        why = f"{waited}, engines have room, and depth held production"
        yield Turn("depth", depth + 1, why, gain, is_sure=True)
    if waste < _SPARE * levers.settings.max_waste:
        extra = levers.value("rollouts_extra")
        most = min(levers.high("rollouts_extra"), levers.within_waste("rollouts_extra"))
        if extra < most and cycle.slow_ratio > 1.0 + gain and levers.may("rollouts_extra"):
            why = f"{waited}; a group's slowest member took {cycle.slow_ratio:.1f} times the second slowest"
            more = 1 if "rollouts_extra" in levers.barred else round(lack * levers.now.queue.group_size / 2)
            value = min(most, extra + max(1, more))
            yield Turn("rollouts_extra", value, why, gain)
        extra = levers.value("groups_extra")
        most = min(levers.high("groups_extra"), levers.within_waste("groups_extra"))
        if extra < most and levers.may("groups_extra"):
            more = 1 if "groups_extra" in levers.barred else round(min(_MOST, lack) * cycle.num_open)
            value = min(most, extra + max(1, more))
            why = f"{waited}, engines have room, and depth is at its bound"
            members = levers.value("rollouts_extra") > 0  # they have what there was to gain from the slowest
            yield Turn("groups_extra", value, why, gain, is_sure=members)
    # Deeper, other groups are there in their place; at bound 0 what is left behind is too old for the next.
    waits = depth <= 1 <= levers.now.queue.bound and not levers.value("batch_wait")
    if waits and cycle.near_share >= _NEAR and levers.may("batch_wait"):
        share = levers.now.queue.batch_wait_share
        why = f"{waited}, {cycle.near_share:.0%} of that with {share:.0%} of the batch there"
        yield Turn("batch_wait", max(0.001, float(f"{cycle.wait_s / 4:.2g}")), why, gain)
    if levers.may("pruning") and not levers.value("pruning"):
        yield from _prune(waited, levers, signals)


def take_back(cycle: Cycle, levers: Levers, least_queued: int) -> Iterator[Turn]:
    """The trainer has enough: first what biases, then what wastes, then what makes samples older.

    Args:
        cycle: the newest one.
        levers: to be turned.
        least_queued: groups that every calm cycle left in the queue: so many are not needed.
    """
    calm = f"the trainer hardly waits, and {least_queued} groups were left over each time"
    before = levers.began.pruning.max_tokens
    if levers.value("pruning") != before and levers.may("pruning"):
        yield Turn("pruning", before, "the trainer hardly waits")
    extra = levers.value("groups_extra")
    if extra and least_queued and levers.may("groups_extra"):
        yield Turn("groups_extra", max(0, extra - least_queued), calm)
    extra, batch = levers.value("rollouts_extra"), levers.now.queue.batch_groups
    if extra and 2 * least_queued >= batch and levers.may("rollouts_extra"):
        yield Turn("rollouts_extra", extra - 1, calm)
    if levers.value("batch_wait") and levers.may("batch_wait"):
        yield Turn("batch_wait", 0.0, "the trainer hardly waits")
    depth = levers.value("depth")
    if depth > levers.low("depth") and least_queued >= batch and levers.may("depth"):
        yield Turn("depth", depth - 1, f"{calm}: fresher samples cost nothing")


def _prune(waited: str, levers: Levers, signals: Signals) -> Iterator[Turn]:
    lengths = sorted(signals.lengths)
    if len(lengths) < 100:
        return
    quantile = levers.settings.prune_quantile
    value = lengths[min(len(lengths) - 1, math.ceil(quantile * len(lengths)) - 1)]
    median = lengths[len(lengths) // 2]
    if value >= _TAIL * max(1, median):
        why = (
            f"{waited}; {1 - quantile:.2%} of the rollouts are {value / max(1, median):.1f} times as long as "
        )
        why += "the median"
        yield Turn("pruning", value, why, levers.settings.min_gain)


def _whole_groups(value: float, levers: Levers) -> int:
    """Return so many rollouts, as whole groups, within the bounds of what may run."""
    size = levers.group_size
    groups = max(1, int(value + 1e-9) // size)
    return int(min(levers.high("running"), max(levers.low("running"), groups * size)))


def _rollouts(limit: float) -> str:
    return f"{limit:g}" if limit else "any number"
