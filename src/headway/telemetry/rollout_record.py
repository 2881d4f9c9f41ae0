"""What is known of one rollout, read off the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from headway.core.notes import Fate
from headway.core.records import Latency, Purpose, VersionSpan

State = Literal["running", "scoring", "scored", "queued", "training"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt, or a try at its score, that ended without a result."""

    attempt: int
    owner: str  # whose fault: infrastructure, environment, reward or scheduler
    cause: str  # a short name
    message: str
    retried: bool  # whether another followed


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One rollout. What the journal does not tell, or not yet, is None, empty or 0 as each field says.

    Everything from `attempt` on is of the newest attempt; times are seconds since the run began, stops left
    out. After a rollback or a resume, `step` and the fields that go with it are of the surviving weights.
    """

    rollout: str
    group: str  # the one that it is in at last, where late members went on as a group of their own
    task_id: str
    level: int  # difficulty, 0 where the environment has none
    source: str  # task source, "" where the run has only one
    purpose: Purpose
    fate: Fate | None  # None while it goes on
    reason: str  # of the fate, "" for most
    attempt: int  # from 0
    started_s: float
    ended_s: float | None  # when it was scored or failed
    payload: str  # reference to its tokens, "" before it ended and when it failed
    reward: float | None
    reasons: tuple[str, ...]  # of the reward
    reward_metrics: dict[str, float]  # the environment's own measures
    turn_rewards: tuple[float, ...]  # one an answer, or empty
    advantage: float | None
    turn_advantages: tuple[float, ...]  # one an answer, or empty
    num_prompt_tokens: int | None  # that the environment and the template wrote
    num_tokens: int  # that the policy sampled
    num_turns: int
    num_tool_calls: int
    truncated: bool  # an answer hit a length limit
    spans: tuple[VersionSpan, ...]  # versions of the sampled tokens
    latency: Latency | None  # sums to end_to_end_s; None before it is scored
    end_to_end_s: float | None  # start to score
    step: int | None  # optimizer step that trains or trained on it
    trajectory_staleness: int | None  # age of its first token in that step
    token_staleness: int | None  # age of its oldest trained token there, None where all are masked
    environment_staleness: int | None  # largest age of the sandbox's state that it acted on
    weight: float | None  # of its tokens in the loss, below 1 where staleness weighs it down
    masked: tuple[tuple[int, int], ...]  # versions (lineage, number) that the step left out for their age
    num_masked_tokens: int  # sampled by these
    num_revived: int  # how often its end was taken back, for the step that trained it was lost
    failures: tuple[Failure, ...]  # of all attempts, in order
    audit: str  # whose verdict would have pruned it, had it not been let finish; "" for most
    audit_wrong: bool  # that pruning would have been wrong: its reward is above its group's mean

    @property
    def state(self) -> Fate | State:
        """Its fate, or where it is while it goes on."""
        if self.fate is not None:
            return self.fate
        if self.step is not None:
            return "training"
        if self.reward is not None:
            return "scored" if self.advantage is None else "queued"
        return "scoring" if self.payload else "running"

    @property
    def duration_s(self) -> float | None:
        """How long its newest attempt took, to its score or failure; None while it goes on."""
        return None if self.ended_s is None else self.ended_s - self.started_s

    @property
    def failed(self) -> bool:
        """Whether it, or an attempt before its newest, failed."""
        return bool(self.failures) or (self.fate is not None and self.fate.startswith("failed_"))


@dataclass(slots=True)
class Draft:
    """A RolloutRecord while the journal is read; its fields mean the same."""

    rollout: str
    group: str
    task_id: str
    level: int
    source: str
    purpose: Purpose
    attempt: int
    started_s: float
    fate: Fate | None = None
    reason: str = ""
    ended_s: float | None = None
    payload: str = ""
    reward: float | None = None
    reasons: tuple[str, ...] = ()
    reward_metrics: dict[str, float] = field(default_factory=dict[str, float])
    turn_rewards: tuple[float, ...] = ()
    advantage: float | None = None
    turn_advantages: tuple[float, ...] = ()
    num_prompt_tokens: int | None = None
    num_tokens: int = 0
    num_turns: int = 0
    num_tool_calls: int = 0
    truncated: bool = False
    spans: tuple[VersionSpan, ...] = ()
    latency: Latency | None = None
    end_to_end_s: float | None = None
    step: int | None = None
    trajectory_staleness: int | None = None
    token_staleness: int | None = None
    environment_staleness: int | None = None
    weight: float | None = None
    masked: tuple[tuple[int, int], ...] = ()
    num_masked_tokens: int = 0
    num_revived: int = 0
    failures: tuple[Failure, ...] = ()
    audit: str = ""
    audit_wrong: bool = False
