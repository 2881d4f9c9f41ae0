"""Early pruning: end a rollout that will not help, before it has cost everything it would.

Who may ask for it: the length budget, repetition, the environment's own verdict, a learned value, a user, and
a group that can carry no signal any more. The answer to the Cancel settles the rollout as pruned; should the
rollout's own end cross it, nothing is saved by dropping it, so it counts (not when a user asked).

What is pruned leaves its group; it is neither a reward nor a failure. That biases what is trained: a length
budget takes away long rollouts, a good value model takes away the failures that a group's advantages need.
A share of the rollouts to be pruned is let finish, chosen by a hash of the run's seed and the rollout's id,
and compared with its group: an audit.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from headway.core.notes import PruneAudited
from headway.queue import rollouts
from headway.queue.state import ACTIVE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headway.core.events import VerdictGiven
    from headway.queue.context import Context
    from headway.queue.state import GroupState, PruneSource, RolloutState


def after_turn(ctx: Context, group: GroupState, rollout: RolloutState) -> None:
    """An answer is complete: look at the length budget."""
    limit = ctx.settings.pruning.max_tokens
    if limit and rollout.num_tokens > limit:
        prune(ctx, group, rollout, "length")


def verdict(ctx: Context, group: GroupState, rollout: RolloutState, event: VerdictGiven) -> None:
    """Somebody who watches the rollout said something of it."""
    settings = ctx.settings.pruning
    match event.source:
        case "length":
            against = bool(settings.max_tokens) and event.value > settings.max_tokens
        case "repetition":
            against = settings.max_repetition is not None and event.value >= settings.max_repetition
        case "environment":
            against = settings.environment and event.value < 0
        case "value":
            threshold = settings.value_threshold
            against = (
                threshold is not None and event.value < threshold and rollout.num_turns >= settings.min_turns
            )
        case "user":
            against = event.value < 0
    if against:
        prune(ctx, group, rollout, event.source)


def after_loss(ctx: Context, group: GroupState) -> None:
    """A member is lost: nobody needs the others of a group that cannot be trained."""
    if not ctx.settings.pruning.dead_groups or group.purpose != "train" or group.stage != "running":
        return
    queue = ctx.settings.queue
    failed = any(r.station == "lost" and not r.pruned for r in group.rollouts)
    left = sum(r.station != "lost" and not r.pruned for r in group.rollouts)
    needed = group.target or len(group.rollouts)
    void = failed and queue.on_failed_rollout == "void" and left < needed
    if void or left < min(2, needed):
        for rollout in group.rollouts:
            prune(ctx, group, rollout, "group")


def prune(ctx: Context, group: GroupState, rollout: RolloutState, source: PruneSource) -> None:
    """End a rollout early, or note that it would have been and let it finish."""
    if (
        ctx.state.phase != "running"
        or group.purpose != "train"
        or rollout.station not in ACTIVE
        or rollout.pending == "cancelling"
        or (rollout.audited and source not in ("user", "group"))
    ):
        return
    if source not in ("user", "group") and _is_audited(ctx, rollout):
        rollout.audited, rollout.audited_after = source, rollout.num_turns
        return
    rollouts.cancel(ctx, rollout, f"pruned: {source}", owner="pruned")
    rollout.pruned = source


def report_audits(ctx: Context, scored: Sequence[RolloutState]) -> None:
    """A group is complete: say how its rollouts ended that would have been pruned."""
    audited = [rollout for rollout in scored if rollout.audited]
    if audited:
        mean = sum(rollout.reward for rollout in scored) / len(scored)
        for rollout in audited:
            ctx.note(PruneAudited(rollout.id, rollout.audited, rollout.reward, rollout.reward > mean))


def _is_audited(ctx: Context, rollout: RolloutState) -> bool:
    share = ctx.settings.pruning.audit
    if not share:
        return False
    digest = hashlib.sha256(f"{ctx.settings.seed}/{rollout.id}/audit".encode()).digest()
    return int.from_bytes(digest[:6], "little") < share * (1 << 48)
