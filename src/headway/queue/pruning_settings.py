"""Settings of early pruning; apart from the rule, which imports the settings of all rules."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class PruningSettings:
    """Section [pruning]: which rollouts are ended early, because they will not help. All off by default.

    What is pruned leaves its group as a lost member does; see docs/async.md for the bias of each rule.
    """

    max_tokens: int = setting(
        0,
        "Tokens that a rollout may sample in all its turns; past it the rollout is pruned. 0 sets no bound.",
        ge=0,
    )
    max_repetition: float | None = setting(
        None, "Prune a rollout whose newest tokens repeat themselves more than this (0 to 1).", ge=0, le=1
    )
    environment: bool = setting(
        False, "Prune a rollout when its environment says so in the middle of it (a verdict below 0)."
    )
    value_threshold: float | None = setting(None, "Prune a rollout whose predicted reward is below this.")
    min_turns: int = setting(1, "Answers that a rollout has given before a predicted reward counts.", ge=0)
    dead_groups: bool = setting(
        False,
        "Prune what is left of a group that can no longer be trained: too few members left, or one lost "
        "with queue.on_failed_rollout = void. Biases nothing, for the group would be dropped anyway.",
    )
    audit: float = setting(
        0.0,
        "Share of the rollouts to be pruned that is let finish instead, to measure how often pruning is "
        "wrong (rl.prune.wrong_fraction).",
        ge=0,
        le=1,
    )
