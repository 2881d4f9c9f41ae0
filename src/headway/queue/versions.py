"""Versions: publish after every step, apply to replicas between decode steps, save checkpoints.

An evaluation holds its version: replicas take up nothing new until it ends. When several versions were
published meanwhile, only the newest is applied. While a replica takes up a version, no more than one newer
is published, however many steps are taken: the trainer keeps the newest few only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import ApplyVersion, Checkpoint, Publish
from headway.core.notes import Ignored, VersionSuperseded
from headway.queue import guard

if TYPE_CHECKING:
    from headway.core.events import CheckpointDone, VersionApplied, VersionPublished
    from headway.queue.context import Context


def publish(ctx: Context) -> None:
    """Publish the newest weights once the trainer has a moment."""
    state = ctx.state
    if state.trainer == "idle" and state.trainer_joined and state.published < state.step:
        if state.phase == "stopping" and state.eval_wanted < 0:
            return  # nobody will read it
        if any(replica.pending not in (None, state.published) for replica in state.replicas.values()):
            return  # a replica still reads an older one, which must not be pruned under it
        state.trainer = "publishing"
        ctx.ask(Publish(state.lineage, state.step))
        ctx.expect("publish", ctx.settings.deadlines.publish_s)


def published(ctx: Context, event: VersionPublished) -> None:
    """New weights are readable."""
    state = ctx.state
    if state.trainer != "publishing" or (event.lineage, event.number) != (state.lineage, state.step):
        ctx.note(Ignored("VersionPublished", str(event.number)))
        return
    ctx.met("publish")
    state.trainer = "idle"
    held = max((r.pending if r.pending is not None else r.number for r in state.replicas.values()), default=0)
    if state.published > held and state.published >= 0:
        ctx.note(VersionSuperseded(state.published))
    state.published, state.manifest = event.number, event.manifest


def apply(ctx: Context) -> None:
    """Let replicas that are behind take up the newest version."""
    state = ctx.state
    if state.eval is not None or state.published < 0 or state.phase == "starting":
        return
    behind = tuple(
        name
        for name, replica in state.replicas.items()
        if replica.pending is None and (replica.lineage, replica.number) != (state.lineage, state.published)
    )
    if not behind:
        return
    for name in behind:
        state.replicas[name].pending = state.published
        ctx.expect(f"apply:{name}", ctx.settings.deadlines.apply_s)
    ctx.ask(ApplyVersion(behind, state.lineage, state.published, state.manifest, ctx.settings.kv))


def applied(ctx: Context, event: VersionApplied) -> None:
    """A replica decodes with a new version."""
    replica = ctx.state.replicas.get(event.replica)
    if replica is None or replica.epoch != event.epoch or replica.pending != event.number:
        ctx.note(Ignored("VersionApplied", event.replica))
        return
    ctx.met(f"apply:{event.replica}")
    replica.lineage, replica.number, replica.pending = event.lineage, event.number, None


def save(ctx: Context) -> None:
    """Save when the cadence or the end of the run asks for it."""
    state = ctx.state
    if state.trainer != "idle" or not state.trainer_joined or state.saved_step >= state.step:
        return
    every = ctx.settings.checkpoint.every_steps
    due = every and state.step // every > max(state.saved_step, 0) // every
    ending = state.phase == "stopping" and not state.failed and state.outcome != "guard"
    if (state.phase == "running" and due and not guard.paused(ctx)) or (ending and state.step):
        state.trainer = "saving"
        ctx.ask(Checkpoint(state.step))
        ctx.expect("checkpoint", ctx.settings.deadlines.checkpoint_s)


def saved(ctx: Context, event: CheckpointDone) -> None:
    """The checkpoint contains every step so far: what the one before it contained needs no keeping.

    What only the newest contains is kept: should that be damaged, a resume goes on from the one before.
    """
    state = ctx.state
    if state.trainer != "saving" or event.step != state.step:
        ctx.note(Ignored("CheckpointDone", str(event.step)))
        return
    ctx.met("checkpoint")
    state.trainer = "idle"
    state.saved_before, state.saved_step = state.saved_step, event.step
    for group in list(ctx.index.train["trained"].values()):
        if group.step <= state.saved_before:
            ctx.drop_group(group)
