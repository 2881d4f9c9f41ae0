"""What early pruning threw away, and how often it was wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.core.notes import PruneAudited, RolloutSettled

SOURCES = ("length", "repetition", "environment", "value", "user", "group")


class Pruning:
    """Pruned train rollouts by whose verdict it was, and the audits of those that were let finish."""

    def __init__(self, solved_reward: float) -> None:
        self._solved_reward = solved_reward
        self._rollouts = dict.fromkeys(SOURCES, 0)
        self._tokens = dict.fromkeys(SOURCES, 0)
        self._num_audited = 0
        self._num_wrong = 0
        self._num_solved = 0

    def settled(self, note: RolloutSettled) -> None:
        """A rollout ended."""
        if note.fate == "pruned" and note.reason in self._rollouts:
            self._rollouts[note.reason] += 1
            self._tokens[note.reason] += note.num_tokens

    def audited(self, note: PruneAudited) -> None:
        """A rollout that would have been pruned was scored."""
        self._num_audited += 1
        self._num_wrong += note.would_have_been_wrong
        self._num_solved += note.reward >= self._solved_reward

    def summary(self, mean_finished_tokens: float | None) -> dict[str, object]:
        """Return the rl.prune keys; the mean length of finished rollouts says what was discarded."""
        keys: dict[str, object] = {}
        for source in SOURCES:
            keys[f"rl.prune.{source}.rollouts"] = self._rollouts[source]
            keys[f"rl.prune.{source}.tokens"] = self._tokens[source]
        mean = ratio(sum(self._tokens.values()), sum(self._rollouts.values()))
        known = mean is not None and mean_finished_tokens is not None
        keys["rl.prune.length_ratio"] = ratio(mean or 0.0, mean_finished_tokens or 0.0) if known else None
        keys["rl.prune.audited"] = self._num_audited
        keys["rl.prune.wrong_fraction"] = ratio(self._num_wrong, self._num_audited)
        keys["rl.prune.audited_solved_fraction"] = ratio(self._num_solved, self._num_audited)
        return keys
