"""Resuming: a new life of the run, from a checkpoint and the journal.

Finished rollouts are kept: what the lost steps trained goes back to the queue, as does what was carried.
Unfinished rollouts of groups that were in flight start again; their finished siblings stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.notes import RolloutRevived
from headway.queue import guard, oversampling, rollouts, streaming
from headway.queue.admission import ask_task, start_attempt
from headway.queue.lost_steps import age, is_lost, plan, take_again
from headway.queue.recovery import requeue
from headway.queue.state import ACTIVE, OutageState, RefusalState

if TYPE_CHECKING:
    from headway.core.events import RunResumed
    from headway.queue.context import Context
    from headway.queue.state import GroupState


def resumed(ctx: Context, event: RunResumed) -> None:
    """Rebuild the state around the checkpoint's step."""
    state = ctx.state
    streaming.discard(ctx)
    plan(ctx, event.step)
    while len(state.forks) < event.lineage:
        state.forks.append(event.step)
    state.lineage, state.step = event.lineage, event.step
    state.saved_steps = [
        step
        for step in state.saved_steps
        if step <= event.step and (event.saved is None or step in event.saved)
    ]
    state.saving_step = -1
    state.published, state.manifest = (-1 if event.step else 0), ""
    state.phase, state.outcome, state.message, state.failed = "starting", "", "", False
    state.spent_wall_s, state.life_began_s = event.spent_wall_s, ctx.now
    state.workers, state.trainer_joined, state.trainer = [], False, "idle"
    state.worker_restarts = {}
    state.replicas, state.sandboxes, state.requests = {}, {}, {}
    state.refusals, state.outage = RefusalState(), OutageState()
    state.eval, state.eval_wanted = None, -1
    state.evaluated = state.evaluated if state.evaluated <= event.step else -1
    state.restart_due = True
    state.empty_batches = state.failed_groups = 0
    state.deadlines.clear()
    state.wake_at_s = None
    for group in list(state.groups.values()):
        if group.purpose == "eval":
            for rollout in group.rollouts:
                ctx.settle(rollout, "stopped", "the evaluation was lost")
            ctx.drop_group(group)
        elif group.stage == "trained" and group.step <= event.step:
            ctx.drop_group(group)
        elif group.leaving:
            oversampling.end(ctx, group)
        else:
            _back(ctx, group)
            lost = (
                is_lost(state, group) and age(state, group.lineage, group.number) > ctx.settings.queue.bound
            )
            if group.dormant and (lost or not group.rollouts):
                take_again(ctx, group)
    guard.taken_back(ctx, event.step)
    ctx.index.rebuild(state)


def _back(ctx: Context, group: GroupState) -> None:
    """Undo a settlement that did not last, and put complete groups back into the queue."""
    if group.stage in ("queued", "training", "trained"):
        requeue(ctx, group)
    else:
        if group.carried:
            for rollout in group.rollouts:
                ctx.note(RolloutRevived(rollout.id, group.id))
            group.carried = False
        ctx.move(group, group.stage, dormant=True)
        for rollout in group.rollouts:
            if rollout.station in ACTIVE:  # nothing of it runs any more
                ctx.place(group, rollout, "lost")
                rollout.owner, rollout.pending = "scheduler", ""


def restart(ctx: Context) -> None:
    """Once every replica holds the checkpoint's weights or newer, ask again for tasks of groups in flight.

    Nothing new is admitted before, so that every group there is from an earlier life.
    """
    state = ctx.state
    if not state.restart_due or state.phase != "running":
        return
    fork = state.forks[state.lineage - 1]
    if any(r.lineage != state.lineage or r.number < fork for r in state.replicas.values()):
        return
    state.restart_due = False
    for group in ctx.index.on("dormant"):
        ask_task(ctx, group)


def restart_unfinished(ctx: Context, group: GroupState) -> None:
    """The task of a group from an earlier life is here: go on where each rollout stood."""
    num_scored = sum(rollout.station == "scored" for rollout in group.rollouts)
    met = 0 < group.target <= num_scored
    for rollout in group.rollouts:
        if met and rollout.station != "scored":  # it has what it needs
            if rollout.station != "lost":
                rollout.owner, rollout.pending = "cancelled", ""
                ctx.place(group, rollout, "lost")
            continue
        if rollout.station == "scored" or (rollout.station == "lost" and rollout.owner != "scheduler"):
            continue
        rollout.pending, rollout.owner = "", ""
        if rollout.station == "scoring":
            rollout.score_tries = rollout.score_failures = 0
            rollouts.score(ctx, group, rollout)
        else:
            rollout.attempt += 1
            start_attempt(ctx, group, rollout, partial=rollout.partial)
