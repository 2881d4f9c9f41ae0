"""Evaluation on held-out tasks: one version, all tasks, one mean. It never goes stale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.notes import EvalEnded, EvalStarted
from headway.queue import sandboxes
from headway.queue.admission import request_group
from headway.queue.choice import Choice
from headway.queue.rollouts import cancel
from headway.queue.state import EvalState

if TYPE_CHECKING:
    from headway.queue.context import Context


def due(ctx: Context) -> None:
    """Ask for an evaluation of the newest version, if evaluation is on."""
    if ctx.settings.eval.num_tasks:
        ctx.state.eval_wanted = ctx.state.step


def begin(ctx: Context) -> None:
    """Start the evaluation that is wanted once every replica holds one version that is new enough.

    The last evaluation of a run measures the newest weights.
    """
    state = ctx.state
    if state.eval_wanted < 0 or state.eval is not None or state.phase not in ("running", "stopping"):
        return
    if not all(replica.usable for replica in state.replicas.values()):
        return
    held = {(r.lineage, r.number, r.pending) for r in state.replicas.values()}
    if len(held) != 1:
        return
    ((lineage, number, pending),) = held
    wanted = state.step if state.phase == "stopping" else state.eval_wanted
    if pending is not None or lineage != state.lineage or number < wanted:
        return
    state.eval_wanted = -1
    if number == state.evaluated:
        return
    state.eval = EvalState(state.lineage, number, ctx.settings.eval.num_tasks)
    ctx.note(EvalStarted(state.lineage, number, ctx.settings.eval.num_tasks))
    for index in range(ctx.settings.eval.num_tasks):
        request_group(ctx, "eval", Choice(index=index))


def abandon(ctx: Context, reason: str) -> None:
    """Give up the evaluation in progress and ask for it again."""
    state = ctx.state
    if state.eval is None:
        return
    for shelf in list(ctx.index.evals.values()):
        for group in sorted(shelf.values(), key=lambda group: group.id):
            for rollout in group.rollouts:
                cancel(ctx, rollout, "stopped")
                sandboxes.release_all(ctx, rollout)
                ctx.settle(rollout, "stopped", reason)
            ctx.drop_group(group)
    state.eval = None
    due(ctx)


def end(ctx: Context) -> None:
    """Close the evaluation when its last rollout is settled."""
    state = ctx.state
    evaluation = state.eval
    if evaluation is None or ctx.index.num_eval_groups:
        return
    rewards = evaluation.rewards
    state.evaluated, state.eval = evaluation.number, None
    if not rewards:
        ctx.warn(
            "eval_failed", f"no rollout of the evaluation of version {evaluation.number} could be scored"
        )
    ctx.note(
        EvalEnded(
            evaluation.lineage,
            evaluation.number,
            len(rewards),
            evaluation.num_failed,
            sum(rewards) / len(rewards) if rewards else 0.0,
        )
    )
