"""Partial rollouts: stragglers are set aside and go on later, and so does who lost their engine.

A parked rollout holds no engine memory; its coroutine and its sandbox live on. A group that was parked once
is late: it holds no place ahead of training any more, so a new group is admitted in its stead. Parked
rollouts go on, oldest first, once a replica holds newer weights. A rollout whose replica died parks itself
and goes on from its tokens on another one, or on the same one after its restart.

Invariant: a parked rollout ends as any other does; tokens that have grown too old meanwhile meet the same
staleness rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headway.core.commands import Park, Resume
from headway.core.records import merge_spans
from headway.core.settings import setting
from headway.queue import concurrency, rollouts, staleness
from headway.queue.admission import least_loaded, start_attempt

if TYPE_CHECKING:
    from headway.core.events import RolloutParked, RolloutResumed
    from headway.queue.context import Context
    from headway.queue.state import GroupState, RolloutState

_MAX_LOSSES = 5  # engines that a rollout may lose in one answer before it counts as failed


@dataclass(frozen=True, slots=True)
class PartialSettings:
    """Section [partial]: rollouts that are interrupted and go on later."""

    park: Literal["never", "batch", "update"] = setting(
        "never",
        "When stragglers are set aside: when a batch is full, at a weight update, or never. Their engine "
        "memory is freed; conversation and sandbox are kept.",
    )
    after_steps: int = setting(
        1,
        "A running rollout is a straggler once it began, or went on, so many versions before the newest.",
        ge=0,
    )
    max_late_batches: int = setting(
        4, "Groups set aside at once, in batches; beyond that nothing more is parked.", ge=1
    )
    train: Literal["all", "newest"] = setting(
        "all",
        "Which tokens of a resumed rollout are trained: all within the staleness bound, or only those since "
        "its last resumption.",
    )


def park_stragglers(ctx: Context, moment: Literal["batch", "update"]) -> None:
    """A batch is full or new weights are on their way: set aside who has been running for long."""
    rule, state = ctx.settings.partial, ctx.state
    if rule.park != moment or state.phase != "running":
        return
    limit = rule.max_late_batches * ctx.settings.queue.batch_groups
    newest = max(state.step, state.published)
    for group in ctx.index.on("running"):
        if not group.late and ctx.index.num_late >= limit:
            continue
        for rollout in group.rollouts:
            began = rollout.resumed_at or (group.lineage, group.number)
            if staleness.age(state, *began) + newest - state.step >= rule.after_steps:
                park(ctx, group, rollout)


def park(ctx: Context, group: GroupState, rollout: RolloutState) -> None:
    """Ask for a running rollout to be set aside."""
    if rollout.station != "running" or rollout.pending:
        return
    rollout.pending = "parking"
    if not group.late:
        ctx.index.set_late(group)
    ctx.ask(Park(rollout.id, rollout.attempt))
    ctx.expect(f"park:{rollout.id}", ctx.settings.deadlines.cancel_s)


def parked(ctx: Context, group: GroupState, rollout: RolloutState, event: RolloutParked) -> None:
    """A rollout stands still, asked or because its engine is gone."""
    rollout.spans = merge_spans(list(event.spans))
    rollout.num_tokens = sum(span.num_tokens for span in rollout.spans)
    rollout.partial, rollout.num_unfinished = event.payload, event.num_unfinished_tokens
    if rollout.pending == "cancelling":
        return
    ctx.met(f"park:{rollout.id}")
    ctx.met(f"rollout:{rollout.id}")
    set_aside(ctx, group, rollout)
    if event.cause == "engine_lost":
        ctx.state.resume_due = True
        rollout.num_losses += 1
        if rollout.num_losses > _MAX_LOSSES:
            rollouts.cancel(ctx, rollout, "it loses every engine that it asks", owner="infrastructure")


def set_aside(ctx: Context, group: GroupState, rollout: RolloutState) -> None:
    """Put a rollout where it waits for a replica."""
    ctx.place(group, rollout, "parked")
    rollout.pending, rollout.parked_s = "", ctx.now


def resume(ctx: Context) -> None:
    """Let parked rollouts go on, oldest first, as far as replicas can take them."""
    state = ctx.state
    stalled = _stalled(ctx)
    if not (state.resume_due or stalled) or state.phase not in ("running", "stopping"):
        return
    if not any(replica.usable for replica in state.replicas.values()):
        return
    state.resume_due = False
    limit = ctx.settings.queue.max_running_rollouts
    waiting = [rollout for rollout in ctx.index.parked.values() if not rollout.pending]
    waiting.sort(key=lambda rollout: (rollout.started_s, rollout.id))
    room = concurrency.room_for_parked(ctx) if state.phase == "running" else None
    if room is not None:  # those that are on their way back take some of it; the next measurement asks again
        room -= len(ctx.index.parked) - len(waiting)
        del waiting[max(int(stalled), room) :]
    for rollout in waiting:
        found = ctx.find(rollout.id)
        assert found is not None
        group = found[0]
        if limit and ctx.index.num_running >= limit and group.purpose == "train":
            state.resume_due = True
            return
        _go_on(ctx, group, rollout)


def _stalled(ctx: Context) -> bool:
    """Whether nothing runs and no newer weights are on their way: then nothing else would wake the parked."""
    state = ctx.state
    if not ctx.index.parked or ctx.index.busy or state.trainer != "idle":
        return False
    return all(replica.pending is None and not replica.down for replica in state.replicas.values())


def _go_on(ctx: Context, group: GroupState, rollout: RolloutState) -> None:
    asked = staleness.verdict(ctx, rollout) if group.purpose == "train" else ""
    if asked:
        rollouts.give_up(ctx, group, rollout, asked)
        return
    replica = ctx.state.replicas.get(group.replica)
    if replica is None or not replica.usable:
        ctx.index.reassign(group, least_loaded(ctx))
        replica = ctx.state.replicas[group.replica]
    if rollout.unstarted:
        start_attempt(ctx, group, rollout, rollout.partial)
        return
    rollout.pending, rollout.resumed_at = "resuming", (replica.lineage, replica.number)
    ctx.ask(Resume(rollout.id, rollout.attempt, group.replica))
    ctx.expect(f"resume:{rollout.id}", ctx.settings.deadlines.cancel_s)


def resumed(ctx: Context, group: GroupState, rollout: RolloutState, event: RolloutResumed) -> None:
    """A parked rollout decodes again."""
    if rollout.pending != "resuming":
        return
    ctx.met(f"resume:{rollout.id}")
    rollout.pending, rollout.partial = "", ""
    rollout.started_s += ctx.now - rollout.parked_s  # its total limit stood still
    ctx.place(group, rollout, "running")
    rollout.last_sign = f"its resumption on {event.replica}"
    ctx.expect(f"rollout:{rollout.id}", ctx.settings.rollout_timeout_s)
