"""A run as the findings need it: its metrics, and what they do not tell, from one pass over the journal.

Consumes every record in order; waits for nothing. `Reading.of` reads a journal; a reader that has metrics
of its own gives them, feeds them first, and this after it.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from headway.core import commands, events, notes
from headway.matching.advice.phases import Phases
from headway.matching.advice.replicas import Replicas
from headway.matching.advice.waits import Waits
from headway.telemetry.machine import cores_of
from headway.telemetry.metrics import LATENCY_PARTS, RunMetrics
from headway.telemetry.page.limits import Limits, limits_at
from headway.telemetry.records import Entry
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.telemetry.header import JournalHeader
    from headway.telemetry.journal import Journal
    from headway.telemetry.records import Stat
    from headway.telemetry.rollouts import FinishedRollout
    from headway.telemetry.steps import StepRecord


@dataclass(slots=True)
class Bucket:
    """The train rollouts that were scored while one step was in progress."""

    num_rollouts: int = 0
    tokens: int = 0  # sampled
    context_tokens: int = 0
    tool_calls: int = 0
    end_to_end_s: float = 0.0
    parts_s: list[float] = field(default_factory=lambda: [0.0] * len(LATENCY_PARTS))


@dataclass(frozen=True, slots=True)
class SettledGroup:
    """A train group with scores."""

    step: int  # in progress
    num_rollouts: int
    all_solved: bool
    all_failed: bool


class Reading:
    """Everything that findings rest on.

    Attributes:
        header: of the journal.
        settings: section -> settings, as they are by now.
        metrics: of the same records.
        phases: trainer and generators side by side.
        waits: lines.
        replicas: of the generator.
        buckets: by number of the step in progress.
        groups: settled, in order.
        num_offered, num_repeated: train tasks that the sources gave, and those that they had given before.
        closers_s, num_closers: end-to-end seconds of the rollouts that ended a wait, the last of their batch.
    """

    def __init__(self, header: JournalHeader, metrics: RunMetrics | None = None) -> None:
        self.header = header
        self.metrics = RunMetrics(header) if metrics is None else metrics
        self._feeds_metrics = metrics is None
        self._before = self.metrics.when_finished
        self.metrics.when_finished = self._finished
        self.phases = Phases()
        self.waits = Waits()
        self.replicas = Replicas()
        self.buckets: dict[int, Bucket] = {}
        self.groups: list[SettledGroup] = []
        self.closers_s, self.num_closers = 0.0, 0
        self.num_offered = self.num_repeated = 0
        self._requests: dict[int, str] = {}  # open request of a train task -> its source
        self._tasks: set[tuple[str, str]] = set()
        self.last_t = 0.0
        self.settings: dict[str, Any] = {**deepcopy(header.queue), **deepcopy(header.config)}
        self._at_limit = False
        self._waited = False
        self._last: FinishedRollout | None = None
        self._limits: Limits | None = None
        self._limits_changed()

    @classmethod
    def of(cls, journal: Journal) -> Reading:
        """Read a whole journal."""
        reading = cls(journal.header)
        for record in journal:
            reading.feed(record)
        return reading

    def feed(self, record: Entry | Stat) -> None:
        """Take the next record in."""
        self._waited = self.phases.waits
        if isinstance(record, Entry):
            self.phases.advance(record.t, self._at_limit)
            self.last_t = record.t
        if self._feeds_metrics:
            self.metrics.feed(record)
        if not isinstance(record, Entry):
            return
        if not record.is_ignored:
            self.phases.feed(record)
            self.waits.feed(record)
            self.replicas.feed(record.event)
            self._event(record.event)
        for command in record.commands:
            if isinstance(command, commands.RequestTask) and command.split == "train":
                self._requests[command.request] = command.source
        for note in record.notes:
            self._note(note)
        limits = self._limits
        self._at_limit = limits is not None and self.metrics.depth.all.value >= limits.most

    # --- what is asked of it

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Every metric; asked for once everything was read."""
        return self.metrics.summary()

    @property
    def records(self) -> list[StepRecord]:
        """The surviving steps."""
        return self.metrics.steps.records

    @property
    def limits(self) -> Limits | None:
        """How many groups may be on their way, as the settings are now."""
        return self._limits

    def get(self, key: str, default: Any = None) -> Any:
        """Return a setting as it is at the end, such as `queue.bound`."""
        section, _, name = key.partition(".")
        return _section(self.settings, section).get(name, default)

    @property
    def depth(self) -> int:
        """Steps that generation may run ahead."""
        depth = int(self.get("queue.depth", -1))
        return int(self.get("queue.bound", 0)) if depth < 0 else depth

    @property
    def batch_rollouts(self) -> int:
        """Rollouts of a full batch."""
        return int(self.get("queue.batch_size", 1))

    @property
    def cores(self) -> int | None:
        """Usable cores of the machine that the run began on, None where they are not recorded."""
        return None if self.header.simulated else cores_of(self.header.machine)

    @property
    def starved(self) -> float:
        """Share of the window in which the trainer waited for rollouts."""
        return self.phases.share(self.phases.total.starved_s)

    @property
    def end_to_end_s(self) -> float:
        """Of all finished train rollouts, summed."""
        return sum(bucket.end_to_end_s for bucket in self.buckets.values())

    def part_s(self, part: str) -> float:
        """Return the seconds of a part of the latency, summed over finished train rollouts."""
        place = LATENCY_PARTS.index(part)
        return sum(bucket.parts_s[place] for bucket in self.buckets.values())

    def part_share(self, part: str) -> float:
        """Return a part of all rollouts' time."""
        return ratio(self.part_s(part), self.end_to_end_s) or 0.0

    @property
    def slots_used(self) -> float | None:
        """Share of the generator's slots that were busy while it worked, None where nobody knows."""
        slots = self.replicas.slots
        if not slots:
            return None
        told = self.replicas.mean("running")
        if told is not None:
            return told * len(self.replicas.by_name) / slots
        generating = self.part_share("prefill_s") + self.part_share("decode_s")
        return min(1.0, self.phases.level(0.95) * generating / slots)

    # --- what it takes in

    def _event(self, event: events.Event) -> None:
        match event:
            case events.SettingChanged():
                section, _, name = event.key.partition(".")
                _section(self.settings, section)[name] = event.value
                self._limits_changed()
            case events.TaskOffered() if event.request in self._requests:
                task = (self._requests.pop(event.request), event.task_id)
                self.num_offered += 1
                self.num_repeated += task in self._tasks
                self._tasks.add(task)
            case events.RunResumed():
                self._took_back(event.step)
                self._requests.clear()
            case _:
                pass

    def _note(self, note: notes.Note) -> None:
        match note:
            case notes.GroupSettled() if note.purpose == "train" and note.num_rollouts > 1:
                solved = self.metrics.facts.solved_reward
                step = self.metrics.steps.steps_ended + 1
                self.groups.append(
                    SettledGroup(step, note.num_rollouts, note.min_reward >= solved, note.max_reward < solved)
                )
            case notes.BatchReleased() if self._waited and self._last is not None:
                self.closers_s += self._last.end_to_end_s
                self.num_closers += 1
            case notes.RolledBackTo():
                self._took_back(note.step)
            case _:
                pass

    def _finished(self, rollout: FinishedRollout) -> None:
        if self._before is not None:
            self._before(rollout)
        self._last = rollout
        bucket = self.buckets.setdefault(self.metrics.steps.steps_ended + 1, Bucket())
        bucket.num_rollouts += 1
        bucket.tokens += rollout.num_tokens
        bucket.context_tokens += rollout.num_context_tokens
        bucket.tool_calls += rollout.num_tool_calls
        bucket.end_to_end_s += rollout.end_to_end_s
        for place, part in enumerate(LATENCY_PARTS):
            bucket.parts_s[place] += getattr(rollout.latency, part)

    def _took_back(self, step: int) -> None:
        self.buckets = {number: bucket for number, bucket in self.buckets.items() if number <= step + 1}
        self.groups = [group for group in self.groups if group.step <= step + 1]

    def _limits_changed(self) -> None:
        self._limits = limits_at(0.0, self.settings)


def _section(settings: dict[str, Any], name: str) -> dict[str, Any]:
    section = settings.get(name)
    return cast("dict[str, Any]", section) if isinstance(section, dict) else {}
