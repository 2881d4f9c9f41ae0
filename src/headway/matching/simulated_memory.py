"""Measurements of the simulated engines: how full their memory is, and how many requests run and wait.

Wakes up every `sample_s` seconds and tells each replica's load as ReplicaChanged, as a live engine does. What
happens when memory is full is the replica's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.events import ReplicaChanged

if TYPE_CHECKING:
    from headway.matching.simulated_rollouts import SimRollouts, Stage


class SimMemory:
    """Watches the replicas of one simulated life; does nothing where their memory has no end."""

    def __init__(self, stage: Stage, rollouts: SimRollouts) -> None:
        self._stage = stage
        self._rollouts = rollouts

    @property
    def num_preemptions(self) -> int:
        """Of all replicas that live."""
        return sum(replica.num_preemptions for replica in self._rollouts.replicas.values())

    def watch(self) -> None:
        """Begin to measure."""
        if self._stage.models.engine.kv_tokens and self._stage.faults.sample_s:
            self._stage.at(self._stage.faults.sample_s, self._measure)

    def _measure(self) -> None:
        for replica in self._rollouts.replicas.values():
            if not replica.dead:
                used, tokens_per_s = replica.load()
                event = ReplicaChanged(
                    replica.name,
                    replica.epoch,
                    replica.running,
                    replica.waiting,
                    used,
                    tokens_per_s,
                    replica.num_preemptions,
                )
                self._stage.later(0.0, event)
        self._stage.at(self._stage.faults.sample_s, self._measure)
