"""Acceptance: which settled groups are worth training on.

Three filters, in this order: groups whose advantages are all 0, groups whose solved share is outside the
band, and groups that the user's own verdict drops. The verdict is asked for by the driver and comes with
GroupSignal; none of the user's code runs here. What is dropped is replaced within the refill budget, and a
run in which everything is dropped ends by name (no_signal).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.queue import choice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headway.core.events import GroupSignal
    from headway.queue.context import Context
    from headway.queue.state import GroupState

_WORDS = {
    "zero_advantage": "zero advantage",
    "band": "solve rate outside the band",
    "verdict": "by acceptance.verdict",
    "pruned": "with too few rollouts left after pruning",
}
_REMEDIES = {
    "zero_advantage": "All rollouts of a group had one reward: headway rollouts RUN --best --show has what "
    "was said. The tasks are too easy or too hard for this model: change their difficulty (environment.args, "
    "[curriculum]), give credit for parts, or raise queue.group_size. If the reward fell before, the "
    "training broke the model: lower trainer.learning_rate",
    "band": "Widen acceptance.band_low and acceptance.band_high, or change the difficulty of the tasks "
    "(environment.args, [curriculum])",
    "verdict": "Your acceptance.verdict keeps next to nothing",
    "pruned": "Prune less: see the settings of [pruning]",
}


def rejection(ctx: Context, group: GroupState, event: GroupSignal) -> tuple[str, str] | None:
    """Return why a group with these advantages is dropped, as a short name and in words; None keeps it."""
    if ctx.settings.queue.drop_zero_advantage and not any(value for _, value in event.advantages):
        return "zero_advantage", "zero advantage"
    rule = ctx.settings.acceptance
    share = choice.num_solved(ctx, group.rollouts) / len(group.rollouts)
    if not rule.band_low <= share <= rule.band_high:
        return "band", f"solve rate {share:.3g} is outside {rule.band_low:g} to {rule.band_high:g}"
    if not event.keep:
        return "verdict", f"verdict: {event.reason}" if event.reason else "verdict"
    return None


def reasons_in_words(reasons: Mapping[str, int]) -> str:
    """Return how many groups were dropped for what, most frequent first."""
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{num} {_WORDS[reason]}" for reason, num in ordered)


def remedy(reasons: Mapping[str, int]) -> str:
    """Return what to do about the most frequent reason."""
    return _REMEDIES[max(sorted(reasons), key=lambda reason: reasons[reason], default="zero_advantage")]
