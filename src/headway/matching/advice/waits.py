"""Where rollouts wait that no part of their latency tells apart: an engine's line, sandboxes, the scorers.

Of finished train rollouts and their final attempts alone, as the latencies are, so that shares of one are
shares of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core import commands, events

if TYPE_CHECKING:
    from headway.telemetry.records import Entry


@dataclass(slots=True)
class _Open:
    """An attempt on its way."""

    engine_s: float = 0.0
    grant_s: float = 0.0
    ended: float | None = None  # when its environment was done


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
    _open: dict[str, _Open] = field(default_factory=dict[str, _Open])
    _wanted: dict[str, float] = field(default_factory=dict[str, float])  # sandbox -> since when

    def feed(self, entry: Entry) -> None:
        """Take an entry in that changed something."""
        event, t = entry.event, entry.t
        match event:
            case events.TurnEnded():
                if (attempt := self._open.get(event.rollout)) is not None:
                    attempt.engine_s += event.waiting_s
            case events.SandboxWanted() if event.purpose == "rollout":
                self._wanted[event.sandbox] = t
            case events.RolloutEnded():
                if (attempt := self._open.get(event.rollout)) is not None:
                    attempt.ended = t
            case events.RolloutFailed():
                self._open.pop(event.rollout, None)
            case events.Scored():
                self._scored(t, event)
            case events.RunResumed():
                self._open = {name: one for name, one in self._open.items() if one.ended is not None}
                self._wanted.clear()
            case _:
                pass
        for command in entry.commands:
            if isinstance(command, commands.StartRollout) and command.purpose == "train":
                self._open[command.rollout] = _Open()
            elif isinstance(command, commands.GrantSandbox):
                since = self._wanted.pop(command.sandbox, None)
                attempt = self._open.get(command.rollout)
                if since is not None and attempt is not None:
                    attempt.grant_s += t - since

    def _scored(self, t: float, event: events.Scored) -> None:
        attempt = self._open.pop(event.rollout, None)
        if attempt is None or attempt.ended is None:
            return
        self.engine_s += attempt.engine_s
        self.grant_s += attempt.grant_s
        self.score_s += max(0.0, t - attempt.ended - event.duration_s)
