"""Rows: a settled group as the trainer gets it, in the order in which groups leave the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.commands import Row
from headway.queue.context import origin
from headway.queue.lost_steps import age
from headway.queue.staleness import masked_versions, weight

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway.queue.context import Context
    from headway.queue.state import GroupState, State


def oldest_first(state: State, groups: Iterable[GroupState]) -> list[GroupState]:
    """Return groups in the order in which they are trained."""
    return sorted(groups, key=lambda group: (-age(state, group.lineage, group.number), origin(group.id)))


def group_rows(ctx: Context, group: GroupState) -> list[Row]:
    """Return the rows of a group as the next step trains them, by the settings of this moment."""
    settings, state = ctx.settings, ctx.state
    rows: list[Row] = []
    for rollout in group.rollouts:
        masked = masked_versions(settings, state, rollout)
        ages = [age(state, *span[:2]) for span in rollout.spans if span[:2] not in masked]
        rows.append(
            Row(
                rollout.id,
                group.id,
                rollout.payload,
                rollout.advantage,
                weight(settings, max(ages, default=0)),
                masked,
                rollout.turn_advantages,
            )
        )
    return rows
