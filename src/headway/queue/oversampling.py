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
from headway.queue import choice, lost_steps, partial, rollouts, staleness
from headway.queue.context import LATE
from headway.queue.state import ACTIVE, GroupState, RolloutState

if TYPE_CHECKING:
    from headway.queue.context import Context
    from headway.queue.index import Shelf

REASON = "oversampled"
_REST: tuple[Shelf, ...] = ("running", "signalling", "requested", "queued")  # who goes first


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
    held = lost_steps.age_of_held(state) or 0
    allowed = max(0, ctx.settings.depth - held) * queue.batch_groups
    surplus = max(0, min(rule.groups_extra, index.num_ahead - allowed))
    rest = [group for shelf in _REST for group in index.on(shelf) if not _is_wanted(group)]
    for group in rest[:surplus]:
        if rule.when_met == "park":
            _park(ctx, group)
        elif group.stage == "requested":
            ctx.drop_group(group)
            choice.forgotten(ctx, group)
        elif group.stage == "running" or not _is_usable(ctx, group):
            choice.dropped(ctx, group)
            leave(ctx, group)


def leave(ctx: Context, group: GroupState) -> None:
    """End a whole group: it counts no more, and only its end is awaited, if there is anything to await."""
    if group.stage == "queued":
        end(ctx, group)
        return
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
    if oversampled and rollout.owner in ("scheduler", "cancelled"):
        ctx.settle(rollout, "cancelled", REASON)
    else:
        ctx.settle(rollout, rollouts.fate_of_loss(rollout), rollout.pruned or "lost")


def _new_group(ctx: Context, group: GroupState, late: list[RolloutState]) -> GroupState:
    into = GroupState(
        group.id + LATE,
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
    ctx.open_group(into)
    return into


def _is_wanted(group: GroupState) -> bool:
    """Whether a group is none of the rest: set aside already, or of an earlier life or a lost step."""
    resumes = group.stage == "requested" and bool(group.rollouts)
    return group.late or resumes or bool(group.planned) or "~" in group.id


def _is_usable(ctx: Context, group: GroupState) -> bool:
    """Whether the next step may train on a group that is finished."""
    ages = (staleness.oldest(ctx.state, rollout.spans) for rollout in group.rollouts)
    return max(ages, default=0) + 1 <= ctx.settings.queue.bound


def _park(ctx: Context, group: GroupState) -> None:
    """Take the engine memory of a group that is not needed now."""
    for rollout in group.rollouts:
        partial.park(ctx, group, rollout)
