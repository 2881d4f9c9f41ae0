"""Parked and resumed rollouts: how many stood still, what going on cost, and how they fared.

Outcomes are told by the age of the sandbox's state that a rollout acted on, fresh and resumed ones apart,
so that a run says whether such staleness hurts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.telemetry.depth import Level
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.core.events import RolloutParked, RolloutResumed
    from headway.telemetry.rollouts import FinishedRollout

BUCKETS = ((0, "0"), (1, "1"), (3, "2-3"), (7, "4-7"))  # largest age of each, steps; above: 8+


class Partial:
    """Counts of parking, and outcomes by environment staleness."""

    def __init__(self) -> None:
        self._parked = Level()
        self._names: set[str] = set()  # parked now
        self._resumed: set[str] = set()  # once, since their attempt began
        self._num_asked = 0
        self._num_lost = 0
        self._num_resumed = 0
        self._num_crossed = 0
        self._num_left = 0
        self._num_given_up = 0
        self._recomputed = 0
        self._num_trained_masked = 0
        self._outcomes: dict[tuple[str, str], list[float]] = {}  # (kind, bucket) -> rewards

    def advance(self, t: float) -> None:
        """Time goes on."""
        if self._num_asked or self._num_lost:
            self._parked.advance(t)

    def parked(self, t: float, event: RolloutParked) -> None:
        """A rollout stands still."""
        self._num_asked += event.cause == "asked"
        self._num_lost += event.cause == "engine_lost"
        self._parked.advance(t)
        self._num_given_up += event.rollout in self._names
        self._names.add(event.rollout)
        self._parked.set(len(self._names))

    def resumed(self, event: RolloutResumed) -> None:
        """It goes on."""
        self._num_resumed += 1
        self._recomputed += event.num_recomputed_tokens
        self._resumed.add(event.rollout)
        self._leave(event.rollout)

    def started(self, rollout: str, partial: str) -> None:
        """An attempt begins, perhaps from where an earlier life parked it."""
        self._resumed.discard(rollout)
        if partial:
            self._num_resumed += 1
            self._resumed.add(rollout)
        elif rollout in self._names:
            self._num_given_up += 1
        self._leave(rollout)

    def ended(self, rollout: str) -> None:
        """An attempt came to its own end; one that was parked had nothing left to interrupt."""
        self._num_crossed += rollout in self._names
        self._leave(rollout)

    def gone(self, rollout: str, fate: str) -> None:
        """A rollout was settled; one that is still parked goes no further."""
        if fate == "carried":
            return  # parked until a later life takes it up
        if rollout in self._names:
            self._num_left += fate == "stopped"
            self._num_given_up += fate != "stopped"
        self._leave(rollout)

    def _leave(self, rollout: str) -> None:
        self._names.discard(rollout)
        self._parked.set(len(self._names))

    def finished(self, rollout: FinishedRollout) -> None:
        """A train rollout was scored."""
        kind = "resumed" if rollout.rollout in self._resumed else "fresh"
        self._resumed.discard(rollout.rollout)
        age = max(rollout.environment_staleness, default=0)
        bucket = next((name for limit, name in BUCKETS if age <= limit), "8+")
        self._outcomes.setdefault((kind, bucket), []).append(rollout.reward)

    def released(self, num_masked_tokens: int) -> None:
        """A batch left with so many tokens masked for their age."""
        self._num_trained_masked += num_masked_tokens

    def summary(self) -> dict[str, object]:
        """Return the rl.partial keys."""
        outcomes: dict[str, dict[str, dict[str, float | None]]] = {"fresh": {}, "resumed": {}}
        for bucket in (*(name for _, name in BUCKETS), "8+"):
            for kind, table in outcomes.items():
                if rewards := self._outcomes.get((kind, bucket)):
                    mean = ratio(sum(rewards), len(rewards))
                    table[bucket] = {"num_rollouts": len(rewards), "mean_reward": mean}
        return {
            "rl.partial.parked": self._parked.summary(),
            "rl.partial.num_parked": self._num_asked,
            "rl.partial.num_engine_lost": self._num_lost,
            "rl.partial.num_resumed": self._num_resumed,
            "rl.partial.num_crossed": self._num_crossed,
            "rl.partial.num_given_up": self._num_given_up,
            "rl.partial.num_still_parked": self._num_left + len(self._names),
            "rl.partial.recomputed_tokens": self._recomputed,
            "rl.partial.masked_tokens": self._num_trained_masked,
            "rl.partial.outcomes": outcomes,
        }
