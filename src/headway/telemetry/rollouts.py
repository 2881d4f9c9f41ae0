"""One rollout's way from its start to its score, and where its time went.

Only the final attempt counts: a new StartRollout begins anew, and an event of another attempt is left out.
Invariant: the parts of a finished rollout's latency sum to its end-to-end latency.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.commands import StartRollout
from headway.core.events import (
    RolloutEnded,
    RolloutResumed,
    SandboxReady,
    SandboxWanted,
    Scored,
    ToolEnded,
    TurnEnded,
)
from headway.core.records import Latency, Purpose


@dataclass(slots=True)
class _Open:
    """An attempt in flight."""

    start: StartRollout
    started: float
    parked_s: float = 0.0
    sandbox_start_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    tool_s: float = 0.0
    turns: set[int] = field(default_factory=set[int])  # ended; a repeated event counts once
    calls: set[int] = field(default_factory=set[int])  # likewise
    first_versions: dict[int, int] = field(default_factory=dict[int, int])  # turn -> its oldest version
    oldest_tool_version: int | None = None
    environment_staleness: list[int] = field(default_factory=list[int])
    ended: RolloutEnded | None = None


@dataclass(frozen=True, slots=True)
class FinishedRollout:
    """A scored rollout.

    `environment_staleness` has one entry for each turn that acts on a sandbox which earlier tool calls
    shaped: the version that finished the turn minus the oldest version whose tool calls shaped it, in steps.
    """

    rollout: str
    group: str
    purpose: Purpose
    t: float  # when it was scored, seconds
    reward: float
    latency: Latency
    end_to_end_s: float  # StartRollout of the final attempt to Scored
    num_tokens: int  # sampled
    num_context_tokens: int  # all, the environment's own included
    num_turns: int
    num_tool_calls: int
    truncated: bool
    environment_staleness: tuple[int, ...]
    metrics: dict[str, float] = field(
        default_factory=dict[str, float]
    )  # of the reward, the environment's own


class Rollouts:
    """Follows attempts in flight."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._verifier_sandboxes: set[str] = set()

    def started(self, t: float, command: StartRollout) -> None:
        """An attempt starts, in place of an earlier one."""
        self._open[command.rollout] = _Open(command, t)

    def sandbox_wanted(self, event: SandboxWanted) -> None:
        """Remember which sandboxes are a verifier's: their start is told by Scored."""
        if event.purpose == "verify":
            self._verifier_sandboxes.add(event.sandbox)

    def sandbox_ready(self, event: SandboxReady) -> None:
        """A sandbox runs."""
        if event.sandbox in self._verifier_sandboxes:
            self._verifier_sandboxes.discard(event.sandbox)
        elif attempt := self._attempt(event.rollout, event.attempt):
            attempt.sandbox_start_s += event.start_s

    def turn_ended(self, event: TurnEnded) -> None:
        """An answer is complete."""
        attempt = self._attempt(event.rollout, event.attempt)
        if attempt is None or event.turn in attempt.turns:
            return
        attempt.turns.add(event.turn)
        attempt.prefill_s += event.prefill_s
        attempt.decode_s += event.decode_s
        if event.spans:
            attempt.first_versions[event.turn] = min(span.number for span in event.spans)
            if attempt.oldest_tool_version is not None:
                newest = event.spans[-1].number
                attempt.environment_staleness.append(newest - attempt.oldest_tool_version)

    def tool_ended(self, event: ToolEnded) -> bool:
        """A tool call is over; say whether it is one of an attempt in flight that was not told before."""
        attempt = self._attempt(event.rollout, event.attempt)
        if attempt is None or event.call in attempt.calls:
            return False
        attempt.calls.add(event.call)
        attempt.tool_s += event.duration_s
        version = attempt.first_versions.get(event.turn) if event.where == "sandbox" else None
        if version is not None:
            known = attempt.oldest_tool_version
            attempt.oldest_tool_version = version if known is None else min(known, version)
        return True

    def resumed_rollout(self, event: RolloutResumed) -> None:
        """A parked rollout goes on."""
        if attempt := self._attempt(event.rollout, event.attempt):
            attempt.parked_s += event.parked_s

    def ended(self, event: RolloutEnded) -> None:
        """The environment is done."""
        if attempt := self._attempt(event.rollout, event.attempt):
            attempt.ended = event

    def failed(self, rollout: str, attempt: int) -> None:
        """The attempt left nothing."""
        if self._attempt(rollout, attempt):
            del self._open[rollout]

    def scored(self, t: float, event: Scored) -> FinishedRollout | None:
        """The attempt is finished; None when it is not the one in flight."""
        attempt = self._attempt(event.rollout, event.attempt)
        if attempt is None or attempt.ended is None:
            return None
        del self._open[event.rollout]
        ended, start = attempt.ended, attempt.start
        whole = t - attempt.started
        return FinishedRollout(
            rollout=start.rollout,
            group=start.group,
            purpose=start.purpose,
            t=t,
            reward=event.reward,
            latency=_latency(attempt, event, whole),
            end_to_end_s=whole,
            num_tokens=ended.num_tokens,
            num_context_tokens=ended.num_prompt_tokens + ended.num_tokens,
            num_turns=ended.num_turns,
            num_tool_calls=ended.num_tool_calls,
            truncated=ended.truncated,
            environment_staleness=tuple(attempt.environment_staleness),
            metrics=event.metrics,
        )

    def resumed(self) -> None:
        """Everything in flight is gone; finished payloads are kept and will be scored."""
        self._open = {name: attempt for name, attempt in self._open.items() if attempt.ended is not None}
        self._verifier_sandboxes.clear()

    def _attempt(self, rollout: str, number: int) -> _Open | None:
        attempt = self._open.get(rollout)
        return attempt if attempt is not None and attempt.start.attempt == number else None


def _latency(attempt: _Open, scored: Scored, whole: float) -> Latency:
    """Split `whole` seconds; what no part explains is the queue's.

    Work that overlapped (branches of one rollout, calls in parallel) can add up to more than the whole; the
    parts are then scaled to it and nothing is left for the queue.
    """
    parts = {
        "parked_s": attempt.parked_s,
        "sandbox_start_s": attempt.sandbox_start_s + scored.sandbox_start_s,
        "prefill_s": attempt.prefill_s,
        "decode_s": attempt.decode_s,
        "tool_s": attempt.tool_s,
        "score_s": max(0.0, scored.duration_s - scored.sandbox_start_s),
    }
    explained = sum(parts.values())
    if explained > whole:
        return Latency(**{name: part * whole / explained for name, part in parts.items()})
    return Latency(queue_s=max(0.0, whole - explained), **parts)
