"""Notes: the scheduler's decisions that no event tells, journalled beside the commands.

Telemetry derives every metric from header, events, commands and notes, and needs no rule of the queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from headway.core.codec import from_plain

Fate = Literal[
    "trained",
    "filtered",
    "pruned",
    "cancelled",
    "stale",
    "voided",
    "failed_infrastructure",
    "failed_environment",
    "failed_reward",
    "evaluated",
    "stopped",
    "carried",
    "unused",
]


@dataclass(frozen=True, slots=True)
class RolloutSettled:
    """The one end of a rollout; the conservation ledger is the sum of these."""

    rollout: str
    group: str
    fate: Fate
    num_tokens: int  # sampled, 0 where the rollout left nothing
    reason: str = ""  # one line, for fates that need one


@dataclass(frozen=True, slots=True)
class RolloutRevived:
    """A settled rollout is back in the queue: the step that trained it was lost."""

    rollout: str
    group: str


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt ended without a result; `retried` says whether another follows."""

    rollout: str
    attempt: int
    owner: str
    cause: str
    message: str
    retried: bool


@dataclass(frozen=True, slots=True)
class GroupSettled:
    """All rollouts of a group are scored or lost."""

    group: str
    task_id: str
    level: int
    purpose: str
    fate: Literal["queued", "filtered", "voided", "evaluated"]
    num_rollouts: int  # scored
    mean_reward: float
    max_reward: float
    min_reward: float
    num_solved: int = 0  # of these
    source: str = ""  # task source, "" where the run has only one
    reason: Literal["", "zero_advantage", "band", "verdict"] = ""  # why it was filtered


@dataclass(frozen=True, slots=True)
class GroupSplit:
    """Members of an oversampled group that were late for it go on as a group of their own."""

    group: str
    into: str
    rollouts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskRetired:
    """The policy solves a task again and again: it is not asked for any more, for some steps."""

    source: str
    task_id: str
    level: int
    step: int
    due_step: int  # from when it is asked for once more


@dataclass(frozen=True, slots=True)
class TaskReturned:
    """A retired task is asked for again, to see whether it is still solved."""

    source: str
    task_id: str
    level: int
    step: int


@dataclass(frozen=True, slots=True)
class TaskRegressed:
    """A task that was retired is not solved any more; it is an ordinary task again."""

    source: str
    task_id: str
    level: int
    step: int
    solve_rate: float  # of the group that showed it


@dataclass(frozen=True, slots=True)
class BatchReleased:
    """A batch left the queue for the trainer."""

    batch: int
    step: int
    groups: tuple[str, ...]
    num_rollouts: int
    num_short_groups: int  # groups missing against the batch size
    trajectory_staleness: tuple[int, ...]  # one a rollout, from the version at its first token
    token_staleness: tuple[tuple[int, int], ...]  # (staleness, tokens), all trained tokens
    queued_groups: int  # left in the queue, with signal
    environment_staleness: tuple[int, ...] = ()  # one a rollout: largest age of the sandbox state it acted on
    num_masked_tokens: int = 0  # sampled, and not trained for their age


@dataclass(frozen=True, slots=True)
class PartsDiscarded:
    """The trainer lost what it had gathered of a batch that was not complete; its groups wait again."""

    batch: int
    groups: tuple[str, ...]
    num_rollouts: int


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """How many groups are where, written when it changes at a step's edges."""

    running: int  # admitted and not settled
    queued: int  # settled, with signal


@dataclass(frozen=True, slots=True)
class Refilled:
    """A group without signal was dropped and its place may be filled again."""

    group: str
    num_used: int  # refills since the last batch
    max_refills: int


@dataclass(frozen=True, slots=True)
class NoSignal:
    """A whole window of groups had no signal: no step was taken."""

    num_groups: int
    consecutive: int


@dataclass(frozen=True, slots=True)
class EvalStarted:
    """An evaluation of one version begins; replicas keep it until the evaluation ends."""

    lineage: int
    number: int
    num_tasks: int  # asked for; the environment may have fewer


@dataclass(frozen=True, slots=True)
class EvalEnded:
    """An evaluation is complete."""

    lineage: int
    number: int
    num_rollouts: int
    num_failed: int  # not counted in the mean
    mean_reward: float
    pass_at_1: float = 0.0  # solved share of a task's scored rollouts, mean over tasks with a score
    pass_at_n: float = 0.0  # share of these tasks with a solved rollout
    n: int = 1  # rollouts asked for each task


@dataclass(frozen=True, slots=True)
class PruneAudited:
    """A rollout that would have been pruned was let finish, to see whether pruning is right."""

    rollout: str
    source: str  # whose verdict it was
    reward: float
    would_have_been_wrong: bool  # its reward is above its group's mean


@dataclass(frozen=True, slots=True)
class ConcurrencyChanged:
    """How many rollouts may be in flight at once, from now on."""

    limit: int
    reason: str  # grow, soft, hard or sandboxes, and the replica


@dataclass(frozen=True, slots=True)
class GuardAlarm:
    """A number that the guard watches is out of line; written when the alarm begins."""

    metric: str
    value: float  # median of the newest steps
    limit: float  # that it broke
    action: str  # warn, pause, rollback or stop: what was done
    step: int  # the first of the newest steps that is out of line


@dataclass(frozen=True, slots=True)
class RolledBackTo:
    """Training goes on from an earlier step, in a new lineage."""

    step: int
    from_step: int  # the newest of the steps that are lost
    lineage: int
    reason: str


@dataclass(frozen=True, slots=True)
class VersionSuperseded:
    """A published version was never applied, because a newer one was there."""

    number: int


@dataclass(frozen=True, slots=True)
class Ignored:
    """A late or repeated event changed nothing."""

    event: str  # its class name; never a field `kind`, which names the class of a record in the journal
    target: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """The run admits nothing more."""

    outcome: str
    message: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Something that a person should see."""

    code: str  # stable short name
    text: str


Note = (
    RolloutSettled
    | RolloutRevived
    | AttemptFailed
    | GroupSettled
    | GroupSplit
    | TaskRetired
    | TaskReturned
    | TaskRegressed
    | BatchReleased
    | PartsDiscarded
    | QueueDepth
    | Refilled
    | NoSignal
    | EvalStarted
    | EvalEnded
    | PruneAudited
    | ConcurrencyChanged
    | GuardAlarm
    | RolledBackTo
    | VersionSuperseded
    | Ignored
    | Stopping
    | Warned
)

NOTES: dict[str, type] = {cls.__name__: cls for cls in Note.__args__}


def note_from_plain(kind: str, plain: dict[str, Any]) -> Note:
    """Rebuild the note of class name `kind`; an unknown kind raises KeyError."""
    return from_plain(NOTES[kind], plain)
