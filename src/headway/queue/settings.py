"""Settings of the scheduler and its rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from headway.core.settings import Problem, setting
from headway.queue.band import ConcurrencySettings
from headway.queue.entry_settings import (
    AcceptanceSettings,
    CurriculumSettings,
    OversamplingSettings,
    Source,
)
from headway.queue.partial import PartialSettings
from headway.queue.pruning_settings import PruningSettings
from headway.queue.recovery import RecoverySettings
from headway.queue.staleness import StalenessSettings
from headway.queue.watch import GuardSettings


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Section [queue]: how rollouts are admitted, grouped, accepted and released."""

    group_size: int = setting(
        8, "Rollouts per task; their rewards are compared with one another.", ge=1, le=10_000
    )
    group_size_by_level: dict[str, int] = setting(
        dict,
        "Other group sizes for tasks of some levels, such as { 3 = 16 }. A batch counts groups.",
        ge=1,
        le=10_000,
    )
    batch_size: int = setting(32, "Rollouts per optimizer step; a multiple of group_size.", ge=1)
    bound: int = setting(
        2,
        "Staleness bound, in steps: no token older than this reaches the gradient. 0 is exactly synchronous, "
        "1 is one step off, more is fully asynchronous with in-flight weight updates.",
        ge=0,
    )
    depth: int = setting(
        -1,
        "How many steps generation may run ahead of training; at most bound. -1 takes the bound. Less depth "
        "keeps samples fresher, more keeps the trainer busier.",
        ge=-1,
    )
    batch_tokens: int = setting(
        0,
        "Most sampled tokens of a batch, so that steps take about the same time: it is released as soon as "
        "the waiting groups hold so many, with as many of the oldest as fit, at least one and at most "
        "batch_size rollouts. 0 counts groups alone.",
        ge=0,
    )
    stream: bool = setting(
        False,
        "Let an idle trainer begin a step with the groups that wait for it, before the batch is complete: it "
        "waits less where slow rollouts hold batches up. The gradient is the same to rounding, not to the "
        "bit: what is in which part depends on when groups arrive. Not with an advantage or a loss that "
        "needs the whole batch first: magistral, reinforce_pp, reinforce_pp_baseline, m2po.",
    )
    batch_wait_s: float = setting(
        0.0,
        "Once the trainer has waited so many seconds, a batch leaves with what is there, at least "
        "batch_wait_share of its groups. 0 waits for a full batch. Slow groups then hold no step up, and "
        "steps differ in size.",
        ge=0,
    )
    batch_wait_share: float = setting(
        0.75, "Share of a batch's groups that must be there for batch_wait_s to release it.", gt=0, le=1
    )
    publish_every: int = setting(
        1,
        "Steps between two versions for the generators; at most depth + 1, or nothing could be admitted.",
        ge=1,
    )
    max_updating_replicas: int = setting(
        0, "Generators that take up a version at the same time; 0 for all of them.", ge=0
    )
    max_running_rollouts: int = setting(
        0, "Train rollouts in flight at once; 0 leaves it to depth and batch_size.", ge=0
    )
    drop_zero_advantage: bool = setting(
        True, "Drop groups whose rollouts all have advantage 0: they would not move the weights."
    )
    max_refill_batches: int = setting(
        1, "Groups dropped for lack of signal are replaced, up to this many extra batches a step.", ge=0
    )
    max_empty_batches: int = setting(
        10, "End the run as no_signal after this many batches in a row without one group with signal.", ge=1
    )
    max_attempts: int = setting(2, "Attempts at a rollout that fails for no fault of the model.", ge=1)
    on_failed_rollout: Literal["shrink", "void"] = setting(
        "shrink",
        "What a group does when a member is lost for good: shrink trains the others if two or more are "
        "left, void drops the group.",
    )
    max_failed_groups: int = setting(
        8, "End the run as failed after this many groups in a row without a usable rollout.", ge=1
    )

    @property
    def batch_groups(self) -> int:
        """Groups per batch."""
        return self.batch_size // self.group_size

    @property
    def max_depth(self) -> int:
        """Depth with -1 resolved."""
        return self.bound if self.depth < 0 else self.depth

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        if self.batch_size % self.group_size:
            lower = self.batch_size - self.batch_size % self.group_size
            near = [str(size) for size in (lower, lower + self.group_size) if size]
            yield Problem(
                "batch_size",
                self.batch_size,
                f"batch_size must be a multiple of group_size ({self.group_size})",
                f"Use {' or '.join(near)}.",
            )
        for level in self.group_size_by_level:
            if not level.isdecimal():
                rule = "the keys of group_size_by_level are levels"
                yield Problem("group_size_by_level", level, rule, "Use whole numbers, such as { 3 = 16 }.")
        if self.publish_every > self.max_depth + 1:
            yield Problem(
                "publish_every",
                self.publish_every,
                f"publish_every may not exceed depth + 1 ({self.max_depth + 1}): versions would be "
                "older than what may be admitted",
                f"Use {self.max_depth + 1} or less, or raise queue.depth and queue.bound.",
            )
        if self.depth > self.bound:
            yield Problem(
                "depth",
                self.depth,
                f"depth may not exceed bound ({self.bound}): what is generated further ahead never trains",
                f"Use depth = {self.bound} or less, or raise queue.bound.",
            )


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """Section [eval]: evaluation on held-out tasks. An evaluation measures exactly one policy version."""

    num_tasks: int = setting(
        64, "Held-out tasks per evaluation; 0 switches evaluation off.", ge=0, le=1_000_000
    )
    every_steps: int = setting(
        0, "Evaluate each time this many steps are done; 0 for never in between.", ge=0
    )
    at_start: bool = setting(True, "Evaluate before the first step.")
    at_end: bool = setting(True, "Evaluate after the last step.")
    temperature: float = setting(0.0, "Sampling temperature of evaluation; 0 is greedy.", ge=0)
    rollouts_per_task: int = setting(
        1,
        "Rollouts of each task: pass@1 is their mean, pass@n whether one of the n solved it.",
        ge=1,
        le=10_000,
    )
    max_share: float = setting(
        1.0,
        "Share of the generators' slots that evaluation rollouts may take; the others wait in line. At 1 all "
        "start at once. Less leaves room for training, and makes the evaluation longer.",
        gt=0,
        le=1,
    )

    split: Literal["eval", "train"] = setting(
        "eval", "The tasks of an evaluation: held out, or the first ones of the train split."
    )
    only: bool = setting(
        False,
        "Evaluate the model once, train nothing and end; `headway eval` sets it. No trainer is started.",
    )

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        if self.only and not self.num_tasks:
            yield Problem(
                "num_tasks",
                self.num_tasks,
                "must be at least 1 when eval.only is true: there is nothing else to do",
                "Use eval.num_tasks = 64, or `headway eval --tasks 64`.",
            )
        if self.rollouts_per_task > 1 and self.temperature == 0:
            yield Problem(
                "rollouts_per_task",
                self.rollouts_per_task,
                "must be 1 when eval.temperature is 0: greedy rollouts of a task are all alike",
                "Use eval.temperature = 1.0.",
            )


