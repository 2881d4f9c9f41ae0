"""Recovery: a worker died and comes back, or the trainer goes back to a checkpoint, while the run goes on.

A dead generator is started anew; its rollouts park themselves and go on from their tokens, on weights that
may be newer: an evaluation beside training begins anew, for it measures one version. A dead environment
worker is started anew; its rollouts and scores failed, as the driver tells, and are tried again. A dead
trainer is started anew from the newest checkpoint; what the lost steps trained goes back to the queue, in a
new lineage. More deaths than the settings allow end the run, resumable; so does, at once, a death of bad
input, such as a user's loss of the wrong shape: the worker would die of it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.core.commands import RestartWorker, Rollback
from headway.core.notes import Ignored, RolledBackTo, RolloutRevived
from headway.core.settings import setting
from headway.queue import evaluation, lost_steps, streaming
from headway.queue.state import ReplicaState
from headway.queue.stopping import stop

if TYPE_CHECKING:
    from headway.core.events import ReplicaJoined, ReplicaLost, RolledBack, WorkerLost
    from headway.queue.context import Context
    from headway.queue.state import GroupState


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """Section [recovery]: what a worker's death means."""

    generator_restarts: int = setting(
        3, "Restarts of each generator process before its death ends the run; 0 for none.", ge=0
    )
    trainer_restarts: int = setting(
        1, "Restarts of the trainer, from its newest checkpoint, before its death ends the run.", ge=0
    )
    environment_restarts: int = setting(
        3, "Restarts of each environment worker before its death ends the run; 0 for none.", ge=0
    )


def replica_joined(ctx: Context, event: ReplicaJoined) -> None:
    """A replica is ready, for the first time or again."""
    state = ctx.state
    before = state.replicas.get(event.replica)
    if before is not None and event.epoch <= before.epoch:
        ctx.note(Ignored("ReplicaJoined", event.replica))
        return
    replica = ReplicaState(event.epoch, event.lineage, event.number, max_running=event.max_running)
    if before is not None:
        ctx.met(f"restart:{event.replica}")
        replica.num_restarts = before.num_restarts
        # one that comes back holds the first weights and takes up the newest before it is used
        replica.usable = (event.lineage, event.number) == (state.lineage, state.published)
        state.resume_due = True
    state.replicas[event.replica] = replica


def replica_lost(ctx: Context, event: ReplicaLost) -> None:
    """A generator died: start it anew, unless it died too often."""
    state = ctx.state
    replica = state.replicas.get(event.replica)
    text = f"generator {event.replica} was lost: {event.cause}"
    if replica is None:
        stop(ctx, "failed", text, failed=True)  # it never began
        return
    if replica.epoch != event.epoch or replica.down:
        ctx.note(Ignored("ReplicaLost", event.replica))
        return
    limit = ctx.settings.recovery.generator_restarts
    if state.phase != "running" or event.bad_input or replica.num_restarts >= limit:
        more = ""
        if state.phase == "running" and limit and not event.bad_input:
            more = f"; it was restarted {limit} times before (recovery.generator_restarts)"
        stop(ctx, "failed", text + more, failed=True)
        return
    replica.num_restarts += 1
    replica.down, replica.usable, replica.pending = True, False, None
    ctx.met(f"apply:{event.replica}")
    ctx.warn(
        "generator_lost", f"{text}; it is started anew ({replica.num_restarts} of at most {limit} times)"
    )
    ctx.ask(RestartWorker("generator", event.replica, event.epoch + 1))
    ctx.expect(f"restart:{event.replica}", ctx.settings.deadlines.start_s)
    if not ctx.settings.eval.only:  # there every replica holds one version for good, and the others go on
        evaluation.abandon(ctx, "a generator was lost")


