"""The scheduler's whole state: ids, spans, scalars and references, never tokens. JSON both ways."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from headway.core.commands import Row
from headway.core.records import Purpose, VersionSpan
from headway.queue.band import ConcurrencyState
from headway.queue.curriculum import PoolState
from headway.queue.sources import MixState
from headway.queue.watch import GuardState

# No event tells when an answer is asked for: between a start and its end a rollout is "running", be it in
# the engine's line, decoding, at a tool or in its environment. `RolloutState.last_sign` says what ended last.
Station = Literal["running", "parked", "scoring", "scored", "lost", "queued", "training"]
ACTIVE = ("running", "parked")  # the attempt has neither ended nor failed
Pending = Literal["", "cancelling", "parking", "resuming"]
PruneSource = Literal["", "length", "repetition", "environment", "value", "user", "group"]
GroupStage = Literal["requested", "running", "signalling", "queued", "training", "trained"]
CARRIED = (
    "interrupted",
    "failed",
    "guard",
    "disk_full",
)  # outcomes after which a resume finds the train groups
Phase = Literal["starting", "running", "stopping", "finished"]


@dataclass(slots=True)
class RolloutState:
    """One rollout that has not been settled, or that a checkpoint does not contain yet."""

    id: str
    group: str
    attempt: int
    started_s: float
    station: Station = "running"
    pending: Pending = ""
    num_turns: int = 0  # answers of this attempt that ended
    num_calls: int = 0  # tool calls of this attempt that ended
    last_sign: str = "its start"  # what the attempt last told, in words
    failures: int = 0  # attempts that failed
    draws: int = 0  # attempts that failed by themselves: the next one draws other tokens
    num_tokens: int = 0  # sampled
    spans: list[VersionSpan] = field(default_factory=list[VersionSpan])
    payload: str = ""
    truncated: bool = False
    score_tries: int = 0
    score_failures: int = 0  # of these, those that count; see `outage`
    asked_at: int = 0  # answers that judges had given when its score was asked for last
    reward: float = 0.0
    turn_rewards: tuple[float, ...] = ()
    advantage: float = 0.0
    turn_advantages: tuple[float, ...] = ()
    owner: str = ""  # of its loss, for station lost
    pruned: PruneSource = ""  # who asked for this attempt's early end
    audited: PruneSource = ""  # who would have, of a rollout that is let finish to see whether it was right
    audited_after: int = 0  # answers that it had given then
    parked_s: float = 0.0  # since when, for station parked
    partial: str = ""  # what a later life can go on from, for station parked
    unstarted: bool = False  # parked before its attempt began, for no replica could take it
    num_unfinished: int = 0  # tokens at the spans' end, of an answer whose TurnEnded tells them again
    num_losses: int = 0  # engines lost since its last answer
    num_restarts: int = 0  # begun anew because of its age
    waited_s: float = 0.0  # for its sandbox, which counts against no limit of the rollout's
    resumed_at: tuple[int, int] | None = None  # version (lineage, number) of the newest resumption
    newest_turn: tuple[int, int] | None = None  # oldest version of the newest answer
    shaped_by: tuple[int, int] | None = None  # oldest version whose tool calls shaped the sandbox
    environment_age: int = 0  # largest, over its answers
    sandboxes: list[str] = field(
        default_factory=list[str]
    )  # ids it ever asked for, to know a repeated request


@dataclass(slots=True)
class GroupState:
    """One task's rollouts."""

    id: str
    purpose: Purpose
    request: int
    index: int  # of the task in its split
    source: str = ""
    asked_level: int | None = None
    stage: GroupStage = "requested"
    task_id: str = ""
    level: int = 0
    replica: str = ""
    lineage: int = 0  # version at the start
    number: int = 0
    rollouts: list[RolloutState] = field(default_factory=list[RolloutState])
    target: int = 0  # scored rollouts that settle it; those beyond are late
    leaving: bool = False  # cancelled as oversampled; only its end is awaited
    step: int = 0  # that trained it, for stages training and trained
    planned: int = 0  # step of a lost branch that trained it, and of this one that will, 0 for none
    carried: bool = False  # settled as carried; a resume revives it
    late: bool = False  # once parked: it holds no place ahead of training any more
    streamed: bool = False  # handed to the trainer for the next step, whose batch is not complete
    dormant: bool = False  # in flight in an earlier life; nothing of it runs in this one yet
    signal_failures: int = 0  # of the function that makes its rewards; as of scores
    asked_at: int = 0  # likewise

    @property
    def num_tokens(self) -> int:
        """Tokens that its rollouts sampled."""
        return sum(rollout.num_tokens for rollout in self.rollouts)


@dataclass(slots=True)
class Again:
    """A group of a lost branch, too old now, whose task is taken again; see `recovery`."""

    group: str  # id of the group that first took it
    index: int
    planned: int  # as in GroupState
    source: str = ""
    asked_level: int | None = None


@dataclass(slots=True)
class ReplicaState:
    """A generator replica."""

    epoch: int
    lineage: int
    number: int  # applied
    pending: int | None = None  # being applied
    max_running: int = 0  # requests that it decodes at once
    down: bool = False  # lost and not back yet
    usable: bool = True  # False from its loss until it holds the newest version again
    num_restarts: int = 0


@dataclass(slots=True)
class SandboxState:
    """A sandbox that is wanted or lives."""

    rollout: str
    attempt: int
    purpose: Literal["rollout", "verify"]
    stage: Literal["wanted", "granted", "ready", "releasing"] = "wanted"
    since_s: float = 0.0  # when it was wanted
    excused_s: float = 0.0  # of the time since then, by how much deadlines were moved


