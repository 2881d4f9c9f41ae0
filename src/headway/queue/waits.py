"""Waits: every one has a deadline, and past it an error names who waited for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import WakeAt
from headway.queue import guard, rollouts, sandboxes
from headway.queue.stopping import stop

if TYPE_CHECKING:
    from headway.queue.context import Context

_FATAL = {
    "train": ("the trainer", "take a step", "train_s"),
    "publish": ("the trainer", "publish a version", "publish_s"),
    "checkpoint": ("the trainer", "save a checkpoint", "checkpoint_s"),
    "apply": ("generator", "take up a version", "apply_s"),
    "task": ("the task source", "offer a task for group", "task_s"),
    "rollback": ("the trainer", "load a checkpoint", "start_s"),
    "restart": ("the driver", "start anew the worker", "start_s"),
    "signal": ("the advantage function", "answer for group", "signal_s"),
}


def cover(ctx: Context) -> None:
    """Make sure that a WakeAt covers the earliest deadline."""
    state, heap = ctx.state, ctx.index.heap
    if state.wake_at_s is not None and heap and heap[0][0] >= state.wake_at_s:
        return  # the heap begins no later than the earliest deadline
    earliest = ctx.index.earliest()
    if earliest is not None and (state.wake_at_s is None or earliest < state.wake_at_s):
        state.wake_at_s = earliest
        ctx.ask(WakeAt(earliest))


def passed(ctx: Context) -> None:
    """Time went by: act on every deadline that is due."""
    for key in ctx.index.due(ctx.now):
        if ctx.state.deadlines.pop(key, None) is None:
            continue  # an earlier one ended this wait
        kind, _, target = key.partition(":")
        if kind in ("rollout", "score", "cancel", "park", "resume"):
            rollouts.deadline(ctx, kind, target)
        elif kind == "sandbox":
            sandboxes.deadline(ctx, target)
        elif kind == "wall":
            stop(ctx, "wall", f"the wall time of {ctx.settings.stop.wall_s:g} s is over", failed=False)
        elif kind == "guard":
            guard.deadline(ctx)
        elif kind in ("starts", "batch", "judge"):
            pass  # the rule that grants sandboxes, releases batches or asks a judge again runs after this
        elif kind == "start":
            _start_failed(ctx)
        else:
            who, what, setting = _FATAL[kind]
            limit = getattr(ctx.settings.deadlines, setting)
            who = f"{who} {target}" if kind == "apply" else who
            what = f"{what} {target}" if kind in ("task", "signal", "restart") else what
            text = f"the scheduler waited for {who} to {what} for {limit:g} s (deadlines.{setting})"
            stop(ctx, "failed", text, failed=True)


def _start_failed(ctx: Context) -> None:
    state, settings = ctx.state, ctx.settings
    missing: list[str] = []
    if not state.trainer_joined and not settings.eval.only:
        missing.append("the trainer")
    if len(state.replicas) < settings.num_replicas:
        missing.append(f"{settings.num_replicas - len(state.replicas)} generator replica(s)")
    if len(state.workers) < settings.num_environment_workers:
        missing.append(f"{settings.num_environment_workers - len(state.workers)} environment worker(s)")
    text = f"the run waited for {' and '.join(missing)} to start for {settings.deadlines.start_s:g} s"
    stop(ctx, "failed", f"{text} (deadlines.start_s)", failed=True)
