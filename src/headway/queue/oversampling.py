"""Oversampling: more rollouts a group, or more groups, than are needed; what becomes of the rest.

Rollouts. A group settles with the first `target` scored. Members that are late for it leave for a group of
their own. Either it is cancelled, and only its end is awaited (`leaving`), or it goes on and is trained later
like any other; its advantages are among its own, for those of the first group froze.

Groups. Extra groups do not count as ahead. When a batch leaves, as many groups as are in flight beyond what
depth allows, oldest first, are the rest: cancelled, parked, or left to finish for a later batch.

Bias: the first to finish are the short ones. What is kept is shorter than what was started, and telemetry
says by how much (rl.oversampling).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.notes import GroupSplit
from headway.queue import partial, rollouts, staleness
from headway.queue.state import ACTIVE, GroupState, RolloutState

if TYPE_CHECKING:
    from headway.queue.context import Context

REASON = "oversampled"


def split(ctx: Context, group: GroupState, kept: list[RolloutState], late: list[RolloutState]) -> None:
    """Leave a group the rollouts that settle it; the late ones go."""
    ctx.index.shrink(group, kept)
    if not late:
        return
    into = _new_group(ctx, group, late)
    going = [rollout for rollout in late if rollout.pending != "cancelling"]
    if ctx.settings.oversampling.when_met == "cancel" or len(going) < 2:
        leave(ctx, into)
        return
    for rollout in late:
        rollout.group = into.id
    ctx.note(GroupSplit(group.id, into.id, tuple(rollout.id for rollout in late)))
    if ctx.settings.oversampling.when_met == "park":
        _park(ctx, into)


def batch_met(ctx: Context) -> None:
    """A batch leaves for the trainer: deal with the groups that are in flight beyond the depth."""
    rule, queue, state, index = ctx.settings.oversampling, ctx.settings.queue, ctx.state, ctx.index
    if not rule.groups_extra or rule.when_met == "finish":
        return
    ages = [staleness.age(state, r.lineage, r.number) for r in state.replicas.values() if r.usable]
    allowed = max(0, ctx.settings.depth - max(ages, default=0)) * queue.batch_groups
    queued = index.on("queued")
    surplus = min(rule.groups_extra, index.num_admitted - index.num_late + len(queued) - allowed)
    going = [group for group in index.on("running") if not (group.late or group.planned)]
    for group in going[: max(0, surplus)]:
        if rule.when_met == "park":
            _park(ctx, group)
        else:
            leave(ctx, group)
            surplus -= 1
    if rule.when_met == "cancel":
        for group in queued[: max(0, surplus)]:
            _end_unless_usable(ctx, group)


def leave(ctx: Context, group: GroupState) -> None:
    """End a whole group in flight: it counts no more, and only its end is awaited."""
    group.leaving = True
    ctx.index.set_late(group)
    for rollout in group.rollouts:
        if rollout.station in ACTIVE:
            rollouts.cancel(ctx, rollout, REASON, owner="cancelled")


def end(ctx: Context, group: GroupState) -> None:
    """Settle a group that left, once all of it has ended."""
    for rollout in group.rollouts:
        if rollout.station == "lost":
            settle_lost(ctx, rollout, oversampled=True)
        else:
            ctx.settle(rollout, "cancelled", REASON)
    ctx.drop_group(group)


def settle_lost(ctx: Context, rollout: RolloutState, *, oversampled: bool) -> None:
    """Settle a lost member; one that was not needed any more is no failure of the run's."""
    ctx.state.moved.pop(rollout.id, None)
    if oversampled and rollout.owner in ("scheduler", "cancelled"):
        ctx.settle(rollout, "cancelled", REASON)
    else:
        ctx.settle(rollout, rollouts.fate_of_loss(rollout), rollout.pruned or "lost")


def _new_group(ctx: Context, group: GroupState, late: list[RolloutState]) -> GroupState:
    state = ctx.state
    into = GroupState(
        f"{group.id}~late",
        "train",
        -1,
        group.index,
        source=group.source,
        asked_level=group.asked_level,
        stage="running",
        task_id=group.task_id,
        level=group.level,
        replica=group.replica,
        lineage=group.lineage,
        number=group.number,
        rollouts=late,
        late=True,
    )
    for rollout in late:
        state.moved[rollout.id] = into.id
    ctx.open_group(into)
    return into


def _end_unless_usable(ctx: Context, group: GroupState) -> None:
    """End a finished group that the next step could not train on any more."""
    ages = (staleness.oldest(ctx.state, rollout.spans) for rollout in group.rollouts)
    if max(ages, default=0) + 1 > ctx.settings.queue.bound:
        end(ctx, group)


def _park(ctx: Context, group: GroupState) -> None:
    """Take the engine memory of a group that is not needed now."""
    for rollout in group.rollouts:
        partial.park(ctx, group, rollout)