@dataclass(frozen=True, slots=True)
class StopSettings:
    """Section [stop]: when the run is over. Whichever comes first."""

    steps: int = setting(100, "Optimizer steps; 0 for no limit.", ge=0)
    wall_s: float = setting(
        0.0, "Wall time in seconds, after which no new step is begun; 0 for no limit.", ge=0
    )
    target_reward: float = setting(
        0.0, "Stop once the mean reward of the last target_window train rollouts reaches this; 0 for never."
    )
    target_window: int = setting(64, "Finished train rollouts that target_reward looks at.", ge=1)

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        if not (self.steps or self.wall_s or self.target_reward):
            yield Problem(
                "steps",
                self.steps,
                "a run needs an end",
                "Set stop.steps, stop.wall_s or stop.target_reward.",
            )


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """Section [checkpoint]: what survives. A run also saves when it ends."""

    every_steps: int = setting(10, "Save each time this many steps are done; 0 only at the end.", ge=0)
    keep: int = setting(
        2,
        "Newest checkpoints kept, which a resume or a rollback may go on from; older ones are deleted.",
        ge=1,
    )
    keep_every_steps: int = setting(
        0,
        "Checkpoints of steps that are a multiple of this stay too, to export or compare; 0 for none.",
        ge=0,
    )
    keep_best: bool = setting(
        False,
        "The checkpoint with the best evaluation stays too. An evaluation counts when a checkpoint of its "
        "step is there when it ends.",
    )


