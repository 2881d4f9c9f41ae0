"""What the next group is of: its source by the mix, its level by the curriculum, its place in the split.

Looks at one source's counts and levels only, however many groups are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headway.queue import curriculum, sources
from headway.queue.curriculum import PoolState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.core.events import TaskOffered
    from headway.queue.context import Context
    from headway.queue.state import GroupState, RolloutState


@dataclass(frozen=True, slots=True)
class Choice:
    """What is asked of the task source."""

    source: str = ""  # "" where the run has only one
    level: int | None = None
    index: int = 0


def choose(ctx: Context) -> Choice:
    """Return what the next train group is of, and count it."""
    state, settings = ctx.state, ctx.settings
    name, levels = "", settings.curriculum.levels
    open_sources = [
        source for source in settings.sources if source.weight and source.name not in state.mix.exhausted
    ]
    if open_sources:
        source = sources.next_source(open_sources, state.mix)
        sources.count(state.mix, source.name)
        name, levels = source.name, source.levels or levels
    level: int | None = None
    if levels:
        level = curriculum.choose_level(_pool(ctx, name), levels, settings.curriculum)
    if not name and level is None and not settings.curriculum.retire_after:
        state.next_task += 1
        return Choice(index=state.next_task - 1)
    key = name if level is None else f"{name}/{level}"
    position = state.mix.positions.get(key, 0)
    index, state.mix.positions[key], notes = curriculum.next_index(
        _pool(ctx, name), level or 0, position, state.step, name
    )
    for note in notes:
        ctx.note(note)
    return Choice(name, level, index)


def group_size(ctx: Context, group: GroupState) -> int:
    """Return how many scored rollouts a train group is to have: by its level, its source, or for all."""
    queue = ctx.settings.queue
    by_level = queue.group_size_by_level.get(str(group.level))
    if by_level is not None:
        return by_level
    for source in ctx.settings.sources:
        if source.name == group.source and source.group_size:
            return source.group_size
    return queue.group_size


def largest_group(ctx: Context) -> int:
    """Return the most rollouts that a group may start with."""
    queue = ctx.settings.queue
    sizes = [queue.group_size, *queue.group_size_by_level.values()]
    sizes += [source.group_size for source in ctx.settings.sources]
    return max(sizes) + ctx.settings.oversampling.rollouts_extra


def offered(ctx: Context, group: GroupState, event: TaskOffered) -> None:
    """A task is here, and with it the size of its split."""
    if group.purpose == "train" and ctx.settings.curriculum.retire_after:
        curriculum.offered(_pool(ctx, group.source), group.asked_level or 0, event.num_tasks)


def exhausted(ctx: Context, group: GroupState) -> None:
    """A source has no more train tasks; the run is dry once no source has any."""
    state = ctx.state
    if group.source and group.source not in state.mix.exhausted:
        state.mix.exhausted.append(group.source)
    asked = [source.name for source in ctx.settings.sources if source.weight]  # others are never
    state.exhausted = all(name in state.mix.exhausted for name in asked)


def settled(ctx: Context, group: GroupState, scored: Sequence[RolloutState]) -> None:
    """A train group's rollouts are scored: the curriculum learns from them."""
    settings = ctx.settings.curriculum
    levels = group.asked_level is not None
    if not scored or not (levels or settings.retire_after):
        return
    share = num_solved(ctx, scored) / len(scored)
    pool, level = _pool(ctx, group.source), group.asked_level or 0
    if levels:
        curriculum.observe(pool, level, share, settings)
    notes = curriculum.judge(
        pool, group.task_id, level, group.index, share, ctx.state.step, group.source, settings
    )
    for note in notes:
        ctx.note(note)


def dropped(ctx: Context, group: GroupState) -> None:
    """A train group left without being trained, for no fault of its source: another may take its place."""
    queue = ctx.settings.queue
    if group.source:
        sources.give_back(ctx.state.mix, group.source, queue.max_refill_batches * queue.batch_groups)


def forgotten(ctx: Context, group: GroupState) -> None:
    """A train group was given up before its task was there: it was never of its source's share."""
    counts = ctx.state.mix.counts
    if counts.get(group.source, 0) > 0:
        counts[group.source] -= 1


def num_solved(ctx: Context, scored: Sequence[RolloutState]) -> int:
    """Return how many of these rollouts were solved."""
    return sum(rollout.reward >= ctx.settings.solved_reward for rollout in scored)


def _pool(ctx: Context, source: str) -> PoolState:
    return ctx.state.pools.setdefault(source, PoolState())
