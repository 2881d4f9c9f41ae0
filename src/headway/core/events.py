"""Events: facts that the drivers tell the scheduler.

Every event that concerns a rollout names its attempt, and every event of a replica its epoch, so that a
late or repeated one is recognised and ignored. All fields are scalars, ids, spans and references; tokens
never appear. SCHEMA_VERSION covers events, commands and notes together.

Nobody changes an event. Python enforces it but for TurnEnded and ToolEnded: they are nearly all events of a
run, and a frozen dataclass takes some five times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from headway.core.codec import from_plain
from headway.core.records import FinishReason, SandboxUse, VersionSpan

SCHEMA_VERSION = 4

Owner = Literal["infrastructure", "environment", "reward", "scheduler"]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The driver is up; workers are being started. First event of a run."""


@dataclass(frozen=True, slots=True)
class RunResumed:
    """The run goes on after a stop or a crash. Everything in flight is gone; finished payloads are kept."""

    lineage: int  # the new lineage
    step: int  # optimizer steps contained in the checkpoint that was loaded
    spent_wall_s: float  # seconds the run has taken so far, stops excluded
    saved: tuple[int, ...] | None = None  # steps of the checkpoints that are whole, None where nobody looked


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A trainer or environment worker is ready."""

    role: Literal["trainer", "environment"]
    worker: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker process ended unasked."""

    role: Literal["trainer", "environment", "generator"]
    worker: str
    cause: str  # the original error, one line
    bad_input: bool = False  # it would end of the same again: a person must change something


@dataclass(frozen=True, slots=True)
class ReplicaJoined:
    """A generator replica is ready and holds a version."""

    replica: str
    epoch: int  # one more each time that the replica comes back
    lineage: int
    number: int
    max_running: int  # requests that it decodes at once


@dataclass(frozen=True, slots=True)
class ReplicaChanged:
    """A replica's load, told at times."""

    replica: str
    epoch: int
    num_running: int
    num_waiting: int
    kv_used_fraction: float
    tokens_per_s: float
    num_preemptions: int = 0  # of running requests for want of KV or for a higher priority, since it joined


@dataclass(frozen=True, slots=True)
class ReplicaLost:
    """A replica is gone; requests on it end as lost."""

    replica: str
    epoch: int
    cause: str
    bad_input: bool = False  # as of WorkerLost


@dataclass(frozen=True, slots=True)
class TaskOffered:
    """The task source answers RequestTask."""

    request: int  # number of the RequestTask
    task_id: str
    level: int
    num_tasks: int = 0  # positions of its split before it begins anew, 0 where it has no end


@dataclass(frozen=True, slots=True)
class TasksExhausted:
    """The task source has nothing more for this request."""

    request: int


@dataclass(frozen=True, slots=True)
class SandboxWanted:
    """A rollout or a verifier asks for a sandbox at its first use."""

    rollout: str
    attempt: int
    sandbox: str  # id, chosen before creation starts, so that nothing can leak unnamed
    purpose: Literal["rollout", "verify"]


@dataclass(frozen=True, slots=True)
class SandboxReady:
    """A granted sandbox runs."""

    rollout: str
    attempt: int
    sandbox: str
    start_s: float  # seconds from the moment that its creation began to ready
    origin: Literal["new", "warm", "snapshot", "rebuilt"] = "new"  # rebuilt: in place of one that was lost


@dataclass(frozen=True, slots=True)
class SandboxRefused:
    """The provider makes no further sandbox now, for its quota or its rate: the grant is given back.

    The sandbox is wanted as before, and granted again later.
    """

    rollout: str
    attempt: int
    sandbox: str
    reason: str
    retry_after_s: float = 0.0  # what the provider asks to wait, 0 when it does not say


@dataclass(frozen=True, slots=True)
class SandboxReleased:
    """A sandbox is gone, as asked."""

    rollout: str
    attempt: int
    sandbox: str
    end_s: float | None = None  # that its end took, None where nothing had to end
    use: SandboxUse | None = None  # what it held at its end, None where the provider does not tell


@dataclass(frozen=True, slots=True)
class SandboxLost:
    """A sandbox is gone, unasked."""

    rollout: str
    attempt: int
    sandbox: str
    cause: str  # one line
    failure: str = ""  # its short name: start, start_timeout, gone, end, worker_lost, infra


