"""Versions: publish after steps, apply to replicas between decode steps, save checkpoints beside training.

An evaluation holds its version: replicas take up nothing new until it ends. When several versions were
published meanwhile, only the newest is applied. While a replica takes up a version, no more than one newer
is published, however many steps are taken: the trainer keeps the newest few only. Replicas may take turns
(queue.max_updating_replicas), so that their versions differ for as long as those turns last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import ApplyVersion, Checkpoint, Publish
from headway.core.notes import Ignored, VersionSuperseded
from headway.queue import guard, partial

if TYPE_CHECKING:
    from headway.core.events import CheckpointDone, VersionApplied, VersionPublished
    from headway.queue.context import Context


def publish(ctx: Context) -> None:
    """Publish the newest weights once the trainer has a moment."""
    state = ctx.state
    if state.trainer != "idle" or not state.trainer_joined or state.published >= state.step:
        return
    if state.part_pending:
        return  # the trainer would answer after it, and the wait is for this alone
    ending = state.phase == "stopping"
    if ending and state.eval_wanted < 0:
        return  # nobody will read it
    every = ctx.settings.queue.publish_every
    if state.published >= 0 and state.step - state.published < every and state.eval_wanted < 0:
        return
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
    held = max((r.number if r.pending is None else r.pending for r in state.replicas.values()), default=0)
    if state.published > held and state.published >= 0:
        ctx.note(VersionSuperseded(state.published))
    state.published, state.manifest = event.number, event.manifest


def apply(ctx: Context) -> None:
    """Let replicas that are behind take up the newest version."""
    state = ctx.state
    if state.eval is not None or state.published < 0 or state.phase == "starting" or not state.manifest:
        return
    newest = (state.lineage, state.published)
    behind = [
        name
        for name, replica in state.replicas.items()
        if replica.pending is None and not replica.down and (replica.lineage, replica.number) != newest
    ]
    if limit := ctx.settings.queue.max_updating_replicas:
        busy = sum(replica.pending is not None for replica in state.replicas.values())
        behind = behind[: max(0, limit - busy)]
    if not behind:
        return
    partial.park_stragglers(ctx, "update")
    for name in behind:
        state.replicas[name].pending = state.published
        ctx.expect(f"apply:{name}", ctx.settings.deadlines.apply_s)
    ctx.ask(ApplyVersion(tuple(behind), state.lineage, state.published, state.manifest, ctx.settings.kv))


def applied(ctx: Context, event: VersionApplied) -> None:
    """A replica decodes with a new version."""
    replica = ctx.state.replicas.get(event.replica)
    if (
        replica is None
        or replica.epoch != event.epoch
        or replica.pending != event.number
        or (event.lineage, event.number) <= (replica.lineage, replica.number)  # of a branch that was lost
    ):
        ctx.note(Ignored("VersionApplied", event.replica))
        return
    ctx.met(f"apply:{event.replica}")
    replica.lineage, replica.number, replica.pending, replica.usable = event.lineage, event.number, None, True
    ctx.state.resume_due = True


def save(ctx: Context) -> None:
    """Save when the cadence or the end of the run asks for it; the trainer goes on meanwhile."""
    state = ctx.state
    if state.trainer not in ("idle", "publishing") or not state.trainer_joined or state.part_pending:
        return
    if state.saving_step >= 0 or state.saved_step >= state.step:
        return
    every = ctx.settings.checkpoint.every_steps
    due = every and state.step // every > max(state.saved_step, 0) // every
    ending = state.phase == "stopping" and not state.failed and state.outcome != "guard"
    if (state.phase == "running" and due and not guard.paused(ctx)) or (ending and state.step):
        state.saving_step = state.step
        ctx.ask(Checkpoint(state.step))
        ctx.expect("checkpoint", ctx.settings.deadlines.checkpoint_s)


def saved(ctx: Context, event: CheckpointDone) -> None:
    """A checkpoint is complete. What no kept checkpoint could lose again needs no keeping.

    Groups stay until the oldest kept checkpoint contains them: should newer ones be damaged, a resume goes
    on from that one.
    """
    state = ctx.state
    if event.step != state.saving_step:
        ctx.note(Ignored("CheckpointDone", str(event.step)))
        return
    ctx.met("checkpoint")
    state.saving_step = -1
    state.saved_steps.append(event.step)
    keep = ctx.settings.checkpoint.keep
    del state.saved_steps[:-keep]
    if len(state.saved_steps) < keep:
        return  # a resume may still begin anew
    state.guard.dropped = True
    state.contained = max(state.contained, state.saved_steps[0])
    for group in ctx.index.on("trained"):
        if group.step <= state.saved_steps[0]:
            ctx.drop_group(group)
