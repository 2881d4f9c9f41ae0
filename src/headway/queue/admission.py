"""Admission: how far generation may run ahead, counted in groups.

A group admitted now trains, at the latest, in step `step + 1 + (a step in progress) + (groups ahead of it) //
batch`. It starts from the version that its replica holds, so its staleness in that step is known before it
starts; it is admitted when that is within the depth. Groups that are filtered, voided or stale leave the
count, and their places are filled again; groups without signal beyond the refill budget keep their place as
ghosts until the next batch, so that a step never asks for more than the budget of extra groups. Extra groups
of oversampling do not count as ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import RequestTask, StartRollout
from headway.core.protocols import MAIN_POLICY
from headway.queue import choice, concurrency, lost_steps, outage, sandboxes
from headway.queue.choice import Choice
from headway.queue.context import Context, origin, rollout_seed
from headway.queue.state import Again, GroupState, RolloutState

if TYPE_CHECKING:
    from headway.core.records import Purpose


def ghosts(ctx: Context) -> int:
    """Return how many places are held by groups without signal beyond the refill budget."""
    queue = ctx.settings.queue
    return max(0, ctx.state.filtered_groups - queue.max_refill_batches * queue.batch_groups)


def admit(ctx: Context) -> None:
    """Ask for tasks while a new group would train within the depth."""
    state, queue = ctx.state, ctx.settings.queue
    dry = (state.exhausted and not state.again) or ctx.settings.eval.only
    if state.phase != "running" or state.restart_due or dry or not state.replicas or outage.is_on(ctx):
        return
    index = ctx.index
    ahead = ghosts(ctx) + index.num_ahead + lost_steps.places(ctx) - ctx.settings.oversampling.groups_extra
    size = choice.largest_group(ctx)
    running = index.num_running + len(index.train["requested"]) * size
    busy = 1 if index.train["training"] else 0
    held = lost_steps.age_of_held(state)
    if held is None:
        return
    applied = state.step - held
    last_step = ctx.settings.stop.steps
    room = concurrency.room_for_new(ctx)
    while True:
        step = (
            state.step + busy + max(0, ahead) // groups_a_step(ctx)
        )  # the version that this group's step trains from
        if state.again and lost_steps.is_planned(state, state.again[0].planned):
            step = state.again[0].planned - 1
        if step - applied > ctx.settings.depth or (last_step and step >= last_step):
            return
        if room is not None and room < size and (running or index.busy):
            return
        if sandboxes.refusing(ctx) and running:
            return
        if queue.max_running_rollouts and running + size > queue.max_running_rollouts and running:
            return
        ahead += 1
        if state.again:
            again = state.again.pop(0)
            request_group(ctx, "train", Choice(again.source, again.asked_level, again.index), again)
            ahead -= lost_steps.is_planned(state, again.planned)  # its batch was counted whole
        elif state.exhausted:
            return
        else:
            request_group(ctx, "train", choice.choose(ctx))
        running += size
        room = None if room is None else room - size


def request_group(ctx: Context, purpose: Purpose, what: Choice, again: Again | None = None) -> None:
    """Open a group and ask for its task.

    The numbers of new train groups, which their tokens are drawn by, count neither evaluations nor groups
    that take a lost one's task again: a broken run gives the numbers that the unbroken one gives.
    """
    state = ctx.state
    if again is not None:
        state.num_again += 1
        name = f"{again.group}~{state.num_again}"
    elif purpose == "train":
        name = f"t{state.next_group:06d}"
        state.next_group += 1
    else:
        name = f"e{state.next_eval_group:06d}"
        state.next_eval_group += 1
    group = GroupState(
        name,
        purpose,
        state.next_request,
        what.index,
        source=what.source,
        asked_level=what.level,
        planned=again.planned if again else 0,
    )
    ctx.open_group(group)
    ask_task(ctx, group)


def ask_task(ctx: Context, group: GroupState) -> None:
    """Ask for the group's task, again after a resume."""
    ctx.move(group, "requested")
    group.request = ctx.state.next_request
    ctx.state.next_request += 1
    ctx.state.requests[group.request] = group.id
    split = ctx.settings.eval.split if group.purpose == "eval" else "train"
    ctx.ask(RequestTask(group.request, group.source, split, group.index, group.asked_level))
    ctx.expect(f"task:{group.id}", ctx.settings.deadlines.task_s)


