"""The generators' load at this moment, as they told it last."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core import events


@dataclass(slots=True)
class Load:
    """One replica."""

    epoch: int
    number: int  # version that it decodes with
    up: bool = True
    num_running: int | None = None  # None until it told
    num_waiting: int = 0
    kv_used_fraction: float = 0.0
    tokens_per_s: float = 0.0


class ReplicaLoads:
    """Loads by replica name, in the order in which they joined."""

    def __init__(self) -> None:
        self.by_name: dict[str, Load] = {}

    @property
    def num_up(self) -> int:
        """Replicas that are there."""
        return sum(load.up for load in self.by_name.values())

    def feed(self, event: events.Event) -> None:
        """Take an event in; one of an earlier epoch, or of a replica that is lost, changes nothing."""
        match event:
            case events.ReplicaJoined():
                self.by_name[event.replica] = Load(event.epoch, event.number)
            case events.ReplicaChanged():
                if load := self._load(event.replica, event.epoch):
                    load.num_running, load.num_waiting = event.num_running, event.num_waiting
                    load.kv_used_fraction, load.tokens_per_s = event.kv_used_fraction, event.tokens_per_s
            case events.ReplicaLost():
                if load := self._load(event.replica, event.epoch):
                    load.up, load.num_running = False, None
            case events.VersionApplied():
                if load := self._load(event.replica, event.epoch):
                    load.number = event.number
            case _:
                pass

    def _load(self, replica: str, epoch: int) -> Load | None:
        load = self.by_name.get(replica)
        return load if load is not None and load.epoch == epoch and load.up else None
