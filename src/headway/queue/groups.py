"""A group from its last score to the queue: settlement, signal, acceptance.

Advantages freeze when the group settles. A lost member leaves the group (shrink) or voids it (void); it is
never counted as reward 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import Signal
from headway.core.notes import GroupSettled, Refilled
from headway.queue import acceptance, choice, outage, oversampling, pruning
from headway.queue.rollouts import fate_of_loss
from headway.queue.staleness import judge_queued
from headway.queue.state import CARRIED, GroupState

if TYPE_CHECKING:
    from headway.core.events import GroupSignal
    from headway.queue.context import Context


def settle_complete(ctx: Context) -> None:
    """Settle every running group whose members are all scored or lost.

    A carried group whose members were cancelled is not complete: they start again after the resume.
    """
    state = ctx.state
    kept = state.restart_due or (state.phase == "stopping" and state.outcome in CARRIED)
    for group in ctx.index.done():
        if group.purpose == "eval":
            _settle_eval(ctx, group)
        elif group.leaving:
            oversampling.end(ctx, group)
        elif not kept:
            _settle_train(ctx, group)
    if state.phase == "running" and not kept:
        for group in sorted(ctx.index.met.values(), key=lambda group: group.id):
            _settle_train(ctx, group)


def _settle_eval(ctx: Context, group: GroupState) -> None:
    evaluation = ctx.state.eval
    scored = [r for r in group.rollouts if r.station == "scored"]
    if evaluation is not None and scored:
        solved = sum(r.reward >= ctx.settings.solved_reward for r in scored)
        evaluation.num_scored_tasks += 1
        evaluation.sum_solved += solved / len(scored)
        evaluation.num_solved_tasks += solved > 0
    if ctx.settings.eval.only or ctx.state.step == 0:  # at the start: what fails always ends the run soon
        ctx.state.failed_groups = 0 if scored else ctx.state.failed_groups + 1
    for rollout in group.rollouts:
        if rollout.station == "scored":
            ctx.settle(rollout, "evaluated")
            if evaluation is not None:
                evaluation.rewards.append(rollout.reward)
        else:
            ctx.settle(rollout, fate_of_loss(rollout), "lost")
            if evaluation is not None:
                evaluation.num_failed += 1
    _note_settled(ctx, group, "evaluated")
    ctx.drop_group(group)


def _settle_train(ctx: Context, group: GroupState) -> None:
    state, queue = ctx.state, ctx.settings.queue
    scored = [r for r in group.rollouts if r.station == "scored"]
    target = group.target or len(group.rollouts)
    full = len(scored) >= target
    for rollout in group.rollouts:
        if rollout.station == "lost":
            oversampling.settle_lost(ctx, rollout, oversampled=full and target < len(group.rollouts))
    for rollout in scored[target:]:
        ctx.settle(rollout, "cancelled", oversampling.REASON)
    late = [r for r in group.rollouts if r.station not in ("scored", "lost")]
    pruning.report_audits(ctx, scored)
    num_pruned = sum(r.station == "lost" and r.owner == "pruned" for r in group.rollouts)
    whole = len(scored) >= min(target, len(group.rollouts) - num_pruned)
    scored = scored[:target]
    if state.phase == "stopping":
        for rollout in scored:
            ctx.settle(rollout, "unused")
        ctx.drop_group(group)
        return
    stale = any(r.owner == "stale" for r in group.rollouts if r.station == "lost")
    few = len(scored) < min(2, target)
    if not full and (stale or few or (not whole and queue.on_failed_rollout == "void")):
        for rollout in scored:
            ctx.settle(
                rollout, "voided", "a member of its group was stale" if stale else "its group lost a member"
            )
        ctx.index.shrink(group, scored)
        _note_settled(ctx, group, "voided")
        ctx.drop_group(group)
        state.stale_groups += stale
        if whole:
            _no_signal(ctx, group, "pruned")
        else:
            state.failed_groups += not stale
        return
    if not ctx.settings.group_reward_s:  # else it may fail still
        state.failed_groups = 0
    choice.settled(ctx, group, scored)
    oversampling.split(ctx, group, scored, late)
    ctx.move(group, "signalling")
    ask_signal(ctx, group)


def ask_signal(ctx: Context, group: GroupState) -> None:
    """Ask for the advantages of a settled group."""
    scored, group.asked_at = group.rollouts, ctx.state.outage.num_answers
    rewards = tuple((r.id, r.reward) for r in scored)
    turns = tuple(r.turn_rewards for r in scored)
    lengths, turns = tuple(r.num_tokens for r in scored), turns if any(turns) else ()
    if ctx.settings.group_reward_s:
        payloads = tuple(r.payload for r in scored)
        ctx.ask(Signal(group.id, rewards, lengths, turns, payloads, group.task_id))
    else:
        ctx.ask(Signal(group.id, rewards, lengths, turns))
    ctx.expect(f"signal:{group.id}", ctx.settings.deadlines.signal_s + ctx.settings.group_reward_s)


def signalled(ctx: Context, group: GroupState, event: GroupSignal) -> None:
    """Advantages are here: queue the group or filter it."""
    ctx.met(f"signal:{group.id}")
    if event.failed:
        _signal_failed(ctx, group, event)
        return
    outage.answered(ctx, group.id in ctx.state.outage.waiting)
    if ctx.settings.group_reward_s:
        ctx.state.failed_groups = 0
    advantages = dict(event.advantages)
    for rollout in group.rollouts:
        rollout.advantage = advantages[rollout.id]
    turns = {name: values for (name, _), values in zip(event.advantages, event.turns, strict=False)}
    for rollout in group.rollouts:
        rollout.turn_advantages = turns.get(rollout.id, ())
    if group.leaving:
        oversampling.end(ctx, group)
    elif _is_unused(ctx):
        for rollout in group.rollouts:
            ctx.settle(rollout, "unused")
        ctx.drop_group(group)
    elif rejection := acceptance.rejection(ctx, group, event):
        reason, words = rejection
        for rollout in group.rollouts:
            ctx.settle(rollout, "filtered", words)
        _note_settled(ctx, group, "filtered", reason)
        ctx.drop_group(group)
        choice.dropped(ctx, group)
        _no_signal(ctx, group, reason)
    else:
        ctx.move(group, "queued")
        for rollout in group.rollouts:
            ctx.place(group, rollout, "queued")
        _note_settled(ctx, group, "queued")
        judge_queued(ctx, group)


def _is_unused(ctx: Context) -> bool:
    """Whether nobody will train on what is still to come."""
    return ctx.state.phase == "stopping" and ctx.state.outcome not in CARRIED


def _signal_failed(ctx: Context, group: GroupState, event: GroupSignal) -> None:
    """The group has no rewards, for a judge failed: wait for it, ask again, or lose the group."""
    ended = group.leaving or _is_unused(ctx)
    away = event.failed == "judge_away" and not ended
    if away and outage.wait(ctx, group, group.id, group.asked_at, event.reason):
        return
    group.signal_failures += 1
    if group.signal_failures < ctx.settings.max_score_tries and ctx.state.phase == "running" and not ended:
        ask_signal(ctx, group)
        return
    why = f"infrastructure failure ({event.failed}) in the rewards of a group of task {group.task_id}"
    ctx.state.last_failure = f"{why}: {event.reason}"
    signal_lost(ctx, group, event.reason)


def signal_lost(ctx: Context, group: GroupState, words: str) -> None:
    """Settle a group that a judge has no rewards for, `words` say why."""
    if group.leaving:
        oversampling.end(ctx, group)
        return
    unused = _is_unused(ctx)
    for rollout in group.rollouts:
        ctx.settle(rollout, "unused" if unused else "failed_infrastructure", "" if unused else words)
    if not unused:
        _note_settled(ctx, group, "voided")
        ctx.state.failed_groups += 1
    ctx.drop_group(group)


def _no_signal(ctx: Context, group: GroupState, reason: str) -> None:
    """A group was dropped for lack of signal: its place is filled again, within the budget."""
    queue, reasons = ctx.settings.queue, ctx.state.filtered_reasons
    reasons[reason] = reasons.get(reason, 0) + 1
    ctx.state.filtered_groups += 1
    budget = queue.max_refill_batches * queue.batch_groups
    if ctx.state.filtered_groups <= budget:
        ctx.note(Refilled(group.id, ctx.state.filtered_groups, budget))


def _note_settled(ctx: Context, group: GroupState, fate: str, reason: str = "") -> None:
    finished = [r for r in group.rollouts if r.station in ("scored", "queued")]
    rewards = [r.reward for r in finished]
    ctx.note(
        GroupSettled(
            group=group.id,
            task_id=group.task_id,
            level=group.level,
            purpose=group.purpose,
            fate=fate,  # pyright: ignore[reportArgumentType]
            num_rollouts=len(rewards),
            mean_reward=sum(rewards) / len(rewards) if rewards else 0.0,
            max_reward=max(rewards, default=0.0),
            min_reward=min(rewards, default=0.0),
            num_solved=choice.num_solved(ctx, finished),
            source=group.source,
            reason=reason,  # pyright: ignore[reportArgumentType]
        )
    )
