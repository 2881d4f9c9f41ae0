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
    source: str  # name of the task source; "" where the run has only one
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
    partial: str = ""  # payload of a parked rollout of an earlier life that this attempt goes on from
    priority: int = 0  # of its requests: lower ones leave the engine's line first


@dataclass(frozen=True, slots=True)
class GrantSandbox:
    """A sandbox may be created now; answered by SandboxReady, SandboxRefused or SandboxLost."""

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
    """Stop decoding this rollout and free its engine memory; answered by RolloutParked or by its end."""

    rollout: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Let a parked rollout go on; answered by RolloutResumed."""

    rollout: str
    attempt: int
    replica: str


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
    num_tokens: tuple[int, ...] = ()  # that each rollout sampled, in the same order
    turn_rewards: tuple[tuple[float, ...], ...] = ()  # rewards of each rollout's turns, in the same order
    payloads: tuple[str, ...] = ()  # likewise, where rewards are made of the whole group (reward.group)
    task_id: str = ""  # with them


class Row(NamedTuple):
    """A reference to one rollout's training samples."""

    rollout: str
    group: str
    payload: str
    advantage: float
    weight: float = 1.0  # of its tokens in the loss, below 1 where staleness weighs it down
    masked: tuple[tuple[int, int], ...] = ()  # versions (lineage, number) whose tokens are not trained
    turns: tuple[float, ...] = ()  # advantages of its turns, in place of `advantage`; empty for none


@dataclass(frozen=True, slots=True)
class TrainPart:
    """Add the gradient of whole groups of a batch that is not complete yet; answered by PartEnded."""

    batch: int
    step: int  # that they are committed to
    part: int  # a number of its own within the run
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Train:
    """Take one optimizer step; answered by StepEnded."""

    batch: int
    step: int  # optimizer steps applied when it is done
    rows: tuple[Row, ...]
    lr_scale: float = 1.0  # what the learning rate is multiplied by, below 1 after a guard's rollback
    num_gathered: int = 0  # the first so many rows were handed over in parts


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
    """Load the checkpoint of `step` into the trainer; answered by RolledBack.

    Step 0 is the run's beginning: the first weights and a fresh optimizer.
    """

    step: int
    lineage: int  # the new one


@dataclass(frozen=True, slots=True)
class RestartWorker:
    """Start a worker that died anew; answered by ReplicaJoined or WorkerJoined."""

    role: Literal["generator", "trainer", "environment"]
    worker: str
    epoch: int  # that a generator joins with


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
    | TrainPart
    | Train
    | Publish
    | ApplyVersion
    | Checkpoint
    | Rollback
    | RestartWorker
    | WakeAt
    | Finish
)

COMMANDS: dict[str, type] = {cls.__name__: cls for cls in Command.__args__}


def command_from_plain(kind: str, plain: dict[str, Any]) -> Command:
    """Rebuild the command of class name `kind`; an unknown kind raises KeyError."""
    return from_plain(COMMANDS[kind], plain)
