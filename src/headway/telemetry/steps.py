"""The series of surviving optimizer steps, and the learning curve's two ends.

A rollout belongs to the step in progress when it was scored: optimizer steps ended, plus 1. A resume from a
checkpoint of step c takes back every step above c; rollouts that were scored while step c + 1 was in
progress keep their place, for only surviving versions generated them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.core.commands import Train
    from headway.core.events import StepEnded
    from headway.core.notes import BatchReleased, EvalEnded
    from headway.telemetry.rollouts import FinishedRollout

MIN_END_ROLLOUTS = 32  # that reward.first and reward.last rest on at least, where there are as many


@dataclass(slots=True)
class Bucket:
    """The train rollouts that were scored while one step was in progress, and the groups settled then."""

    num_rollouts: int = 0
    num_solved: int = 0
    sum_reward: float = 0.0
    sum_tokens: int = 0
    num_truncated: int = 0
    num_decided_groups: int = 0
    num_zero_groups: int = 0


@dataclass(slots=True)
class StepRecord:
    """One optimizer step. Rates and shares are over the time since the step before, or the window's start."""

    step: int
    t: float  # when it ended, seconds since the run began
    duration_s: float  # since the step before
    reward: float | None  # mean of the train rollouts scored meanwhile, before any filter
    eval: float | None  # mean reward of the evaluation of this step's weights
    solve_rate: float | None
    production_per_s: float | None  # train rollouts scored / duration
    consumption_per_s: float | None  # rollouts of the batch / seconds of computing
    wait_fraction: float | None  # neither computing nor publishing
    compute_s: float
    publish_s: float
    depth_signal: int  # groups left waiting with signal when the batch was released
    staleness_mean: float | None  # of the trained tokens, steps
    staleness_max: int | None
    mean_tokens: float | None  # sampled tokens of a rollout
    truncated_fraction: float | None
    no_signal_fraction: float | None  # groups whose advantages are all 0
    num_rollouts: int  # scored meanwhile
    num_trained_rollouts: int
    num_tokens: int  # through the model
    num_trained_tokens: int  # counted by the loss
    flops: float | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])  # of the loss
    trajectory_staleness: dict[int, int] = field(default_factory=dict[int, int])  # steps -> rollouts
    token_staleness: dict[int, int] = field(default_factory=dict[int, int])  # steps -> tokens

    def row(self) -> dict[str, Any]:
        """Return the record as a flat dict for plots; loss metrics get the prefix `loss.`."""
        row = asdict(self)
        del row["trajectory_staleness"], row["token_staleness"]
        metrics = row.pop("metrics")
        return row | {f"loss.{name}": value for name, value in metrics.items()}


@dataclass(frozen=True, slots=True)
class EvalPoint:
    """One evaluation that was completed. `reward` is None when no rollout of it could be scored."""

    step: int  # of the version that was measured
    t: float
    reward: float | None
    num_rollouts: int
    num_failed: int
    pass_at_1: float | None = None  # None as for the reward
    pass_at_n: float | None = None
    n: int = 1  # rollouts of a task


