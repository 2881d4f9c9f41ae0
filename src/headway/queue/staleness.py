"""Staleness on three levels: how old a token, a rollout and a sandbox's state are, and what follows.

Step s trains from version s - 1, so a token of version n is s - 1 - n steps old, queue time included. The
trajectory level counts from a rollout's first token, the environment level between the version that acts
and the oldest version whose tool calls shaped the sandbox it acts on.
Invariant: no token beyond the bound reaches the gradient; down-weighting acts below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headway.core.settings import Problem, setting
from headway.queue import choice, lost_steps
from headway.queue.lost_steps import age

if TYPE_CHECKING:
    from headway.core.events import TurnEnded
    from headway.core.records import VersionSpan
    from headway.queue.context import Context
    from headway.queue.settings import SchedulerSettings
    from headway.queue.state import GroupState, RolloutState, State


@dataclass(frozen=True, slots=True)
class StalenessSettings:
    """Section [staleness]: what happens to rollouts with old parts. The hard bound is queue.bound."""

    token: Literal["drop", "mask"] = setting(
        "drop",
        "Tokens older than queue.bound: drop gives up the rollout and voids its group; mask keeps both and "
        "trains on the younger tokens only.",
    )
    down_weight_from: int = setting(
        -1,
        "Rollouts whose oldest trained token is older than this weigh less in the loss; -1 for never.",
        ge=-1,
    )
    down_weight: float = setting(
        0.8, "Weight of a rollout for each step of age beyond down_weight_from, multiplied.", gt=0, le=1
    )
    trajectory_bound: int = setting(
        -1, "Largest age of a rollout's first token, in steps; -1 for none.", ge=-1
    )
    trajectory: Literal["drop", "restart"] = setting(
        "drop",
        "A rollout beyond trajectory_bound: drop gives it up and voids its group; restart begins it anew "
        "once, while it is still running.",
    )
    environment_bound: int = setting(
        -1,
        "Largest age of a sandbox's state against the version that acts on it, in steps; -1 for none.",
        ge=-1,
    )
    environment: Literal["mask", "drop", "restart"] = setting(
        "mask",
        "A rollout beyond environment_bound: mask leaves what was sampled on such a sandbox out of the loss; "
        "drop and restart as for trajectory.",
    )

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        if self.trajectory_bound == 0 and self.trajectory == "restart":
            yield Problem(
                "trajectory_bound",
                0,
                "a restart takes longer than a step, so trajectory_bound = 0 would restart everything",
                "Use 1 or more, or trajectory = drop.",
            )


# --- ages


def oldest(state: State, spans: Sequence[VersionSpan]) -> int:
    """Return the age of the oldest token in these spans."""
    return max((age(state, span.lineage, span.number) for span in spans), default=0)


def masked_versions(
    settings: SchedulerSettings, state: State, rollout: RolloutState
) -> tuple[tuple[int, int], ...]:
    """Return the versions (lineage, number) whose tokens of this rollout may not be trained."""
    rule = settings.staleness
    found: dict[tuple[int, int], None] = {}
    shaped = rollout.shaped_by
    for span in rollout.spans:
        version = (span.lineage, span.number)
        old = rule.token == "mask" and age(state, *version) > settings.queue.bound
        inherits = (
            rule.environment == "mask"
            and rule.environment_bound >= 0
            and shaped is not None
            and age(state, *shaped) - age(state, *version) > rule.environment_bound
        )
        before = settings.partial.train == "newest" and rollout.resumed_at is not None
        if old or inherits or (before and age(state, *version) > age(state, *rollout.resumed_at)):  # pyright: ignore
            found[version] = None
    return tuple(found)


def weight(settings: SchedulerSettings, oldest_age: int) -> float:
    """Return what a rollout's tokens weigh in the loss, 1 for a fresh one."""
    rule = settings.staleness
    if rule.down_weight_from < 0:
        return 1.0
    return rule.down_weight ** max(0, oldest_age - rule.down_weight_from)


# --- the sandbox's state


def acted(ctx: Context, rollout: RolloutState, event: TurnEnded) -> None:
    """An answer is complete: how old was the sandbox's state that it acted on?"""
    spans = event.spans
    if not spans:
        return
    state = ctx.state
    first = spans[0]
    least = most = age(state, first[0], first[1])
    for span in spans[1:]:
        old = age(state, span[0], span[1])
        if old > most:
            first, most = span, old
        elif old < least:
            least = old
    rollout.newest_turn = (first[0], first[1])
    if rollout.shaped_by is not None:
        lineage, number = rollout.shaped_by
        inherited = age(state, lineage, number) - least
        if inherited > rollout.environment_age:
            rollout.environment_age = inherited


def shaped(rollout: RolloutState) -> None:
    """A tool call of the newest answer ended: its version shaped the sandbox from now on."""
    if rollout.shaped_by is None:
        rollout.shaped_by = rollout.newest_turn


# --- what follows


def verdict(ctx: Context, rollout: RolloutState) -> Literal["", "drop", "restart"]:
    """Return what a rollout's age asks for: nothing, giving it up, or beginning it anew."""
    state, rule, bound = ctx.state, ctx.settings.staleness, ctx.settings.queue.bound
    if not rollout.spans:
        return ""
    first = rollout.spans[0]
    oldest_age = age(state, first[0], first[1])
    for span in rollout.spans[1:]:
        old = age(state, span[0], span[1])
        if old > oldest_age:
            oldest_age = old
    if oldest_age <= bound and rule.trajectory_bound < 0 and rule.environment_bound < 0:
        return ""
    wanted: list[Literal["drop", "restart"]] = []
    if rule.token == "drop" and oldest_age > bound:
        wanted.append("drop")
    if 0 <= rule.trajectory_bound < age(state, first.lineage, first.number):
        wanted.append(rule.trajectory)
    if rule.environment != "mask" and 0 <= rule.environment_bound < rollout.environment_age:
        wanted.append(rule.environment)
    if not wanted:
        return ""
    return "drop" if "drop" in wanted or rollout.num_restarts else "restart"


def drop_stale(ctx: Context) -> None:
    """Void queued groups that the next step may not train on any more.

    Ages grow with steps alone: one look at each group a step, the first one when it is queued.
    """
    state = ctx.state
    moment = (state.lineage, state.step)
    if ctx.index.judged_at == moment:
        return
    ctx.index.judged_at = moment
    for group in ctx.index.on("queued"):
        judge_queued(ctx, group)


def judge_queued(ctx: Context, group: GroupState) -> None:
    """Void a queued group with a member that is too old; not one that the trainer has already."""
    if group.streamed:
        return
    stale = [rollout.id for rollout in group.rollouts if verdict(ctx, rollout)]
    nothing = all(_all_masked(ctx, rollout) for rollout in group.rollouts)
    if not stale and not nothing:
        return
    for rollout in group.rollouts:
        if rollout.id in stale or nothing:
            ctx.settle(rollout, "stale")
        else:
            ctx.settle(rollout, "voided", "a member of its group was stale")
    ctx.drop_group(group)
    if lost_steps.is_lost(ctx.state, group):
        lost_steps.ask_again(ctx.state, group)
    else:
        ctx.state.stale_groups += 1
        choice.dropped(ctx, group)


def _all_masked(ctx: Context, rollout: RolloutState) -> bool:
    masked = set(masked_versions(ctx.settings, ctx.state, rollout))
    return bool(masked) and all((span.lineage, span.number) in masked for span in rollout.spans)
