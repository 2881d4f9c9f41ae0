"""A rollout from its start to its score: stations, retries, deadlines.

Each failure has one owner. The scheduler retries whole attempts and scores, nobody else does. An
infrastructure failure is never a reward: a rollout without a score leaves its group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from headway.core.commands import Cancel, Score
from headway.core.events import RolloutEnded, RolloutFailed, Scored, ScoreFailed, ToolEnded, TurnEnded
from headway.core.notes import AttemptFailed, Fate
from headway.core.records import VersionSpan, merge_spans, without_last
from headway.queue import concurrency, lost_steps, outage, sandboxes, staleness
from headway.queue.admission import start_attempt

if TYPE_CHECKING:
    from headway.queue.context import Context
    from headway.queue.state import GroupState, RolloutState

_FATES: dict[str, Fate] = {
    "infrastructure": "failed_infrastructure",
    "sandbox": "failed_infrastructure",
    "environment": "failed_environment",
    "reward": "failed_reward",
    "pruned": "pruned",
    "cancelled": "cancelled",
    "stale": "stale",
    "voided": "voided",
}
FAULTS = ("infrastructure", "environment", "reward")
_NOT_THE_REWARDS = ("sandbox", "judge", "judge_away", "worker_lost")
"""Causes of a failed score for which the reward is not to blame."""
_LATE = {"environment": "environment", "sandbox": "infrastructure"}
"""What an attempt waited for at its deadline -> whose fault that is."""

CROSSING = ("length", "repetition", "environment", "value")  # whose pruning an end that crosses it undoes
_TOTAL_TIMEOUTS = 4  # an attempt that keeps making progress may take this many idle timeouts


def progress(ctx: Context, rollout: RolloutState) -> None:
    """An answer or a tool call ended: the idle deadline starts again, within the total limit."""
    key = f"rollout:{rollout.id}"
    if key in ctx.state.deadlines:
        at_s, limit_s = ctx.now + ctx.settings.rollout_timeout_s, _total_limit(ctx, rollout)
        ctx.index.expect(key, at_s if at_s < limit_s else limit_s)


def turn_ended(ctx: Context, group: GroupState, rollout: RolloutState, event: TurnEnded) -> None:
    """An answer is complete."""
    rollout.num_turns, rollout.num_losses = event.turn + 1, 0
    rollout.last_sign = f"the end of answer {event.turn}"
    spans, new = rollout.spans, event.spans
    last, first = spans[-1] if spans else None, new[0] if len(new) == 1 else None
    if last and first and last[0] == first[0] and last[1] == first[1] and not rollout.num_unfinished:
        spans[-1] = VersionSpan(last[0], last[1], last[2] + first[2])
    else:
        before = without_last(spans, rollout.num_unfinished)
        rollout.spans, rollout.num_unfinished = merge_spans([*before, *new]), 0
    rollout.num_tokens = sum([span[2] for span in rollout.spans])
    staleness.acted(ctx, rollout, event)
    progress(ctx, rollout)
    if group.purpose == "train" and (verdict := staleness.verdict(ctx, rollout)):
        give_up(ctx, group, rollout, verdict)


def tool_ended(ctx: Context, rollout: RolloutState, event: ToolEnded) -> None:
    """A tool call is over; the environment thinks or asks again."""
    rollout.num_calls = event.call + 1
    rollout.last_sign = f"the end of tool call {event.call}"
    if event.where == "sandbox":
        staleness.shaped(rollout)
    progress(ctx, rollout)


def ended(ctx: Context, group: GroupState, rollout: RolloutState, event: RolloutEnded) -> None:
    """The payload is on disk: release the sandbox first, then score."""
    ctx.met(f"rollout:{rollout.id}")
    rollout.spans, rollout.num_tokens = list(event.spans), event.num_tokens
    rollout.payload, rollout.truncated = event.payload, event.truncated
    sandboxes.release_all(ctx, rollout)
    concurrency.rollout_ended(ctx, rollout)
    if event.num_turns <= rollout.audited_after:
        rollout.audited = ""  # its end would have crossed its pruning
    crossed = rollout.owner in (*_LATE, "restart") or rollout.pruned in CROSSING
    if rollout.pending == "cancelling" and not crossed:
        ctx.met(f"cancel:{rollout.id}")
        lose(ctx, group, rollout, rollout.owner)
        return
    _settled(ctx, rollout)
    # its end crossed the cancel of its deadline, of its restart or of its pruning: it counts
    rollout.owner = rollout.pruned = ""
    score(ctx, group, rollout)


def _settled(ctx: Context, rollout: RolloutState) -> None:
    """Whatever was asked of it, its end was the answer."""
    rollout.pending = ""
    for kind in ("cancel", "park", "resume"):
        ctx.met(f"{kind}:{rollout.id}")


def score(ctx: Context, group: GroupState, rollout: RolloutState) -> None:
    """Ask for the next try at a rollout's score."""
    ctx.place(group, rollout, "scoring")
    rollout.score_tries, rollout.asked_at = rollout.score_tries + 1, ctx.state.outage.num_answers
    ctx.ask(Score(rollout.id, rollout.attempt, rollout.score_tries, group.task_id, rollout.payload))
    slack = 2 * ctx.settings.deadlines.sandbox_s  # queueing for and starting a verifier's sandbox
    ctx.expect(f"score:{rollout.id}", ctx.settings.score_timeout_s + ctx.settings.score_wait_s + slack)


