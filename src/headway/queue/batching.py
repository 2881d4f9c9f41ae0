"""Batching: which groups leave the queue together, and when.

Oldest first. A batch is full at batch_groups, or earlier by the places that ghosts hold, or when nothing
more can come; until then its groups may be handed over in parts (`streaming`). Once the trainer has waited
for batch_wait_s, a share of the groups is enough: time is told by the deadline "batch", groups by their own
events. A whole batch of ghosts is an empty batch: no step is taken, and enough of them in a row end the run
as no_signal. A step that a rollback or a resume lost is taken again with the groups that it had.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from headway.core.commands import Train
from headway.core.notes import BatchReleased, NoSignal, QueueDepth
from headway.queue import acceptance, guard, lost_steps, oversampling, skipped, streaming
from headway.queue.admission import ghosts, groups_a_step
from headway.queue.partial import park_stragglers
from headway.queue.rows import fitting, group_rows, oldest_first
from headway.queue.staleness import age, drop_stale
from headway.queue.stopping import stop

if TYPE_CHECKING:
    from headway.core.events import StepEnded
    from headway.queue.context import Context
    from headway.queue.state import GroupState


_WAIT = "batch"  # deadline after which a share of the groups is enough


def release(ctx: Context) -> None:
    """Hand a batch to the idle trainer when one is ready."""
    state, queue = ctx.state, ctx.settings.queue
    if state.phase != "running" or state.trainer != "idle" or not state.trainer_joined or guard.paused(ctx):
        state.batch_since_s = None
        return
    drop_stale(ctx)
    queued = ctx.index.train["queued"]
    held = ghosts(ctx)
    needed = queue.batch_groups - held
    planned, waits = lost_steps.batch(ctx)
    if waits:
        return
    waited = _waited_enough(ctx, needed)
    dry = state.exhausted and not ctx.index.num_admitted and not state.again
    if not queued and groups_a_step(ctx) <= held:
        _empty_batch(ctx)
        if not dry or state.phase != "running" or state.trainer != "idle":
            return  # else no event would follow
    if planned:
        _release(ctx, planned)
    elif queued and (len(queued) >= needed or _holds_enough(ctx) or dry or waited):
        _release(ctx, list(queued.values()))
    elif dry:
        stop(ctx, "tasks_exhausted", "the task source has no more tasks", failed=False)
    else:
        streaming.hand_over(ctx)


def release_rest(ctx: Context) -> None:
    """Release what waits when tokens limit batches and nothing else is on its way.

    Admission expects small batches then, and may have let in fewer groups than a whole batch needs.
    """
    state, queued = ctx.state, ctx.index.train["queued"]
    if not ctx.settings.queue.batch_tokens or not queued or ctx.index.num_admitted:
        return
    busy = state.trainer != "idle" or not state.trainer_joined or state.restart_due or state.eval is not None
    updating = any(r.pending is not None or not r.usable for r in state.replicas.values())
    if state.phase == "running" and not busy and not updating and not guard.paused(ctx):
        _release(ctx, list(queued.values()))


def _empty_batch(ctx: Context) -> None:
    state, queue = ctx.state, ctx.settings.queue
    reasons = state.filtered_reasons
    state.empty_batches += 1
    ctx.note(NoSignal(state.filtered_groups, state.empty_batches))
    why = acceptance.reasons_in_words(reasons)
    ctx.warn(
        "no_signal",
        f"{state.filtered_groups} groups in a row were dropped ({why}); empty batch {state.empty_batches} of "
        f"at most {queue.max_empty_batches}",
    )
    _begin_window(ctx)
    if guard.batch_empty(ctx):
        state.empty_batches = 0
        return
    if state.empty_batches >= queue.max_empty_batches:
        stop(
            ctx,
            "no_signal",
            f"{state.empty_batches} batches in a row had no group to train on ({why}). "
            f"{acceptance.remedy(reasons)}",
            failed=False,
        )


def _holds_enough(ctx: Context) -> bool:
    """Whether the waiting groups fill a batch by their tokens."""
    limit = ctx.settings.queue.batch_tokens
    return bool(limit) and ctx.index.num_queued_tokens >= limit


def _waited_enough(ctx: Context, needed: int) -> bool:
    """Whether the idle trainer has waited for batch_wait_s and a share of the `needed` groups is there.

    Asked at each event while it waits: the first time sets the deadline.
    """
    state, queue = ctx.state, ctx.settings.queue
    if not queue.batch_wait_s:
        state.batch_since_s = None
        return False
    if state.batch_since_s is None:
        state.batch_since_s = ctx.now
    due_s = state.batch_since_s + queue.batch_wait_s
    if ctx.now < due_s:
        if state.deadlines.get(_WAIT) != due_s:
            ctx.expect(_WAIT, due_s - ctx.now)
        return False
    least = math.ceil(needed * queue.batch_wait_share - 1e-9)
    return len(ctx.index.train["queued"]) >= max(1, least)


def _expected(before: float, num_groups: int) -> float:
    """Return how many groups a batch may be expected to hold, by the newest ones."""
    return (before + num_groups) / 2 if before else float(num_groups)


def _release(ctx: Context, queued: list[GroupState]) -> None:
    state, queue = ctx.state, ctx.settings.queue
    handed = {name: place for place, name in enumerate(dict.fromkeys(row.group for row in state.streamed))}
    queued = oldest_first(state, queued)
    queued.sort(key=lambda group: handed.get(group.id, len(handed)))
    again = lost_steps.is_planned(state, queued[0].planned) and queued[0].planned == state.step + 1
    batch = queued if again else fitting(queue, queued)
    state.groups_per_batch = _expected(state.groups_per_batch, len(batch))
    gathered = streaming.take(ctx)
    rows = [*gathered, *(row for group in batch[len(handed) :] for row in group_rows(ctx, group))]
    trajectory: list[int] = []
    environment: list[int] = []
    tokens: dict[int, int] = {}
    num_masked = 0
    places = iter(rows)
    for group in batch:
        ctx.move(group, "training")
        group.step = state.step + 1
        for rollout in group.rollouts:
            ctx.place(group, rollout, "training")
            masked = next(places).masked
            first = rollout.spans[0] if rollout.spans else None
            trajectory.append(age(state, first.lineage, first.number) if first else 0)
            environment.append(rollout.environment_age)
            for span in rollout.spans:
                if (span.lineage, span.number) in masked:
                    num_masked += span.num_tokens
                    continue
                steps = age(state, span.lineage, span.number)
                tokens[steps] = tokens.get(steps, 0) + span.num_tokens
    left = len(ctx.index.train["queued"])
    ctx.note(
        BatchReleased(
            batch=state.next_batch,
            step=state.step + 1,
            groups=tuple(group.id for group in batch),
            num_rollouts=len(rows),
            num_short_groups=max(0, queue.batch_groups - len(batch)),
            trajectory_staleness=tuple(trajectory),
            token_staleness=tuple(sorted(tokens.items())),
            queued_groups=left,
            environment_staleness=tuple(environment),
            num_masked_tokens=num_masked,
        )
    )
    ctx.note(QueueDepth(ctx.index.num_admitted, left))
    ctx.ask(Train(state.next_batch, state.step + 1, tuple(rows), state.lr_scale, len(gathered)))
    park_stragglers(ctx, "batch")
    oversampling.batch_met(ctx)
    ctx.expect("train", ctx.settings.deadlines.train_s)
    ctx.met(_WAIT)
    state.batch_since_s = None
    state.next_batch += 1
    state.trainer = "training"
    if not again:
        _begin_window(ctx)
    state.stale_groups = 0
    state.empty_batches = 0


def _begin_window(ctx: Context) -> None:
    """Count refills and drops anew."""
    state = ctx.state
    state.filtered_groups, state.filtered_reasons, state.mix.given_back = 0, {}, 0


def step_ended(ctx: Context, event: StepEnded) -> None:
    """The batch is in the weights; it is kept until a checkpoint contains it."""
    ctx.met("train")
    ctx.state.step = event.step
    ctx.state.trainer, ctx.state.part_pending = "idle", False
    skipped.step_ended(ctx, event)
    for group in ctx.index.on("training"):
        ctx.move(group, "trained")
        for rollout in group.rollouts:
            ctx.settle(rollout, "trained")
