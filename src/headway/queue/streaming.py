"""Streaming: a trainer that waits for a batch begins the step with the groups that are certain to be in it.

Groups that wait in the queue while the trainer is idle are fewer than a batch, so that the next batch takes
them all. They are handed over in parts, one part at a time: what arrives while the trainer computes one is
the next part, or the rest of the batch. The last rows come with Train, and then the optimizer steps.

Invariants:
- A group that was handed over stays in the queue, as far as admission and conservation are concerned, until
  its batch is released. No rule drops or voids it any more: it is committed to the next step as a released
  batch is, under the settings of the moment at which it was handed over. Its age there is known, for the
  trainer holds the version before that step.
- Whatever takes the trainer back (its death, a rollback, a resume) discards what it gathered: the groups are
  in the queue as if they had never been handed over.
- A step of a lost branch that is taken again is not begun early: it has the groups that it had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import TrainPart
from headway.core.notes import Ignored, PartsDiscarded
from headway.queue import lost_steps
from headway.queue.rows import group_rows, oldest_first

if TYPE_CHECKING:
    from headway.core.commands import Row
    from headway.core.events import PartEnded
    from headway.queue.context import Context


def hand_over(ctx: Context) -> None:
    """Hand what waits to the idle trainer, though the batch of the next step is not complete."""
    state, queue = ctx.state, ctx.settings.queue
    if not queue.stream or state.part_pending or lost_steps.is_planned(state, state.step + 1):
        return
    waiting = ctx.index.on("queued")
    handed = [group for group in waiting if group.streamed]
    room = queue.batch_groups - len(handed)
    num_tokens = sum(group.num_tokens for group in handed)
    rows: list[Row] = []
    for group in oldest_first(state, [group for group in waiting if not group.streamed]):
        num_tokens += group.num_tokens
        full = queue.batch_tokens and num_tokens > queue.batch_tokens and (handed or rows)
        if room <= 0 or full or lost_steps.is_planned(state, group.planned):
            break
        group.streamed = True
        room -= 1
        rows += group_rows(ctx, group)
    if not rows:
        return
    state.streamed += rows
    state.num_parts += 1
    state.part_pending = True
    ctx.ask(TrainPart(state.next_batch, state.step + 1, state.num_parts, tuple(rows)))
    ctx.expect("train", ctx.settings.deadlines.train_s)


def part_ended(ctx: Context, event: PartEnded) -> None:
    """A part is in the gradient; the trainer waits again, unless it has the rest of the batch by now."""
    state = ctx.state
    if not state.part_pending or event.part != state.num_parts:
        ctx.note(Ignored("PartEnded", str(event.part)))
        return
    state.part_pending = False
    if state.trainer == "idle":
        ctx.met("train")


def take(ctx: Context) -> tuple[Row, ...]:
    """Return the rows that the trainer has of the batch that is being released, and begin anew."""
    state = ctx.state
    rows = tuple(state.streamed)
    for group in ctx.index.on("queued"):
        group.streamed = False
    state.streamed = []
    return rows


def discard(ctx: Context) -> None:
    """What the trainer gathered is gone: its groups wait as if they had never been handed over."""
    state = ctx.state
    state.part_pending = False
    rows = take(ctx)
    if rows:
        groups = tuple(dict.fromkeys(row.group for row in rows))
        ctx.note(PartsDiscarded(state.next_batch, groups, len(rows)))
