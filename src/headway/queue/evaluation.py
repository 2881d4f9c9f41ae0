"""Evaluation on held-out tasks: one version, all tasks, n rollouts of each. It never goes stale.

Its rollouts take at most a set share of the generators' slots; the tasks beyond it wait in line. A run that
only evaluates has all slots for it, and starts no more than keeps them busy: what waited long in the engines'
line would look as if it hung.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.notes import EvalEnded, EvalStarted
from headway.queue import outage, sandboxes
from headway.queue.admission import request_group
from headway.queue.choice import Choice
from headway.queue.rollouts import cancel
from headway.queue.state import EvalState

if TYPE_CHECKING:
    from headway.queue.context import Context


_AHEAD = 2  # rollouts for each slot: some are at a tool or being scored


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


def fill(ctx: Context) -> None:
    """Ask for the next tasks of the evaluation, as far as its share of the generators allows."""
    state, settings = ctx.state, ctx.settings.eval
    evaluation = state.eval
    if evaluation is None or evaluation.num_requested >= evaluation.num_tasks or outage.is_on(ctx):
        return
    most = evaluation.num_tasks
    slots = sum(replica.max_running for replica in state.replicas.values())
    if settings.only:
        most = -(-_AHEAD * max(1, slots) // settings.rollouts_per_task)
    elif settings.max_share < 1.0 and state.phase == "running":
        most = max(1, int(settings.max_share * slots) // settings.rollouts_per_task)
    while evaluation.num_requested < evaluation.num_tasks and ctx.index.num_eval_groups < most:
        evaluation.num_requested += 1
        request_group(ctx, "eval", Choice(index=evaluation.num_requested - 1))


def exhausted(ctx: Context) -> None:
    """There are fewer tasks than asked for."""
    if ctx.state.eval is not None:
        ctx.state.eval.num_tasks = ctx.state.eval.num_requested


def abandon(ctx: Context, reason: str) -> None:
    """Give up the evaluation in progress and ask for it again."""
    state = ctx.state
    if state.eval is None:
        return
    groups = [group for shelf in ctx.index.evals.values() for group in shelf.values()]
    for group in sorted(groups, key=lambda group: group.id):
        for rollout in group.rollouts:
            cancel(ctx, rollout, "stopped")
            sandboxes.release_all(ctx, rollout)
            ctx.settle(rollout, "stopped", reason)
        ctx.drop_group(group)
    state.eval = None
    due(ctx)


def end(ctx: Context) -> EvalEnded | None:
    """Close the evaluation when its last rollout is settled, and return what it found."""
    state = ctx.state
    evaluation = state.eval
    if evaluation is None or ctx.index.num_eval_groups or evaluation.num_requested < evaluation.num_tasks:
        return None
    rewards = evaluation.rewards
    state.evaluated, state.eval = evaluation.number, None
    if not rewards:
        ctx.warn(
            "eval_failed", f"no rollout of the evaluation of version {evaluation.number} could be scored"
        )
    ended = EvalEnded(
        evaluation.lineage,
        evaluation.number,
        len(rewards),
        evaluation.num_failed,
        sum(rewards) / len(rewards) if rewards else 0.0,
        evaluation.sum_solved / max(1, evaluation.num_scored_tasks),
        evaluation.num_solved_tasks / max(1, evaluation.num_scored_tasks),
        ctx.settings.eval.rollouts_per_task,
    )
    ctx.note(ended)
    return ended
