"""What the page shows beside the metrics, collected in the same pass over the journal.

Consumes every record in order; waits for nothing. Follows RunMetrics in what survives: a step that a resume
or a rollback took back is in no series, and the rollouts that were scored while it was in progress neither.
"""

from __future__ import annotations

import heapq
from array import array
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from headway.core import events, notes
from headway.telemetry.metrics import LATENCY_PARTS, RunMetrics
from headway.telemetry.page.limits import Limits, limits_at
from headway.telemetry.records import Entry
from headway.telemetry.rollouts import FinishedRollout

if TYPE_CHECKING:
    from headway.telemetry.header import JournalHeader
    from headway.telemetry.journal import Journal
    from headway.telemetry.records import Stat

NUM_SLOWEST = 12  # rows of the table of the slowest
MarkKind = Literal["alarm", "rollback", "resume", "setting"]
Kept = TypeVar("Kept")


@dataclass(slots=True)
class StepBucket:
    """The train rollouts that were scored, and the groups that settled, while one step was in progress."""

    tokens: array[float] = field(default_factory=lambda: array("d"))  # sampled, one a rollout
    tool_calls: array[float] = field(default_factory=lambda: array("d"))  # one a rollout
    latency_s: list[float] = field(default_factory=lambda: [0.0] * len(LATENCY_PARTS))  # sums by part
    num_groups: int = 0  # with at least one score
    num_any_solved: int = 0  # of these


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one moment and explains what the curves do."""

    kind: MarkKind
    t: float
    step: float  # where it belongs on an axis of steps
    text: str


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that changed while the run went on or between two lives of it."""

    t: float
    step: int  # steps taken before
    key: str
    before: Any
    after: Any
    reason: str = ""  # that the controller gave


@dataclass(frozen=True, slots=True)
class SlowRollout:
    """A train rollout and the step in progress when it was scored."""

    step: int
    rollout: FinishedRollout


class Slowest:
    """Keeps the few that took longest."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Any]] = []
        self._num = 0

    def add(self, seconds: float, item: object) -> None:
        """Take one in."""
        self._num += 1
        entry = (seconds, -self._num, item)
        if len(self._heap) < NUM_SLOWEST:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def items(self, kind: type[Kept]) -> list[Kept]:
        """Return them, slowest first."""
        return [item for _, _, item in sorted(self._heap, reverse=True) if isinstance(item, kind)]


class PageData:
    """A run as the page needs it.

    Attributes:
        metrics: everything that the text report is made of.
        config: the settings as they are by now.
        buckets: by number of the step in progress.
        depth_t, depth_all, depth_signal: each change of the queue's depth.
        limits: what the depth was limited by, from when on.
    """

    def __init__(self, header: JournalHeader) -> None:
        self.header = header
        self.metrics = RunMetrics(header)
        self.metrics.when_finished = self._finished
        self.buckets: dict[int, StepBucket] = {}
        self.depth_t, self.depth_all, self.depth_signal = array("d"), array("d"), array("d")
        self.limits: list[Limits] = []
        self.marks: list[Mark] = []
        self.changes: list[SettingChange] = []
        self.slowest_rollouts = Slowest()
        self.config = deepcopy(header.config)
        self._queue = deepcopy(header.queue)
        self._limits_changed(0.0)

    @classmethod
    def of(cls, journal: Journal) -> PageData:
        """Return the data of a whole journal."""
        data = cls(journal.header)
        for record in journal:
            data.feed(record)
        return data

    def feed(self, record: Entry | Stat) -> None:
        """Take the next record in."""
        self.metrics.feed(record)
        if not isinstance(record, Entry):
            return
        self._event(record.t, record.event)
        for note in record.notes:
            self._note(record.t, note)
        self._depth(record.t)

    @property
    def bucket(self) -> StepBucket:
        """The step in progress."""
        return self.buckets.setdefault(self.metrics.steps.steps_ended + 1, StepBucket())

    def _event(self, t: float, event: events.Event) -> None:
        match event:
            case events.RunResumed():
                self._took_back(event.step)
                self._mark("resume", t, event.step + 0.5, f"resumed after step {event.step}")
            case events.SettingChanged():
                self._changed(t, event)
            case _:
                pass

    def _note(self, t: float, note: notes.Note) -> None:
        match note:
            case notes.GroupSettled() if note.purpose == "train" and note.num_rollouts:
                bucket = self.bucket
                bucket.num_groups += 1
                bucket.num_any_solved += note.num_solved > 0
            case notes.GuardAlarm():
                text = f"{note.metric} {note.value:.4g}, limit {note.limit:.4g}: {note.action}"
                self._mark("alarm", t, note.step, text)
            case notes.RolledBackTo():
                self._took_back(note.step)
                text = f"back from step {note.from_step} to step {note.step}: {note.reason}"
                self._mark("rollback", t, note.step + 0.5, text)
            case _:
                pass

    def _finished(self, rollout: FinishedRollout) -> None:
        bucket = self.bucket
        bucket.tokens.append(rollout.num_tokens)
        bucket.tool_calls.append(rollout.num_tool_calls)
        for position, part in enumerate(LATENCY_PARTS):
            bucket.latency_s[position] += getattr(rollout.latency, part)
        slow = SlowRollout(self.metrics.steps.steps_ended + 1, rollout)
        self.slowest_rollouts.add(rollout.end_to_end_s, slow)

    def _took_back(self, step: int) -> None:
        self.buckets = {number: bucket for number, bucket in self.buckets.items() if number <= step + 1}

    def _mark(self, kind: MarkKind, t: float, step: float, text: str) -> None:
        self.marks.append(Mark(kind, t, step, text))

    def _changed(self, t: float, event: events.SettingChanged) -> None:
        section, _, name = event.key.partition(".")
        before = _assign(self.config, section, name, event.value)
        _assign(self._queue, section, name, event.value)
        step = self.metrics.steps.steps_ended
        self.changes.append(SettingChange(t, step, event.key, before, event.value, event.reason))
        self._mark("setting", t, step + 0.5, f"{event.key} = {event.value!r}")
        self._limits_changed(t)

    def _limits_changed(self, t: float) -> None:
        limits = limits_at(t, self._queue)
        if limits is not None and (
            not self.limits or (limits.batch, limits.most) != (self.limits[-1].batch, self.limits[-1].most)
        ):
            self.limits.append(limits)

    def _depth(self, t: float) -> None:
        every, signal = self.metrics.depth.all.value, self.metrics.depth.signal.value
        if self.depth_t and (self.depth_all[-1], self.depth_signal[-1]) == (every, signal):
            return
        if not self.depth_t and not every:
            return  # nothing was admitted yet
        self.depth_t.append(t)
        self.depth_all.append(every)
        self.depth_signal.append(signal)


def _assign(config: dict[str, Any], section: str, name: str, value: object) -> object:
    """Set a key and return what it was."""
    if not isinstance(config.get(section), dict):
        return None
    table = cast("dict[str, object]", config[section])
    before = table.get(name)
    table[name] = value
    return before