@dataclass(slots=True)
class RefusalState:
    """What the provider of sandboxes refused of late."""

    reason: str = ""  # its words; "" when it refuses nothing
    num_in_row: int = 0  # that no sandbox's start came between
    until_s: float = 0.0  # no grants before, but for places that became free
    rests: bool = False  # not for those either: the provider said how long to wait
    level: int = 0  # sandboxes that were live beside what was refused last: so many there may be again
    most_starting: int = 0  # at once, doubled by each start that succeeds; 0 for no limit but the set one


@dataclass(slots=True)
class OutageState:
    """A judge that answers nobody, and what waits for it."""

    waiting: dict[str, bool] = field(
        default_factory=dict[str, bool]
    )  # rollout or group -> whether it is asked for again now, as a probe
    since_s: float = 0.0  # of the first failure
    num_in_row: int = 0  # failures of probes, the first one included
    until_s: float = 0.0  # no probe before
    words: str = ""  # of the newest failure
    num_answers: int = 0  # that judges gave, ever
    over: bool = False  # one answered: all that wait are asked for again


@dataclass(slots=True)
class EvalState:
    """The evaluation in progress."""

    lineage: int
    number: int
    num_tasks: int  # still to be asked for, or asked for
    num_requested: int = 0
    rewards: list[float] = field(default_factory=list[float])
    num_failed: int = 0
    num_scored_tasks: int = 0
    sum_solved: float = 0.0  # solved shares of these
    num_solved_tasks: int = 0  # with at least one solved rollout


@dataclass(slots=True)
class State:
    """See the classes above; everything here is in the snapshot."""

    phase: Phase = "starting"
    outcome: str = ""
    message: str = ""
    failed: bool = False
    spent_wall_s: float = 0.0  # of earlier lives
    life_began_s: float = 0.0

    workers: list[str] = field(default_factory=list[str])  # environment workers that joined
    worker_restarts: dict[str, int] = field(default_factory=dict[str, int])  # by worker
    trainer_joined: bool = False
    trainer: Literal["idle", "training", "publishing", "loading"] = "idle"
    trainer_restarts: int = 0
    lr_scale: float = 1.0
    replicas: dict[str, ReplicaState] = field(default_factory=dict[str, ReplicaState])

    lineage: int = 0
    step: int = 0  # optimizer steps applied
    skipped_to: int = 0  # every step up to this one was skipped, being not finite
    skipped_why: str = ""  # what was not finite at the last one
    forks: list[int] = field(default_factory=list[int])  # forks[l] = step at which lineage l + 1 left l
    published: int = 0  # newest version that replicas can read, -1 for none
    manifest: str = ""
    saving_step: int = -1  # of the checkpoint that is being written, -1 for none
    contained: int = 0  # steps whose rollouts are forgotten: no resume goes back before them
    saved_steps: list[int] = field(default_factory=list[int])  # checkpoints that are kept, oldest first

    resume_due: bool = False  # parked rollouts may go on

    restart_due: bool = (
        False  # groups of an earlier life wait for the replicas to hold the checkpoint's weights
    )

    next_group: int = 0
    next_eval_group: int = 0
    num_again: int = 0
    again: list[Again] = field(default_factory=list[Again])  # in the order in which they are asked for
    planned_until: int = 0  # steps of lost branches, taken again with the rollouts that they had
    next_request: int = 0
    next_task: int = 0  # position in the train split
    next_batch: int = 0
    batch_since_s: float | None = None  # since when the idle trainer waits for a batch, with batch_wait_s
    streamed: list[Row] = field(default_factory=list[Row])  # handed over for it already, in this order
    num_parts: int = 0  # that were handed over, ever
    part_pending: bool = False  # the newest part is being computed
    groups: dict[str, GroupState] = field(default_factory=dict[str, GroupState])
    requests: dict[int, str] = field(default_factory=dict[int, str])  # request -> group
    mix: MixState = field(default_factory=MixState)
    pools: dict[str, PoolState] = field(default_factory=dict[str, PoolState])  # by source
    exhausted: bool = False

    filtered_groups: int = 0  # since the last batch
    filtered_reasons: dict[str, int] = field(default_factory=dict[str, int])  # of these
    empty_batches: int = 0  # in a row
    groups_per_batch: float = 0.0  # of the newest batches, 0 before the first
    failed_groups: int = 0  # in a row
    stale_groups: int = 0  # given up for their age since the last batch
    last_failure: str = ""
    rewards: list[float] = field(default_factory=list[float])  # newest finished train rollouts

    sandboxes: dict[str, SandboxState] = field(default_factory=dict[str, SandboxState])
    starts_due_s: float = (
        0.0  # when the sandbox after the last one that was granted would start at the set rate
    )

    refusals: RefusalState = field(default_factory=RefusalState)
    outage: OutageState = field(default_factory=OutageState)

    concurrency: ConcurrencyState = field(default_factory=ConcurrencyState)
    guard: GuardState = field(default_factory=GuardState)

    eval: EvalState | None = None
    eval_wanted: int = -1  # evaluate the first version from this one on, -1 for none
    evaluated: int = -1  # newest version evaluated in this lineage
    deadlines: dict[str, float] = field(default_factory=dict[str, float])
    wake_at_s: float | None = None
    overrides: dict[str, Any] = field(default_factory=dict[str, Any])  # queue settings changed during the run

    @property
    def saved_step(self) -> int:
        """Step of the newest checkpoint, -1 for none."""
        return self.saved_steps[-1] if self.saved_steps else -1