class StepSeries:
    """Collects buckets, steps and evaluations."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.evals: list[EvalPoint] = []
        self.steps_ended = 0
        self._buckets: dict[int, Bucket] = {}
        self._released: BatchReleased | None = None
        self._trained_lengths: list[int] = []
        self._lengths: dict[str, int] = {}  # all tokens of a finished train rollout
        self._mark = 0.0  # where the step in progress began
        self._publish_s = 0.0  # since then

    @property
    def bucket(self) -> Bucket:
        """The step in progress."""
        return self._buckets.setdefault(self.steps_ended + 1, Bucket())

    def window_opened(self, t: float) -> None:
        """The first step of a life begins."""
        self._mark, self._publish_s = t, 0.0

    def finished(self, rollout: FinishedRollout, solved: bool) -> None:
        """A train rollout was scored."""
        bucket = self.bucket
        bucket.num_rollouts += 1
        bucket.num_solved += solved
        bucket.sum_reward += rollout.reward
        bucket.sum_tokens += rollout.num_tokens
        bucket.num_truncated += rollout.truncated
        self._lengths[rollout.rollout] = rollout.num_context_tokens

    def released(self, note: BatchReleased) -> None:
        """A batch left the queue."""
        self._released = note

    def training(self, command: Train) -> None:
        """A batch goes to the trainer."""
        known = self._lengths
        self._trained_lengths = [known[row.rollout] for row in command.rows if row.rollout in known]

    def sequence_tokens(self) -> float:
        """Token-weighted mean length of the batch in training, 0 where no length is known."""
        lengths = self._trained_lengths
        return ratio(sum(length * length for length in lengths), sum(lengths)) or 0.0

    def published(self, publish_s: float) -> None:
        """The trainer published weights."""
        self._publish_s += publish_s

    def step_ended(self, t: float, event: StepEnded, flops: float | None) -> StepRecord:
        """Close the step in progress."""
        bucket, batch = self._buckets.get(event.step, Bucket()), self._released
        fits = batch is not None and batch.step == event.step
        trajectory: dict[int, int] = {}
        for age in batch.trajectory_staleness if batch is not None and fits else ():
            trajectory[age] = trajectory.get(age, 0) + 1
        tokens = dict(batch.token_staleness) if batch is not None and fits else {}
        num_trained = batch.num_rollouts if batch is not None and fits else 0
        duration = max(0.0, t - self._mark)
        busy = event.compute_s + self._publish_s
        record = StepRecord(
            step=event.step,
            t=t,
            duration_s=duration,
            reward=ratio(bucket.sum_reward, bucket.num_rollouts),
            eval=None,
            solve_rate=ratio(bucket.num_solved, bucket.num_rollouts),
            production_per_s=ratio(bucket.num_rollouts, duration),
            consumption_per_s=ratio(num_trained, event.compute_s),
            wait_fraction=max(0.0, 1.0 - busy / duration) if duration else None,
            compute_s=event.compute_s,
            publish_s=self._publish_s,
            depth_signal=batch.queued_groups if batch is not None and fits else 0,
            staleness_mean=ratio(sum(age * n for age, n in tokens.items()), sum(tokens.values())),
            staleness_max=max(tokens, default=None),
            mean_tokens=ratio(bucket.sum_tokens, bucket.num_rollouts),
            truncated_fraction=ratio(bucket.num_truncated, bucket.num_rollouts),
            no_signal_fraction=ratio(bucket.num_zero_groups, bucket.num_decided_groups),
            num_rollouts=bucket.num_rollouts,
            num_trained_rollouts=num_trained,
            num_tokens=event.num_tokens,
            num_trained_tokens=event.num_trained_tokens,
            flops=flops,
            metrics=dict(event.metrics),
            trajectory_staleness=trajectory,
            token_staleness=tokens,
        )
        self.records.append(record)
        self.steps_ended = event.step
        self._mark, self._publish_s = t, 0.0
        return record

    def eval_ended(self, t: float, note: EvalEnded) -> EvalPoint:
        """An evaluation is complete."""
        reward = note.mean_reward if note.num_rollouts else None
        known = note.num_rollouts > 0
        point = EvalPoint(
            note.number,
            t,
            reward,
            note.num_rollouts,
            note.num_failed,
            note.pass_at_1 if known else None,
            note.pass_at_n if known else None,
            note.n,
        )
        self.evals.append(point)
        for record in reversed(self.records):
            if record.step == note.number:
                record.eval = reward
                break
        return point

    def resumed(self, step: int) -> None:
        """Take back what the checkpoint of `step` does not contain."""
        self.records = [record for record in self.records if record.step <= step]
        self.evals = [point for point in self.evals if point.step <= step]
        self._buckets = {number: bucket for number, bucket in self._buckets.items() if number <= step + 1}
        self.steps_ended = step
        self._released, self._trained_lengths = None, []

    def reward_ends(self) -> tuple[float | None, float | None]:
        """Return the mean reward over the first and over the last tenth of the ended steps.

        Each end starts with a tenth of the steps, rounded up, and takes in one more step until it rests on
        at least MIN_END_ROLLOUTS rollouts or on all steps. None without a step or a rollout.
        """
        numbers = range(1, self.steps_ended + 1)
        return self._end(list(numbers)), self._end(list(reversed(numbers)))

    def _end(self, order: list[int]) -> float | None:
        tenth = -(-len(order) // 10)
        count, total = 0, 0.0
        for position, number in enumerate(order):
            if position >= tenth and count >= MIN_END_ROLLOUTS:
                break
            if bucket := self._buckets.get(number):
                count += bucket.num_rollouts
                total += bucket.sum_reward
        return ratio(total, count)