@dataclass(slots=True)
class TurnEnded:
    """The engine finished one answer."""

    rollout: str
    attempt: int
    turn: int  # index among the attempt's answers; a lower one than expected is a repetition
    replica: str
    spans: tuple[VersionSpan, ...]  # versions of the sampled tokens
    num_prompt_tokens: int  # tokens put before the answer, earlier turns included
    num_resident_tokens: int  # context that the answer left in the KV cache
    waiting_s: float  # before a slot was free
    prefill_s: float
    decode_s: float
    finish: FinishReason


@dataclass(slots=True)
class ToolEnded:
    """A tool call ended: a command in the sandbox, or a tool outside it that used no sandbox."""

    rollout: str
    attempt: int
    turn: int  # of the answer that it follows
    call: int  # index among the attempt's calls; a lower one than expected is a repetition
    duration_s: float
    cause: str  # exit, wall, oom, ... as the sandbox says; of a tool outside it exit, error or killed
    overhead_s: float | None = None  # of duration_s, all but the run of the command: starting it, clearing up
    cpu_s: float | None = None  # of all its processes, None where the provider does not tell
    memory_bytes: int | None = None  # most that it held, likewise
    where: Literal["sandbox", "host"] = "sandbox"  # host: a function, or a tool over HTTP or MCP


@dataclass(frozen=True, slots=True)
class RolloutParked:
    """A rollout holds no engine memory and asks for no tokens until Resume.

    Answers Park; with another cause than "asked" nobody asked, for the engine took its request away. Its
    coroutine and its sandbox go on living; a tool call in progress runs to its end.
    """

    rollout: str
    attempt: int
    spans: tuple[VersionSpan, ...]  # of all tokens sampled so far, those of the unfinished answer included
    payload: str  # what a later life can go on from, "" where the environment restarts
    cause: Literal["asked", "engine_lost"] = "asked"
    num_unfinished_tokens: int = 0  # of the spans' end: of an answer whose TurnEnded tells them again


@dataclass(frozen=True, slots=True)
class RolloutResumed:
    """A parked rollout goes on; answers Resume."""

    rollout: str
    attempt: int
    replica: str  # that it asks from now on
    num_recomputed_tokens: int  # context whose KV was given up when it was parked and is computed anew
    parked_s: float = 0.0  # that it stood still; a tool call that went on meanwhile is no part of it


@dataclass(frozen=True, slots=True)
class VerdictGiven:
    """Somebody who watches a rollout says something of it; the pruning rule decides what follows."""

    rollout: str
    attempt: int
    source: Literal["environment", "user", "value", "repetition", "length"]
    value: (
        float  # environment, user: below 0 asks for pruning; value: predicted reward; else what was measured
    )
    reason: str  # one line


@dataclass(frozen=True, slots=True)
class RolloutEnded:
    """The environment's coroutine finished; the payload is on disk."""

    rollout: str
    attempt: int
    payload: str  # reference into the payload store
    spans: tuple[VersionSpan, ...]  # of all trainable tokens
    num_turns: int
    num_tool_calls: int
    num_prompt_tokens: int  # tokens that the environment wrote
    num_tokens: int  # tokens that the policy sampled
    truncated: bool  # an answer hit its token limit or the context


@dataclass(frozen=True, slots=True)
class RolloutFailed:
    """The rollout ended without a payload. Owner "scheduler" answers Cancel."""

    rollout: str
    attempt: int
    owner: Owner
    cause: str  # a short name, such as cancelled, engine_lost, exception, sandbox
    message: str
    num_tokens: int = 0  # that the attempt had sampled, those of an unfinished answer included where known


@dataclass(frozen=True, slots=True)
class Scored:
    """The reward station's answer."""

    rollout: str
    attempt: int
    tries: int  # which Score command this answers, from 1
    reward: float
    reasons: tuple[str, ...]
    duration_s: float
    sandbox_start_s: float  # part of duration_s that went into starting the verifier's sandbox
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    turn_rewards: tuple[float, ...] = ()  # one for each answer of the policy, or empty
    judged: bool = False  # a judge was asked for it and answered; one from a cache was not


@dataclass(frozen=True, slots=True)
class ScoreFailed:
    """The reward station could not score; the rollout itself is intact."""

    rollout: str
    attempt: int
    tries: int
    cause: str  # a short name; judge_away where the judge answered nothing at all, judge where it did
    message: str