def worker_lost(ctx: Context, event: WorkerLost) -> None:
    """The trainer or an environment worker died."""
    state = ctx.state
    if event.role == "trainer" and ctx.settings.eval.only:
        ctx.note(Ignored("WorkerLost", event.worker))  # nothing was asked of it
        return
    text = f"{event.role} worker {event.worker} was lost: {event.cause}"
    if event.role == "environment":
        environment_lost(ctx, event.worker, text, bad_input=event.bad_input)
        return
    limit = ctx.settings.recovery.trainer_restarts
    again = event.role == "trainer" and state.phase == "running" and not event.bad_input
    if not again or state.trainer_restarts >= limit:
        stop(ctx, "failed", text, failed=True)
        return
    state.trainer_restarts += 1
    state.trainer, state.trainer_joined = "loading", False
    _forget_trainer(ctx)
    step = max(state.saved_step, 0)
    ctx.warn("trainer_lost", f"{text}; it is started anew and goes on from step {step}")
    ctx.ask(RestartWorker("trainer", event.worker, state.trainer_restarts))
    ctx.expect("restart:trainer", ctx.settings.deadlines.start_s)


def environment_lost(ctx: Context, worker: str, text: str, *, bad_input: bool = False) -> None:
    """An environment worker died: start it anew, unless it died too often."""
    state, limit = ctx.state, ctx.settings.recovery.environment_restarts
    times = state.worker_restarts.get(worker, 0)
    if state.phase != "running" or bad_input or times >= limit:
        more = ""
        if state.phase == "running" and limit and not bad_input:
            more = f"; it was restarted {limit} times before (recovery.environment_restarts)"
        stop(ctx, "failed", text + more, failed=True)
        return
    state.worker_restarts[worker] = times + 1
    ctx.warn("environment_lost", f"{text}; it is started anew ({times + 1} of at most {limit} times)")
    ctx.ask(RestartWorker("environment", worker, times + 1))
    ctx.expect(f"restart:{worker}", ctx.settings.deadlines.start_s)


def trainer_joined(ctx: Context) -> None:
    """The trainer is ready; after its death it loads the newest checkpoint first."""
    again = ctx.state.trainer == "loading" and not ctx.state.trainer_joined
    ctx.state.trainer_joined = True
    if again:
        ctx.met("restart:trainer")
        roll_back(ctx, max(ctx.state.saved_step, 0), "the trainer was lost")


def roll_back(ctx: Context, step: int, reason: str, *, same_steps: bool = True) -> None:
    """Go back to the checkpoint of `step` (0: the beginning); the lost steps' rollouts are queued again.

    `same_steps` takes the lost steps again with the rollouts that they had; otherwise these are queued like
    any others, for the weights will be other ones.
    """
    state = ctx.state
    ctx.note(RolledBackTo(step, state.step, state.lineage + 1, reason))
    if same_steps:
        lost_steps.plan(ctx, step)
    else:
        lost_steps.forget_plans(ctx)
    _forget_trainer(ctx)
    state.forks.append(step)
    state.lineage, state.step = state.lineage + 1, step
    state.saved_steps = [saved for saved in state.saved_steps if saved <= step]
    state.published, state.manifest = -1, ""
    state.evaluated = state.evaluated if state.evaluated <= step else -1
    state.trainer = "loading"
    for shelf in ("training", "trained"):
        for group in ctx.index.on(shelf):
            if shelf == "training" or group.step > step:
                requeue(ctx, group)
                group.planned *= same_steps
    ctx.ask(Rollback(step, state.lineage))
    ctx.expect("rollback", ctx.settings.deadlines.start_s)


def requeue(ctx: Context, group: GroupState) -> None:
    """Put a settled or released group back into the queue."""
    if group.carried or group.stage == "trained":
        for rollout in group.rollouts:
            ctx.note(RolloutRevived(rollout.id, group.id))
        group.carried = False
    group.planned, group.step = group.step or group.planned, 0
    ctx.move(group, "queued")
    for rollout in group.rollouts:
        ctx.place(group, rollout, "queued")


def rolled_back(ctx: Context, event: RolledBack) -> None:
    """The trainer holds the checkpoint's weights: publish them, then train on."""
    state = ctx.state
    if state.trainer != "loading" or (event.lineage, event.step) != (state.lineage, state.step):
        ctx.note(Ignored("RolledBack", str(event.step)))
        return
    ctx.met("rollback")
    state.trainer = "idle"


def _forget_trainer(ctx: Context) -> None:
    """Nothing is awaited of what the trainer was doing, and what it gathered is lost."""
    streaming.discard(ctx)
    ctx.state.saving_step = -1
    for key in ("train", "publish", "checkpoint", "rollback"):
        ctx.met(key)
