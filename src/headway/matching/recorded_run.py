"""What is kept of a run's journal for calibration and for a replay: attempts, steps, groups, pauses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from headway.core import notes
from headway.core.records import FinishReason
from headway.core.segments import group_of
from headway.telemetry.header import JournalHeader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headway.telemetry.records import Entry, Stat

Outcome = Literal["open", "ended", "stopped", "failed"]


class JournalLike(Protocol):
    """What is read: an opened journal, or the records of a simulation with their header."""

    header: JournalHeader

    def __iter__(self) -> Iterator[Entry | Stat]:
        """Yield every record in order."""
        ...


@dataclass(slots=True)
class RecordedTurn:
    """One answer of the policy that ended."""

    ended_s: float  # when the driver heard of it
    replica: str
    num_tokens: int  # sampled
    prompt_tokens: int  # before the answer, earlier turns included
    resident_tokens: int  # that it left in the KV cache
    waiting_s: float
    prefill_s: float
    decode_s: float
    finish: FinishReason
    after_s: float | None = None  # until the next answer was asked for, or the rollout ended
    cut_short: bool = False  # after_s is at least so much: the attempt was ended meanwhile
    calls_s: float = 0.0  # of the tool calls behind it
    num_calls: int = 0

    @property
    def began_s(self) -> float:
        """When it was decoded first."""
        return self.ended_s - self.decode_s


@dataclass(slots=True)
class RecordedAttempt:
    """One attempt at a rollout."""

    rollout: str
    attempt: int
    group: str
    task_id: str
    purpose: str
    replica: str
    step: int  # optimizer steps applied when it started
    started_s: float
    turns: list[RecordedTurn] = field(default_factory=list[RecordedTurn])
    outcome: Outcome = "open"
    over_s: float | None = None  # when its coroutine ended
    owner: str = ""  # of a failure
    cause: str = ""
    num_tokens: int = 0  # sampled in all, those of an unfinished answer included
    prompt_tokens: int = 0  # that the environment wrote
    truncated: bool = False
    sandbox_start_s: float | None = None
    parked_s: float = 0.0
    reward: float | None = None
    score_s: float | None = None  # without the start of the verifier's sandbox
    verifier_start_s: float = 0.0
    aside_s: float = 0.0  # of the time since the newest turn: parked, or waiting for a sandbox
    waits_since_s: float | None = None  # for a sandbox

    @property
    def num_answered(self) -> int:
        """Tokens of the answers that ended."""
        return sum(turn.num_tokens for turn in self.turns)

    @property
    def context_tokens(self) -> int:
        """Tokens of the whole rollout."""
        return self.prompt_tokens + self.num_tokens


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One optimizer step that was taken."""

    step: int
    num_rows: int
    num_tokens: int  # that its rollouts hold, prompts included; each row whole, shared prefixes or not
    sum_squares: float  # of the rows' tokens
    compute_s: float
    load_s: float  # from its release, or the publish before it, to computing


@dataclass(slots=True)
class Recording:
    """Everything that calibration looks at.

    Attributes:
        attempts: in the order of their start.
        steps: in the order of their end.
        groups: GroupSettled notes of train groups, each with the steps applied then.
        applies: (replica, when, seconds without decoding).
        tasks: task -> the name that a simulation gives it.
        num_tasks: positions of the train split, 0 where it has no end.
    """

    header: JournalHeader
    attempts: list[RecordedAttempt] = field(default_factory=list[RecordedAttempt])
    steps: list[RecordedStep] = field(default_factory=list[RecordedStep])
    groups: list[tuple[int, notes.GroupSettled]] = field(default_factory=list[tuple[int, notes.GroupSettled]])
    publishes: list[float] = field(default_factory=list[float])
    applies: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    saves: list[float] = field(default_factory=list[float])
    starts_cut: list[float] = field(default_factory=list[float])  # seconds of starts that nobody waited for
    sandbox_failures: int = 0  # starts that failed
    sandbox_refusals: int = 0
    preemptions: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    loads: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    tasks: dict[str, str] = field(default_factory=dict[str, str])
    num_tasks: int = 0
    max_running: int = 0  # of one replica
    num_replicas: int = 0
    changes: list[tuple[str, object]] = field(default_factory=list[tuple[str, object]])
    ended_s: float = 0.0

    def train(self) -> list[RecordedAttempt]:
        """Return the attempts of training."""
        return [attempt for attempt in self.attempts if attempt.purpose == "train"]


def place_of(rollout: str) -> tuple[bool, int, int] | None:
    """Return (whether it is an evaluation's, number of its group, its place there) of a rollout's id."""
    found = group_of(rollout)
    place = rollout.rpartition(".")[2]
    return None if found is None or not place.isdecimal() else (*found, int(place))