def failed(ctx: Context, group: GroupState, rollout: RolloutState, event: RolloutFailed) -> None:
    """An attempt ended without a payload."""
    rollout.num_tokens = max(rollout.num_tokens, event.num_tokens)
    ctx.met(f"rollout:{rollout.id}")
    cancelling = rollout.pending == "cancelling"
    _settled(ctx, rollout)
    sandboxes.release_all(ctx, rollout)
    if cancelling and rollout.owner == "restart":
        _begin_anew(ctx, group, rollout)
        return
    if cancelling and rollout.owner not in _LATE:
        lose(ctx, group, rollout, rollout.owner)
        return
    owner = _LATE[rollout.owner] if cancelling else event.owner
    message = event.message if owner == event.owner else f"no answer within its deadline ({event.message})"
    attempt_failed(ctx, group, rollout, owner, event.cause, message)


def unwritten(ctx: Context, group: GroupState, rollout: RolloutState) -> None:
    """An attempt ended well, but there was no room for its payload: another life makes it again."""
    ctx.met(f"rollout:{rollout.id}")
    _settled(ctx, rollout)
    sandboxes.release_all(ctx, rollout)
    lose(ctx, group, rollout, "scheduler")


def attempt_failed(
    ctx: Context, group: GroupState, rollout: RolloutState, owner: str, cause: str, message: str
) -> None:
    """Retry the attempt, or lose the rollout."""
    rollout.failures += 1
    rollout.draws += owner != "infrastructure"
    retry = rollout.failures < ctx.settings.queue.max_attempts and ctx.state.phase == "running"
    ctx.note(AttemptFailed(rollout.id, rollout.attempt, owner, cause, message, retry))
    if retry:
        rollout.attempt += 1
        rollout.owner = ""
        start_attempt(ctx, group, rollout)
        return
    ctx.state.last_failure = f"{owner} failure ({cause}) in task {group.task_id}: {message}"
    lose(ctx, group, rollout, owner)


def give_up(
    ctx: Context, group: GroupState, rollout: RolloutState, verdict: Literal["drop", "restart"]
) -> None:
    """Drop a rollout that has grown too old, and its group with it, or begin it anew."""
    if verdict == "restart":
        rollout.num_restarts += 1
        cancel(ctx, rollout, "stale: it begins anew", owner="restart")
        return
    for other in group.rollouts:
        mine = other is rollout
        cancel(
            ctx, other, "stale" if mine else "a member of its group is stale", "stale" if mine else "voided"
        )


def _begin_anew(ctx: Context, group: GroupState, rollout: RolloutState) -> None:
    ctx.note(AttemptFailed(rollout.id, rollout.attempt, "scheduler", "stale", "it was too old", True))
    rollout.attempt += 1
    rollout.owner = ""
    start_attempt(ctx, group, rollout)


def scored(ctx: Context, group: GroupState, rollout: RolloutState, event: Scored) -> None:
    """A score arrived."""
    ctx.met(f"score:{rollout.id}")
    sandboxes.release_all(ctx, rollout)
    outage.answered(ctx, event.judged)
    if rollout.pending == "cancelling":
        ctx.met(f"cancel:{rollout.id}")
        lose(ctx, group, rollout, rollout.owner)
        return
    ctx.place(group, rollout, "scored")
    rollout.reward, rollout.turn_rewards = event.reward, event.turn_rewards
    if group.purpose == "train":
        rewards = ctx.state.rewards
        rewards.append(event.reward)
        lost = any(lost_steps.is_lost_version(ctx.state, *span[:2]) for span in rollout.spans)
        if not lost:  # what collapsed weights earned says nothing of those that were gone back to
            ctx.state.guard.rollout_scored(event.reward, rollout.num_tokens)
        del rewards[: max(0, len(rewards) - ctx.settings.stop.target_window)]


def score_failed(ctx: Context, group: GroupState, rollout: RolloutState, event: ScoreFailed) -> None:
    """A try at scoring failed: try again, never regenerate."""
    ctx.met(f"score:{rollout.id}")
    sandboxes.release_all(ctx, rollout)
    owner = "infrastructure" if event.cause in _NOT_THE_REWARDS else "reward"
    away = event.cause == "judge_away" and not rollout.pending
    if away and outage.wait(ctx, group, rollout.id, rollout.asked_at, event.message):
        ctx.note(AttemptFailed(rollout.id, rollout.attempt, owner, event.cause, event.message, True))
        return
    rollout.score_failures += 1
    retry = rollout.score_failures < ctx.settings.max_score_tries and not rollout.pending
    ctx.note(AttemptFailed(rollout.id, rollout.attempt, owner, event.cause, event.message, retry))
    if retry:
        score(ctx, group, rollout)
        return
    ctx.state.last_failure = f"{owner} failure ({event.cause}) in task {group.task_id}: {event.message}"
    lose(ctx, group, rollout, rollout.owner if rollout.pending else owner)


