"""Staleness: how old a token is, and the check at consumption.

Step s trains from version s - 1, so a token of version n is s - 1 - n steps old, queue time included.
Invariant: no token beyond the bound reaches the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headway.core.notes import RolloutSettled
from headway.queue import choice

if TYPE_CHECKING:
    from headway.core.records import VersionSpan
    from headway.queue.context import Context
    from headway.queue.state import GroupState, State


def age(state: State, lineage: int, number: int) -> int:
    """Return how many steps lie between a version and the newest weights.

    A token of a lost branch ages by that branch's steps past the fork plus the surviving steps since.
    """
    ancestor = min([number, *state.forks[lineage : state.lineage]])
    return (state.step - ancestor) + (number - ancestor)


def oldest(state: State, spans: Sequence[VersionSpan]) -> int:
    """Return the age of the oldest token in these spans."""
    return max((age(state, span.lineage, span.number) for span in spans), default=0)


def group_age(state: State, group: GroupState) -> int:
    """Return the age of a group's oldest trained token."""
    return max((oldest(state, rollout.spans) for rollout in group.rollouts), default=0)


def drop_stale(ctx: Context) -> None:
    """Void queued groups that the next step may not train on any more."""
    for group in list(ctx.index.train["queued"].values()):
        if group_age(ctx.state, group) <= ctx.settings.queue.bound:
            continue
        for rollout in group.rollouts:
            if rollout.station != "queued":
                continue
            stale = oldest(ctx.state, rollout.spans) > ctx.settings.queue.bound
            ctx.note(
                RolloutSettled(
                    rollout.id,
                    group.id,
                    "stale" if stale else "voided",
                    rollout.num_tokens,
                    "" if stale else "a member of its group was stale",
                )
            )
        ctx.drop_group(group)
        choice.dropped(ctx, group)