def start_group(ctx: Context, group: GroupState, task_id: str, level: int) -> None:
    """The task is here: start its rollouts on the replica with the least to do.

    After a resume the group has rollouts already; `resuming` restarts those that did not finish.
    """
    state = ctx.state
    ctx.met(f"task:{group.id}")
    state.requests.pop(group.request, None)
    group.task_id, group.level = task_id, level
    group.replica = least_loaded(ctx)
    replica = state.replicas[group.replica]
    group.lineage, group.number = replica.lineage, replica.number
    if group.rollouts:
        ctx.move(group, "running")
        return
    size = ctx.settings.eval.rollouts_per_task
    if group.purpose == "train":
        group.target = choice.group_size(ctx, group)
        size = group.target + ctx.settings.oversampling.rollouts_extra
    rollouts = [RolloutState(f"{group.id}.{index}", group.id, 0, ctx.now) for index in range(size)]
    ctx.index.shrink(group, rollouts)
    ctx.move(group, "running")
    for rollout in rollouts:
        start_attempt(ctx, group, rollout)


def least_loaded(ctx: Context) -> str:
    """Return the replica with the fewest rollouts, of those that are usable where there are any."""
    replicas = ctx.state.replicas
    usable = [name for name, replica in replicas.items() if replica.usable]
    return min(usable or replicas, key=lambda name: (ctx.index.load.get(name, 0), name))


def start_attempt(ctx: Context, group: GroupState, rollout: RolloutState, partial: str = "") -> None:
    """Start an attempt at a rollout, or go on from where an earlier life parked it.

    Without a replica that can take it, it waits with the parked ones.
    """
    rollout.pending, rollout.started_s, rollout.partial = "", ctx.now, partial
    rollout.num_turns, rollout.num_calls, rollout.last_sign = 0, 0, "its start"
    rollout.waited_s = 0.0
    rollout.pruned = rollout.audited = ""
    if not partial:
        rollout.num_tokens, rollout.spans, rollout.environment_age = 0, [], 0
        rollout.num_unfinished = 0
        rollout.resumed_at = rollout.newest_turn = rollout.shaped_by = None
    replica = ctx.state.replicas[group.replica]
    rollout.unstarted = not replica.usable
    if rollout.unstarted:
        ctx.place(group, rollout, "parked")
        rollout.parked_s, ctx.state.resume_due = ctx.now, True
        return
    ctx.place(group, rollout, "running")
    if partial:
        rollout.resumed_at = (replica.lineage, replica.number)
    train = group.purpose == "train"
    ctx.ask(
        StartRollout(
            rollout=rollout.id,
            attempt=rollout.attempt,
            group=group.id,
            task_id=group.task_id,
            purpose=group.purpose,
            policy=MAIN_POLICY,
            seed=rollout_seed(ctx.settings.seed, origin(rollout.id), rollout.draws),
            temperature=ctx.settings.temperature if train else ctx.settings.eval.temperature,
            replica=group.replica,
            priority=_priority(ctx, group),
            partial=partial,
        )
    )
    ctx.expect(f"rollout:{rollout.id}", ctx.settings.rollout_timeout_s)


def groups_a_step(ctx: Context) -> int:
    """Return how many groups a step may be expected to take; fewer than asked for where tokens limit it."""
    queue, seen = ctx.settings.queue, ctx.state.groups_per_batch
    if not queue.batch_tokens or not seen:
        return queue.batch_groups
    return max(1, min(queue.batch_groups, round(seen)))


def _priority(ctx: Context, group: GroupState) -> int:
    """Older groups first: a later turn of one must not wait behind the first turns of all that came since.

    Evaluations take the place of a group that is admitted now.
    """
    if group.purpose == "eval":
        return ctx.state.next_group
    return int(origin(group.id)[1:])