def cancel(ctx: Context, rollout: RolloutState, reason: str, owner: str = "scheduler") -> None:
    """Ask for an end; the answering event settles it. `owner` is whose fault the end will be."""
    if rollout.pending == "cancelling" or rollout.station in ("scored", "lost"):
        return
    if ctx.state.outage.waiting.get(rollout.id) is False:  # nothing runs that could answer
        found = ctx.find(rollout.id)
        if found is not None:
            lose(ctx, found[0], rollout, owner)
        return
    _settled(ctx, rollout)
    rollout.pending, rollout.owner = "cancelling", owner
    ctx.met(f"rollout:{rollout.id}")
    ctx.ask(Cancel(rollout.id, rollout.attempt, reason))
    ctx.expect(f"cancel:{rollout.id}", ctx.settings.deadlines.cancel_s)


def deadline(ctx: Context, kind: str, rollout_id: str) -> None:
    """A rollout, a score, a pause or a cancellation took too long."""
    found = ctx.find(rollout_id)
    if found is None:
        return
    group, rollout = found
    if kind == "rollout":
        ctx.warn("rollout_timeout", _overdue(ctx, group, rollout))
        waits = bool(_waits_for_sandbox(ctx, rollout))
        cancel(ctx, rollout, "deadline", owner="sandbox" if waits else "environment")
    elif kind in ("park", "resume"):
        ctx.warn(f"{kind}_timeout", f"rollout {rollout.id} of task {group.task_id} did not {kind} in time")
        cancel(ctx, rollout, "deadline", owner="environment")
    elif kind == "score":
        if sandboxes.wait_on(ctx, rollout):
            return
        waits, of = _waits_for_sandbox(ctx, rollout), (rollout.id, rollout.attempt, rollout.score_tries)
        words = f"no answer in time: {waits}" if waits else "no answer in time"
        score_failed(ctx, group, rollout, ScoreFailed(*of, "sandbox" if waits else "timeout", words))
    else:
        _never_ended(ctx, group, rollout)


def _never_ended(ctx: Context, group: GroupState, rollout: RolloutState) -> None:
    """Nothing answered a cancellation: what the attempt holds is taken from it."""
    sandboxes.release_all(ctx, rollout)
    if rollout.owner in _LATE:
        attempt_failed(
            ctx, group, rollout, _LATE[rollout.owner], "timeout", "never returned, not even when cancelled"
        )
    elif rollout.owner == "restart":
        _begin_anew(ctx, group, rollout)
    else:
        lose(ctx, group, rollout, rollout.owner)


def _total_limit(ctx: Context, rollout: RolloutState) -> float:
    return rollout.started_s + rollout.waited_s + _TOTAL_TIMEOUTS * ctx.settings.rollout_timeout_s


def _waits_for_sandbox(ctx: Context, rollout: RolloutState) -> str:
    """Say in words that the rollout waits for a sandbox; "" when it does not."""
    found = (ctx.state.sandboxes.get(name) for name in rollout.sandboxes)
    stages = {sandbox.stage for sandbox in found if sandbox is not None}
    if "wanted" in stages:
        refusal = ctx.state.refusals.reason
        why = f"the provider refuses: {refusal}" if refusal else "sandbox.max_live"
        return f"it waits for a sandbox ({why})"
    return "its sandbox is starting" if "granted" in stages else ""


def _overdue(ctx: Context, group: GroupState, rollout: RolloutState) -> str:
    """Say in words what is known of a rollout whose deadline passed; no more is known than events told."""
    timeout_s = ctx.settings.rollout_timeout_s
    if ctx.now < _total_limit(ctx, rollout):
        what = f"no answer and no tool call ended for {timeout_s:g} s since {rollout.last_sign}"
    else:
        what = (
            f"it had not ended after {_TOTAL_TIMEOUTS * timeout_s:g} s; the last sign was {rollout.last_sign}"
        )
    if waits := _waits_for_sandbox(ctx, rollout):
        what += f"; {waits}"
    return (
        f"rollout {rollout.id} of task {group.task_id} is cancelled: {what} (environment.rollout_timeout_s)"
    )


def fate_of_loss(rollout: RolloutState) -> Fate:
    """Return the ledger's word for a lost rollout."""
    return _FATES.get(rollout.owner, "stopped")


def lose(ctx: Context, group: GroupState, rollout: RolloutState, owner: str) -> None:
    """Let a rollout leave its group; `owner` is whose fault that is."""
    ctx.place(group, rollout, "lost")
    rollout.owner, rollout.pending = owner, ""
