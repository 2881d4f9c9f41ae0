"""Outage: a judge answers nobody, and what needs its answer waits instead of failing.

A score, or the signal of a group, that failed because the judge was away costs no try, unless somebody had an
answer since it was asked for. Its rollouts are finished and on disk: nothing of them is lost by waiting.
Nothing new is admitted meanwhile. What becomes of those that wait is the rule of `judging`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.queue.index import OVER
from headway.queue.state import CARRIED

if TYPE_CHECKING:
    from headway.queue.context import Context
    from headway.queue.state import GroupState

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


def is_on(ctx: Context) -> bool:
    """Say whether anything waits for a judge that answers nobody."""
    return bool(ctx.state.outage.waiting)


def may_wait(ctx: Context, group: GroupState) -> bool:
    """Say whether a group may wait for a judge.

    At a run's end a train group may where a resume finds it again, and an evaluation where it is the last.
    """
    carried = ctx.state.outcome in CARRIED
    return ctx.state.phase == "running" or (
        ctx.state.phase == "stopping" and (group.purpose == "train") == carried
    )


def wait(ctx: Context, group: GroupState, key: str, asked_at: int, words: str) -> bool:
    """Let a rollout's score, or a group's signal, wait; False when the failure is one like any other.

    Args:
        ctx: of the event that told of the failure.
        group: that is concerned.
        key: id of the rollout, or of the group.
        asked_at: answers that judges had given when it was asked for.
        words: what the judge failed at.
    """
    outage, limit_s = ctx.state.outage, ctx.settings.judge_outage_s
    if not limit_s or asked_at < outage.num_answers or not may_wait(ctx, group):
        return False
    if not outage.num_in_row:
        outage.since_s = ctx.now
        ctx.warn(
            "judge_away",
            f"{words}; scores wait for it, and nothing new is started, for {limit_s:g} s at most "
            "(reward.max_outage_s)",
        )
    if not outage.num_in_row or outage.waiting.get(key):
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**outage.num_in_row)
        outage.num_in_row += 1
        outage.until_s = min(ctx.now + pause_s, max(ctx.now, outage.since_s + limit_s))
    outage.words = words
    outage.waiting.pop(key, None)
    outage.waiting[key] = False  # the last in line now
    ctx.index.expect("judge", outage.until_s)
    return True


def answered(ctx: Context, judged: bool) -> None:
    """Note an answer; `judged` says whether a judge gave it just now."""
    outage = ctx.state.outage
    outage.num_answers += judged
    outage.over = outage.over or (judged and bool(outage.num_in_row))


def waits_only(ctx: Context) -> bool:
    """Whether no train group waits for anything but the judge; called at the end of a run only."""
    waiting, shelves = ctx.state.outage.waiting, ctx.index.train
    if ctx.index.num_eval_groups or any(not group.rollouts for group in shelves["requested"].values()):
        return False
    return all(group in waiting for group in shelves["signalling"]) and all(
        rollout.station in OVER or rollout.id in waiting
        for group in shelves["running"].values()
        for rollout in group.rollouts
    )
