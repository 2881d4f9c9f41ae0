"""Stopping: steps, wall time, target reward, a person, or a fault. Whoever is in flight is told to end.

The order at the end: the step in progress completes, the weights are saved, a last evaluation runs where
the outcome allows one, then Finish. After a fault nothing is waited for: Finish comes at once. A run that
skipped its every step ends as a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import Finish
from headway.core.notes import Stopping
from headway.queue import evaluation, outage, oversampling, rollouts, skipped
from headway.queue.state import ACTIVE, CARRIED

if TYPE_CHECKING:
    from headway.core.notes import EvalEnded
    from headway.queue.context import Context
    from headway.queue.state import GroupState


def stop(ctx: Context, outcome: str, message: str, *, failed: bool) -> None:
    """Admit nothing more and wind down."""
    state = ctx.state
    if state.phase == "finished" or (state.phase == "stopping" and not failed):
        return
    state.outcome, state.message, state.failed = outcome, message, failed
    was_running = state.phase in ("running", "stopping")
    state.phase = "stopping"
    ctx.note(Stopping(outcome, message))
    keep_eval = outcome not in CARRIED and ctx.settings.eval.at_end and was_running
    for group in list(state.groups.values()):
        if group.purpose == "eval" and keep_eval:
            continue
        if group.stage == "requested" or group.dormant:
            # It has rollouts when it was in flight in an earlier life. Nobody would answer for a dormant one.
            if group.rollouts and outcome in CARRIED and group.purpose == "train":
                ctx.met(f"task:{group.id}")
            else:
                close(ctx, group)
            continue
        for rollout in group.rollouts:
            if rollout.station in ACTIVE:
                rollouts.cancel(ctx, rollout, outcome)
    if not keep_eval and state.eval is not None:
        state.eval = None
    state.eval_wanted = -1
    if keep_eval and state.evaluated != state.step and state.trainer != "training":
        evaluation.due(ctx)


def after_step(ctx: Context) -> None:
    """Look at the conditions that a finished step can meet; a resumed run may have met them before."""
    state, conditions = ctx.state, ctx.settings.stop
    if state.phase != "running":
        if state.phase == "stopping" and state.outcome not in CARRIED and ctx.settings.eval.at_end:
            evaluation.due(ctx)  # the step that was in progress made a newer version
        return
    full = len(state.rewards) >= conditions.target_window
    if conditions.steps and state.step >= conditions.steps:
        stop(ctx, "steps", f"{state.step} steps are done", failed=False)
    elif conditions.target_reward and full:
        mean = sum(state.rewards) / len(state.rewards)
        if mean >= conditions.target_reward:
            stop(
                ctx,
                "target",
                f"the mean reward of the last {len(state.rewards)} rollouts is {mean:.3f}, the target "
                f"{conditions.target_reward:g}",
                failed=False,
            )


def only_evaluate(ctx: Context) -> None:
    """A run without training begins, or goes on after an earlier life that may have been at its very end."""
    if ctx.state.evaluated == ctx.state.step:
        stop(ctx, "evaluated", "the evaluation was complete", failed=False)
    else:
        evaluation.due(ctx)


def evaluated(ctx: Context, ended: EvalEnded) -> None:
    """A run that only evaluates is over once it has; without any score it has failed."""
    if not ctx.settings.eval.only or ctx.state.phase != "running":
        return
    last = f"; the last: {ctx.state.last_failure}" if ctx.state.last_failure else ""
    if ended.num_rollouts:
        stop(ctx, "evaluated", f"{ended.num_rollouts} rollouts are scored", failed=False)
    else:
        ctx.state.evaluated = -1  # a resume tries again
        stop(ctx, "failed", f"no rollout could be scored{last}", failed=True)


def failing(ctx: Context) -> None:
    """End a run whose groups keep failing, or are all too old before they can train."""
    state, queue = ctx.state, ctx.settings.queue
    if state.phase == "running" and state.stale_groups > queue.max_empty_batches * queue.batch_groups:
        stop(
            ctx,
            "all_stale",
            f"{state.stale_groups} groups in a row were too old before a batch was full: rollouts take "
            "longer than the staleness bounds allow. Raise queue.bound or the bounds of [staleness], or "
            "set staleness.token = mask",
            failed=False,
        )
    if state.phase == "running" and state.failed_groups >= ctx.settings.queue.max_failed_groups:
        last = f"; the last: {state.last_failure}" if state.last_failure else ""
        stop(
            ctx,
            "failed",
            f"{state.failed_groups} groups in a row left no usable rollouts{last}",
            failed=True,
        )


def finish(ctx: Context) -> None:
    """Say Finish once nothing is left to wait for."""
    state = ctx.state
    if state.phase != "stopping":
        return
    if not state.failed and _waiting(ctx):
        return
    if state.outcome not in CARRIED and (message := skipped.all_skipped(state)):
        stop(ctx, "failed", message, failed=True)
    carry = state.outcome in CARRIED
    for group in list(state.groups.values()):
        if group.stage == "trained":
            continue
        if group.leaving:
            oversampling.end(ctx, group)
        elif carry and group.purpose == "train":
            for rollout in group.rollouts:
                failed = rollout.station == "lost" and rollout.owner in rollouts.FAULTS
                ctx.settle(rollout, rollouts.fate_of_loss(rollout) if failed else "carried")
            group.carried = True
        else:
            close(ctx, group)
    state.phase = "finished"
    state.deadlines.clear()
    state.sandboxes.clear()
    ctx.index.rebuild(state)
    ctx.ask(Finish(state.outcome, state.message, state.failed))


def close(ctx: Context, group: GroupState) -> None:
    """Settle the rollouts of a group that nobody will use."""
    for rollout in group.rollouts:
        if rollout.station == "lost":
            ctx.settle(rollout, rollouts.fate_of_loss(rollout))
        else:
            ctx.settle(rollout, "unused" if rollout.station in ("scored", "queued") else "stopped")
    ctx.drop_group(group)


def _waiting(ctx: Context) -> bool:
    """Whether the end still waits for a rollout, the trainer, a sandbox or the last evaluation."""
    state = ctx.state
    if (
        state.trainer != "idle"
        or state.sandboxes
        or (state.trainer_joined and state.outcome != "guard" and max(state.saved_step, 0) < state.step)
    ):
        return True
    if state.eval is not None or (state.eval_wanted >= 0 and state.replicas):
        return True
    return ctx.index.waits and not (state.outcome in CARRIED and outage.waits_only(ctx))
