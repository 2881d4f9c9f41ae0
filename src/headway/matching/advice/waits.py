"""Where rollouts wait that no part of their latency tells apart: an engine's line, sandboxes, the scorers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core import commands, events

if TYPE_CHECKING:
    from headway.telemetry.records import Entry


@dataclass(slots=True)
class Waits:
    """Sums over train rollouts, seconds.

    Attributes:
        engine_s: in line for a slot of a replica.
        grant_s: for a place among the sandboxes.
        score_s: for the reward station.
    """

    engine_s: float = 0.0
    grant_s: float = 0.0
    score_s: float = 0.0
    _train: set[str] = field(default_factory=set[str])
    _wanted: dict[str, float] = field(default_factory=dict[str, float])  # sandbox -> since when
    _ended: dict[str, float] = field(default_factory=dict[str, float])  # rollout -> since when

    def feed(self, entry: Entry) -> None:
        """Take an entry in that changed something."""
        event, t = entry.event, entry.t
        match event:
            case events.TurnEnded() if event.rollout in self._train:
                self.engine_s += event.waiting_s
            case events.SandboxWanted() if event.purpose == "rollout" and event.rollout in self._train:
                self._wanted[event.sandbox] = t
            case events.RolloutEnded() if event.rollout in self._train:
                self._ended[event.rollout] = t
            case events.Scored():
                since = self._ended.pop(event.rollout, None)
                if since is not None:
                    self.score_s += max(0.0, t - since - event.duration_s)
                self._train.discard(event.rollout)
            case events.RunResumed():
                self._train &= self._ended.keys()
                self._wanted.clear()
            case _:
                pass
        for command in entry.commands:
            if isinstance(command, commands.StartRollout) and command.purpose == "train":
                self._train.add(command.rollout)
            elif isinstance(command, commands.GrantSandbox):
                since = self._wanted.pop(command.sandbox, None)
                self.grant_s += t - since if since is not None else 0.0