@dataclass(frozen=True, slots=True)
class DeadlineSettings:
    """Section [deadlines]: nothing waits for ever. Past one of these the error names who waited for whom."""

    start_s: float = setting(180.0, "Start of trainer, generator and environment workers.", gt=0)
    task_s: float = setting(60.0, "Task source answering with one task.", gt=0)
    train_s: float = setting(900.0, "Trainer taking one step.", gt=0)
    publish_s: float = setting(120.0, "Trainer publishing a version.", gt=0)
    apply_s: float = setting(120.0, "Generator taking up a version.", gt=0)
    checkpoint_s: float = setting(300.0, "Trainer saving a checkpoint.", gt=0)
    signal_s: float = setting(30.0, "Advantage function answering for one group.", gt=0)
    cancel_s: float = setting(10.0, "A cancelled rollout ending.", gt=0)
    sandbox_s: float = setting(
        120.0,
        "A sandbox starting or ending; a start that takes longer than sandbox.start_timeout_s fails before.",
        gt=0,
    )


ELSEWHERE = {
    "generator.temperature": "temperature",
    "generator.kv_on_update": "kv",
    "environment.rollout_timeout_s": "rollout_timeout_s",
    "environment.workers": "num_environment_workers",
    "reward.timeout_s": "score_timeout_s",
    "reward.max_tries": "max_score_tries",
    "reward.max_outage_s": "judge_outage_s",
    "sandbox.max_live": "max_sandboxes",
}
"""Keys of other rooms' sections that the scheduler follows: full key -> field of SchedulerSettings."""


def ready_places(max_sandboxes: int, warm: int, num_workers: int) -> int:
    """Return how many of the live sandboxes are left to what the environment workers keep ready.

    A single worker's give way to whatever is granted, and take no place from it. Several workers cannot see
    each other's: so that all stay within the quota, theirs have places of their own, a quarter at most.
    """
    return min(warm, max_sandboxes // 4) if num_workers > 1 else 0


def verify_places(max_sandboxes: int) -> int:
    """Return how many of the live sandboxes are kept for verifiers."""
    return max(1, max_sandboxes // 4)


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Everything that the scheduler needs; composed by the runtime from the sections of the config."""

    queue: QueueSettings = field(default_factory=QueueSettings)
    pruning: PruningSettings = field(default_factory=PruningSettings)
    concurrency: ConcurrencySettings = field(default_factory=ConcurrencySettings)
    guard: GuardSettings = field(default_factory=GuardSettings)
    staleness: StalenessSettings = field(default_factory=StalenessSettings)
    partial: PartialSettings = field(default_factory=PartialSettings)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    stop: StopSettings = field(default_factory=StopSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    deadlines: DeadlineSettings = field(default_factory=DeadlineSettings)
    oversampling: OversamplingSettings = field(default_factory=OversamplingSettings)
    acceptance: AcceptanceSettings = field(default_factory=AcceptanceSettings)
    curriculum: CurriculumSettings = field(default_factory=CurriculumSettings)
    sources: tuple[Source, ...] = ()  # empty for the one environment of the run
    seed: int = 0
    temperature: float = 1.0  # of train rollouts
    kv: Literal["keep", "recompute"] = "recompute"  # what replicas do with KV at an update
    rollout_timeout_s: float = 300.0  # without any event; four times this in all
    score_timeout_s: float = 30.0  # of one try
    score_wait_s: float = 0.0  # that it may take beside that, for the rate limit of a judge
    max_score_tries: int = 2
    judge_outage_s: float = 0.0  # for which scores wait for a judge that answers nobody; 0 for none
    group_reward_s: float = 0.0  # for the function that makes rewards of a whole group; 0 for none
    max_sandboxes: int = 16  # live at once, those included that environment workers keep ready
    ready_sandboxes: int = 0  # of these, left to what several workers keep ready, which none other gets
    verify_sandboxes: int = 2  # of these, kept free for verifiers
    max_sandbox_starts_per_s: float = 0.0  # 0 for no limit
    max_starting_sandboxes: int = 0  # at once; 0 for no limit
    solved_reward: float = 1.0 - 1e-9  # a rollout is solved from this reward on
    num_environment_workers: int = 1
    num_replicas: int = 1

    @property
    def depth(self) -> int:
        """How many steps ahead a group may be admitted: what would be too old when it trains is not."""
        limit = self.staleness.trajectory_bound
        return self.queue.max_depth if limit < 0 else min(self.queue.max_depth, limit)