@dataclass(frozen=True, slots=True)
class GroupSignal:
    """The advantage function's answer to Signal."""

    group: str
    advantages: tuple[tuple[str, float], ...]  # (rollout, advantage)
    keep: bool = True  # False when the user's verdict drops the group
    reason: str = ""  # of that verdict
    turns: tuple[
        tuple[float, ...], ...
    ] = ()  # advantages of each rollout's turns, in the same order, or empty
    rewards: tuple[float, ...] = ()  # that reward.group made, in the same order; empty for the scores' own
    failed: Literal["", "judge", "judge_away"] = ""  # there is no signal, as in ScoreFailed; reason says why


@dataclass(frozen=True, slots=True)
class PartEnded:
    """The gradient of a part of a batch that is not complete yet is added."""

    batch: int
    part: int
    compute_s: float
    num_tokens: int  # tokens that went through the model


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The trainer applied one optimizer step."""

    batch: int
    step: int  # optimizer steps applied now
    compute_s: float  # of the whole step, its parts included
    num_tokens: int  # tokens that went through the model
    num_trained_tokens: int  # tokens that the loss counted
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    gathered_s: float = 0.0  # of compute_s, what was done before the batch was complete


@dataclass(frozen=True, slots=True)
class VersionPublished:
    """New weights are complete where replicas can read them."""

    lineage: int
    number: int
    publish_s: float
    manifest: str  # path or key that a replica needs
    num_bytes: int


@dataclass(frozen=True, slots=True)
class VersionApplied:
    """A replica decodes with a new version from now on."""

    replica: str
    epoch: int
    lineage: int
    number: int
    pause_s: float  # time without decoding


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The trainer holds the weights and the optimizer state of a checkpoint again; answers Rollback."""

    lineage: int  # the new lineage
    step: int


@dataclass(frozen=True, slots=True)
class CheckpointDone:
    """A checkpoint is complete on disk."""

    step: int
    path: str
    duration_s: float
    num_bytes: int = 0  # that it takes on disk


@dataclass(frozen=True, slots=True)
class EvalDue:
    """Somebody asks for an evaluation now, beside the periodic ones."""


@dataclass(frozen=True, slots=True)
class SettingChanged:
    """A setting changes during the run, or between two lives of it."""

    key: str  # the full config key, such as queue.bound; those of other rooms are only recorded
    value: Any  # a JSON scalar, or a list of them
    checked: bool = False  # True when it was checked as a part of a whole config: take it as it is
    reason: str = ""  # one line; the controller gives one
    by: Literal["user", "control"] = "user"  # control: [control] decided it


@dataclass(frozen=True, slots=True)
class StopAsked:
    """End the run: finish the step, checkpoint, finish."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """The driver could not carry out a command; the run ends with its message."""

    command: str  # kind of the command
    target: str  # what it named
    message: str


@dataclass(frozen=True, slots=True)
class DiskFull:
    """Something cannot be written for want of room; the run ends, resumable, and nothing more is written."""

    who: str  # the process that found it out
    message: str  # the file, the bytes needed and free, and what to do


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something outside the scheduler that a person should see; it becomes a warning."""

    code: str  # stable short name
    text: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """Time went by; answers WakeAt."""


Event = (
    RunStarted
    | RunResumed
    | WorkerJoined
    | WorkerLost
    | ReplicaJoined
    | ReplicaChanged
    | ReplicaLost
    | TaskOffered
    | TasksExhausted
    | SandboxWanted
    | SandboxReady
    | SandboxRefused
    | SandboxReleased
    | SandboxLost
    | TurnEnded
    | ToolEnded
    | RolloutParked
    | RolloutResumed
    | VerdictGiven
    | RolloutEnded
    | RolloutFailed
    | Scored
    | ScoreFailed
    | GroupSignal
    | PartEnded
    | StepEnded
    | VersionPublished
    | VersionApplied
    | RolledBack
    | CheckpointDone
    | EvalDue
    | SettingChanged
    | StopAsked
    | CommandRefused
    | DiskFull
    | Noticed
    | DeadlinePassed
)

EVENTS: dict[str, type] = {cls.__name__: cls for cls in Event.__args__}


def event_from_plain(kind: str, plain: dict[str, Any]) -> Event:
    """Rebuild the event of class name `kind`; an unknown kind raises KeyError."""
    return from_plain(EVENTS[kind], plain)
