"""Commands: what the scheduler asks of the drivers.

A command moves its target into a pending state with a deadline; only the answering event settles it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from headway.core.codec import from_plain
from headway.core.records import Purpose


@dataclass(frozen=True, slots=True)
class RequestTask:
    """Ask the task source for one task; answered by TaskOffered or TasksExhausted."""

    request: int
    split: str  # "train" or "eval"
    index: int  # position in the split's own order
    level: int | None  # difficulty wanted, None for the source's own mix


@dataclass(frozen=True, slots=True)
class StartRollout:
    """Run one rollout; answered by RolloutEnded or RolloutFailed."""

    rollout: str
    attempt: int
    group: str
    task_id: str
    purpose: Purpose
    policy: str
    seed: int
    temperature: float
    replica: str  # affinity: all rollouts of a group go to one replica


@dataclass(frozen=True, slots=True)
class GrantSandbox:
    """A sandbox may be created now; answered by SandboxReady or SandboxLost."""

    rollout: str
    attempt: int
    sandbox: str


@dataclass(frozen=True, slots=True)
class ReleaseSandbox:
    """End a sandbox; answered by SandboxReleased."""

    rollout: str
    attempt: int
    sandbox: str


@dataclass(frozen=True, slots=True)
class Park:
    """Stop decoding this rollout and free its engine memory; answered by RolloutParked."""

    rollout: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Let a parked rollout go on."""

    rollout: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End this attempt; answered by RolloutFailed with owner scheduler, or by an ending that crossed it."""

    rollout: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Score:
    """Score a finished rollout; answered by Scored or ScoreFailed."""

    rollout: str
    attempt: int
    tries: int
    task_id: str
    payload: str


@dataclass(frozen=True, slots=True)
class Signal:
    """Turn a settled group's rewards into advantages; answered by GroupSignal."""

    group: str
    rewards: tuple[tuple[str, float], ...]  # (rollout, reward), in rollout order


class Row(NamedTuple):
    """A reference to one rollout's training samples."""

    rollout: str
    group: str
    payload: str
    advantage: float


@dataclass(frozen=True, slots=True)
class Train:
    """Take one optimizer step; answered by StepEnded."""

    batch: int
    step: int  # optimizer steps applied when it is done
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Publish:
    """Make the trainer's weights available; answered by VersionPublished."""

    lineage: int
    number: int


@dataclass(frozen=True, slots=True)
class ApplyVersion:
    """Let replicas take up a published version between two decode steps; each answers VersionApplied."""

    replicas: tuple[str, ...]
    lineage: int
    number: int
    manifest: str
    kv: Literal["keep", "recompute"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Save the trainer and the scheduler's snapshot; answered by CheckpointDone."""

    step: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """Load the checkpoint of `step` into the trainer."""

    step: int
    lineage: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send DeadlinePassed at this time; replaces the previous WakeAt."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The run is over."""

    outcome: str  # a short name, such as steps, target, wall, interrupted, no_signal, failed
    message: str
    failed: bool  # True when the user should see an error


Command = (
    RequestTask
    | StartRollout
    | GrantSandbox
    | ReleaseSandbox
    | Park
    | Resume
    | Cancel
    | Score
    | Signal
    | Train
    | Publish
    | ApplyVersion
    | Checkpoint
    | Rollback
    | WakeAt
    | Finish
)

COMMANDS: dict[str, type] = {cls.__name__: cls for cls in Command.__args__}


def command_from_plain(kind: str, plain: dict[str, Any]) -> Command:
    """Rebuild the command of class name `kind`; an unknown kind raises KeyError."""
    return from_plain(COMMANDS[kind], plain)
