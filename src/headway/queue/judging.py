"""Judging: what becomes of scores and signals that wait for a judge which answers nobody (see `outage`).

After a pause, which doubles with every failure, one of them is asked for again; the first answer of the
judge, to whomever, lets all be asked for. Past the limit (`reward.max_outage_s`) the run ends, resumable: a
resume asks for them again. Where all that wait are of one group, the fault may be its own: it fails as any
other group does, and the run goes on. A stop does not wait for what a resume finds again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.queue import groups, rollouts
from headway.queue.outage import may_wait
from headway.queue.state import CARRIED, OutageState
from headway.queue.stopping import stop

if TYPE_CHECKING:
    from headway.queue.context import Context
    from headway.queue.state import GroupState, RolloutState

    Found = tuple[str, GroupState, RolloutState | None]


def run(ctx: Context) -> None:
    """Ask again for what waits, give it up, or leave it where it is."""
    outage = ctx.state.outage
    if not outage.num_in_row:
        return
    for key, group, rollout in _found(ctx):
        if not outage.waiting[key] and (group.leaving or not may_wait(ctx, group)):
            _give_up(ctx, group, rollout)
    if not _found(ctx):
        _forget(ctx)
    elif ctx.state.phase == "stopping" and ctx.state.outcome in CARRIED:
        return  # a resume asks for them
    elif outage.over:
        _back(ctx)
    elif any(outage.waiting.values()):
        return  # one asks, within its own deadline
    elif ctx.now - outage.since_s >= ctx.settings.judge_outage_s:
        _end(ctx)
    elif ctx.now >= outage.until_s:
        for key, group, rollout in _found(ctx)[:1]:
            _ask(ctx, group, rollout)
            outage.waiting[key] = True


def _back(ctx: Context) -> None:
    outage, found = ctx.state.outage, _found(ctx)
    again = [(group, rollout) for key, group, rollout in found if not outage.waiting[key]]
    text = f"the judge answers again after {ctx.now - outage.since_s:.0f} s"
    ctx.warn("judge_back", f"{text}; {_words(found)} asked for again")
    _forget(ctx)
    for group, rollout in again:
        _ask(ctx, group, rollout)


def _end(ctx: Context) -> None:
    outage, found = ctx.state.outage, _found(ctx)
    if ctx.state.phase == "running" and len({group.id for _, group, _ in found}) == 1:
        task = found[0][1].task_id
        ctx.state.last_failure = f"infrastructure failure (judge_away) in task {task}: {outage.words}"
        for _, group, rollout in found:
            _give_up(ctx, group, rollout)
        return
    limit_s = ctx.settings.judge_outage_s
    stop(
        ctx,
        "failed",
        f"{outage.words}; it has answered nobody for {limit_s:g} s (reward.max_outage_s), and "
        f"{_words(found)} wanted of it",
        failed=True,
    )


def _words(found: list[Found]) -> str:
    num_groups = sum(rollout is None for _, _, rollout in found)
    num = len(found) - num_groups
    parts = [f"the scores of {num} finished rollouts"] if num else []
    parts += [f"the rewards of {num_groups} groups"] if num_groups else []
    return f"{' and '.join(parts)} are"


def _ask(ctx: Context, group: GroupState, rollout: RolloutState | None) -> None:
    if rollout is None:
        groups.ask_signal(ctx, group)
    else:
        rollouts.score(ctx, group, rollout)


def _give_up(ctx: Context, group: GroupState, rollout: RolloutState | None) -> None:
    if rollout is None:
        groups.signal_lost(ctx, group, ctx.state.outage.words)
    else:
        ended = group.leaving or ctx.state.phase == "stopping"
        rollouts.lose(ctx, group, rollout, "scheduler" if ended else "infrastructure")


def _found(ctx: Context) -> list[Found]:
    found: list[Found] = []
    for key in ctx.state.outage.waiting:
        if (group := ctx.state.groups.get(key)) is not None:
            found.append((key, group, None))
        elif (pair := ctx.find(key)) is not None:
            found.append((key, *pair))
    return found


def _forget(ctx: Context) -> None:
    ctx.met("judge")
    ctx.state.outage = OutageState(num_answers=ctx.state.outage.num_answers)
