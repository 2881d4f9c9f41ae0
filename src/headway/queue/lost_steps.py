"""Lost steps: what a rollback or a resume takes back is taken again, with the groups that it had.

A group that a lost step trained goes back to the queue and keeps the step as its plan. One that is too old
for it, because it began with a lost version, is settled as stale; its task is asked for again under an id
that names the group that it stands for (`t000017~1`), so that it draws the same tokens. The batch of a
planned step waits for its groups and holds no others.

Invariant: with bound 0, and where rollouts depend on task, seed and version alone, a broken run trains what
the unbroken one trains, in the same order. Where a planned step is left without a group, because rollouts
came out otherwise, the plan is given up: its groups are trained as any others.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headway.queue.context import LATE, origin
from headway.queue.state import Again

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.queue.context import Context
    from headway.queue.state import GroupState, State


def age(state: State, lineage: int, number: int) -> int:
    """Return how many steps lie between a version and the newest weights.

    A token of a lost branch ages by that branch's steps past the fork plus the surviving steps since.
    """
    if lineage == state.lineage:
        return state.step - number
    ancestor = _ancestor(state, lineage, number)
    return (state.step - ancestor) + (number - ancestor)


def age_of_held(state: State) -> int | None:
    """Return the age of the oldest version that a usable replica holds, None without one."""
    held = {(r.lineage, r.number) for r in state.replicas.values() if r.usable}
    return max([age(state, lineage, number) for lineage, number in held], default=None)


def _ancestor(state: State, lineage: int, number: int) -> int:
    """Return the newest step that a version shares with the surviving branch."""
    return min([number, *state.forks[lineage : state.lineage]])


def plan(ctx: Context, step: int) -> None:
    """Plan the steps beyond `step`, just before the state goes back to it."""
    state = ctx.state
    busy = 1 if ctx.index.train["training"] else 0
    earlier = state.planned_until if state.planned_until > step else 0
    state.planned_until = max(earlier, state.step + busy)


def forget_plans(ctx: Context) -> None:
    """No step is taken again as it was any more; whose step it was is trained as any other."""
    state = ctx.state
    state.planned_until = 0
    for group in state.groups.values():
        group.planned = 0
    for again in state.again:
        again.planned = 0


def is_planned(state: State, planned: int) -> bool:
    """Say whether a step's plan stands and lies ahead."""
    return state.step < planned <= state.planned_until


def is_lost_version(state: State, lineage: int, number: int) -> bool:
    """Say whether a version is of a lost branch."""
    return _ancestor(state, lineage, number) < number


def is_lost(state: State, group: GroupState) -> bool:
    """Say whether a group began with a version of a lost branch."""
    return is_lost_version(state, group.lineage, group.number)


def take_again(ctx: Context, group: GroupState) -> None:
    """Settle a group of a lost branch as stale, and ask for its task again."""
    for rollout in group.rollouts:
        ctx.settle(rollout, "stale", "it was of a branch that was lost")
    ctx.drop_group(group)
    ask_again(ctx.state, group)


def ask_again(state: State, group: GroupState) -> None:
    """Put a group's task in line before all new ones; not that of late members, which is their group's."""
    if group.id.endswith(LATE):
        return
    state.again.append(Again(origin(group.id), group.index, group.planned, group.source, group.asked_level))
    state.again.sort(key=lambda again: (again.planned or sys.maxsize, again.group))


def places(ctx: Context) -> int:
    """Return how many places planned steps take beyond their groups: each one a whole batch.

    Gives the plan up where its next step is left without a group. Looks at every group, but only while
    lost steps are being taken again.
    """
    state = ctx.state
    busy = 1 if ctx.index.train["training"] else 0
    first = state.step + busy + 1
    if state.planned_until < first:
        return 0
    planned = [group.planned for group in _on_their_way(ctx) if is_planned(state, group.planned)]
    steps = {*planned, *(again.planned for again in state.again if is_planned(state, again.planned))}
    if first not in steps:
        forget_plans(ctx)
        return 0
    return len(steps) * ctx.settings.queue.batch_groups - len(planned)


def batch(ctx: Context) -> tuple[list[GroupState], bool]:
    """Return the queued groups of the next step where it is planned, and whether others must be waited for.

    Looks at every group, but only while lost steps are being taken again.
    """
    state, step = ctx.state, ctx.state.step + 1
    if not is_planned(state, step):
        return [], False
    groups = [group for group in _on_their_way(ctx) if group.planned == step]
    waits = any(again.planned == step for again in state.again)
    return [g for g in groups if g.stage == "queued"], waits or any(g.stage != "queued" for g in groups)


def _on_their_way(ctx: Context) -> Iterator[GroupState]:
    for shelf in ("dormant", "requested", "running", "signalling", "queued"):
        yield from ctx.index.train[shelf].values()
