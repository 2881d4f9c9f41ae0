"""Settings of early pruning; apart from the rule, which imports the settings of all rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headway.core.errors import UserError
from headway.core.hooks import load_function
from headway.core.settings import Problem, setting


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
        None,
        "Prune a rollout in whose newest tokens at least this share of 4-grams repeats one before (0 to 1; a "
        "loop is near 1).",
        gt=0,
        le=1,
    )
    repetition_window: int = setting(64, "How many newest tokens of an answer that is measured over.", ge=8)
    environment: bool = setting(
        False, "Prune a rollout when its environment says so in the middle of it (a verdict below 0)."
    )
    value_hook: str = setting(
        "",
        "Your own function that predicts a rollout's reward at each turn's end: an import path "
        "module:function, or file.py:function with a path relative to the config file.",
    )
    value_threshold: float | None = setting(
        None, "Prune a rollout whose reward value_hook predicts to be below this."
    )
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

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold; a user's own function is loaded."""
        if self.value_threshold is not None and not self.value_hook:
            rule = "value_threshold needs value_hook: nothing else predicts a reward"
            yield Problem(
                "value_threshold", self.value_threshold, rule, "Set it, or leave value_threshold out."
            )
        if self.value_hook:
            try:
                load_function(self.value_hook, ["record"])
            except UserError as error:
                yield Problem("value_hook", self.value_hook, error.rule, error.remedy)
