"""How each generator replica fared: its speed, its memory, its line."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from headway.core import events
from headway.telemetry.tails import ratio

_MIN_TOKENS = 8  # of an answer whose speed is told: below, the first token's time is most of it


@dataclass(slots=True)
class ReplicaSeen:
    """One replica over all its lives."""

    max_running: int = 0
    token_s: array[float] = field(default_factory=lambda: array("d"))  # of each longer answer
    num_turns: int = 0
    num_tokens: int = 0  # sampled
    context_tokens: int = 0  # put before the answers, summed
    num_told: int = 0  # times that it told its load
    kv_used: float = 0.0  # sums over these
    running: float = 0.0
    waiting: float = 0.0
    preemptions: dict[int, int] = field(default_factory=dict[int, int])  # by epoch

    @property
    def num_preemptions(self) -> int:
        """Times that a running request gave way."""
        return sum(self.preemptions.values())


class Replicas:
    """All of them, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, ReplicaSeen] = {}

    def feed(self, event: events.Event) -> None:
        """Take an event in that changed something."""
        match event:
            case events.ReplicaJoined():
                self._of(event.replica).max_running = event.max_running
            case events.ReplicaChanged():
                seen = self._of(event.replica)
                seen.preemptions[event.epoch] = event.num_preemptions
                if event.num_running or event.num_waiting:  # idle ones say nothing of what holds them
                    seen.num_told += 1
                    seen.kv_used += event.kv_used_fraction
                    seen.running += event.num_running
                    seen.waiting += event.num_waiting
            case events.TurnEnded():
                seen = self._of(event.replica)
                num_tokens = sum(span.num_tokens for span in event.spans)
                seen.num_turns += 1
                seen.num_tokens += num_tokens
                seen.context_tokens += event.num_prompt_tokens
                if num_tokens >= _MIN_TOKENS:
                    seen.token_s.append(event.decode_s / num_tokens)
            case _:
                pass

    @property
    def slots(self) -> int:
        """Requests that all of them decode at once."""
        return sum(seen.max_running for seen in self.by_name.values())

    @property
    def num_turns(self) -> int:
        """Answers."""
        return sum(seen.num_turns for seen in self.by_name.values())

    @property
    def num_preemptions(self) -> int:
        """Times that a running request gave way."""
        return sum(seen.num_preemptions for seen in self.by_name.values())

    def mean(self, what: str) -> float | None:
        """Return the mean of `kv_used`, `running` or `waiting` over what busy ones told, None without."""
        seen = self.by_name.values()
        return ratio(sum(getattr(one, what) for one in seen), sum(one.num_told for one in seen))

    def _of(self, name: str) -> ReplicaSeen:
        return self.by_name.setdefault(name, ReplicaSeen())
