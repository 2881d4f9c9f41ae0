"""The engines' memory in the simulated driver: how full the KV cache is, and what happens when it is over.

Wakes up every `sample_s`: tells each replica's load as ReplicaChanged, and, like an engine that has run out
of memory, preempts its youngest requests until the others fit. A preempted request loses its KV and stands
first in line; its context is computed anew when it is served again. That is a preemption storm's cost: the
same tokens are prefilled again and again. What is not decoding holds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core.events import ReplicaChanged

if TYPE_CHECKING:
    from headway.matching.roles import SimReplica
    from headway.matching.simulated_rollouts import SimRollouts, Stage


class SimMemory:
    """Watches the replicas of one simulated life; does nothing where `kv_tokens` is 0."""

    def __init__(self, stage: Stage, rollouts: SimRollouts) -> None:
        self._stage = stage
        self._rollouts = rollouts
        self.num_preemptions = 0
        self._preempted: dict[str, int] = {}  # by replica

    def watch(self) -> None:
        """Begin to measure."""
        if self._stage.sim.kv_tokens:
            self._stage.at(self._stage.sim.sample_s, self._measure)

    def _measure(self) -> None:
        for replica in self._rollouts.replicas.values():
            if not replica.dead:
                self._look(replica)
        self._stage.at(self._stage.sim.sample_s, self._measure)

    def _look(self, replica: SimReplica) -> None:
        capacity = self._stage.sim.kv_tokens
        resident = self._rollouts.resident(replica)
        used = sum(resident.values())
        event = ReplicaChanged(
            replica.name,
            replica.epoch,
            replica.running,
            len(replica.line),
            min(1.0, used / capacity),
            replica.running / self._stage.sim.token_s,
            self._preempted.get(replica.name, 0),
        )
        while used > capacity and len(resident) > 1:
            _, youngest = max((self._rollouts.begun(name), name) for name in resident)
            used -= resident.pop(youngest)
            self.num_preemptions += 1
            self._preempted[replica.name] = self._preempted.get(replica.name, 0) + 1
            self._rollouts.preempt(youngest)
        self._stage.later(0.0, event)
