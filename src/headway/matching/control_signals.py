"""What the controller sees: a run's journal, summed up for each cycle. Pure.

Consumes entries in their order; waits for nothing. A cycle is the time from one batch's release to the next.
The trainer waits from the moment that it has published, or taken a step whose version is not published, until
the next batch leaves; what it gathered meanwhile (queue.stream) is no waiting.

Invariants: nothing is read but the journal, so that the same entries give the same cycles; what is kept grows
with the rollouts in flight and with nothing else.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from headway.core import commands, events, notes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SMOOTHING = 0.1  # weight of the newest rollout in the mean lifetime
_RECENT = 512  # finished rollouts whose lengths are kept
E = TypeVar("E")


class Handled(Protocol):
    """One event with what followed from it, as either driver has it."""

    @property
    def t(self) -> float:
        """Seconds since the run began."""
        ...

    @property
    def event(self) -> events.Event:
        """What happened."""
        ...

    @property
    def commands(self) -> Sequence[commands.Command]:
        """What the scheduler asked for."""
        ...

    @property
    def notes(self) -> Sequence[notes.Note]:
        """What it decided."""
        ...


@dataclass(frozen=True, slots=True)
class Cycle:
    """One cycle; or, with `ended` False, the one in which the trainer has waited for long already."""

    t: float  # of its end
    length_s: float
    wait_s: float  # that the trainer waited
    num_rollouts: int = 0  # that its batch trains
    num_groups: int = 0  # of that batch
    num_queued: int = 0  # groups left behind, with signal
    num_open: int = 0  # groups admitted and not settled, behind the release
    in_flight: float = 0.0  # train rollouts, mean over the cycle
    in_flight_now: int = 0
    waiting_share: float = 0.0  # of the answers' time, in the engine's line
    engine_share: float = 0.0  # of the answers' and tools' time, the answers'
    num_turns: int = 0
    num_preemptions: int = 0
    kv_used: float = 0.0  # of the fullest replica, mean of its measurements; 0 where nobody measures
    at_engine: float = 0.0  # requests that run or stand in line, of all replicas, mean of their measurements
    resident: float = 0.0  # of these, those that run
    num_tokens: int = 0  # sampled, of the rollouts that were settled
    num_wasted: int = 0  # of these, thrown away by oversampling
    num_stale: int = 0  # of these, too old
    slow_ratio: float = 1.0  # a group's slowest member by its second slowest, mean over groups
    near_share: float = 0.0  # of the wait, in which most of the batch was there
    lifetime_s: float = 0.0  # of a rollout, from its start to its score
    ended: bool = True

    @property
    def wait(self) -> float:
        """Share that the trainer waited."""
        return self.wait_s / self.length_s if self.length_s > 0 else 0.0

    @property
    def waste(self) -> float:
        """Share of the sampled tokens that oversampling threw away."""
        return self.num_wasted / self.num_tokens if self.num_tokens else 0.0

    @property
    def stale(self) -> float:
        """Share of the sampled tokens that became too old."""
        return self.num_stale / self.num_tokens if self.num_tokens else 0.0

    @property
    def preempted(self) -> float:
        """Preemptions by answers."""
        return self.num_preemptions / max(1, self.num_turns)


@dataclass(slots=True)
class _Sums:
    """What a cycle adds up."""

    area: float = 0.0  # of train rollouts in flight over time
    waiting_s: float = 0.0
    answering_s: float = 0.0
    tool_s: float = 0.0
    num_turns: int = 0
    num_preemptions: int = 0
    # by replica: measurements, and sums of KV, running, in line
    loads: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    num_tokens: int = 0
    num_wasted: int = 0
    num_stale: int = 0
    slow: float = 0.0
    num_slow: int = 0
    gathered_s: float = 0.0


class Signals:
    """Folds entries into cycles.

    Args:
        near: groups that are most of a batch.
    """

    def __init__(self, near: int) -> None:
        self.near = near
        self.lengths: deque[int] = deque(maxlen=_RECENT)  # tokens of the newest finished rollouts
        self.lifetime_s = 0.0
        self.odd = True  # something unusual happened in this cycle
        self.free_s: float | None = None  # since when the trainer waits
        self.num_cycles = 0
        self._sums = _Sums()
        self._released_s: float | None = None
        self._began_s: float | None = None
        self._now = 0.0
        self._running: set[str] = set()
        self._started: dict[str, tuple[float, str]] = {}  # rollout -> when, group
        self._members: dict[str, list[float]] = {}  # group -> seconds of its scored rollouts
        self._preemptions: dict[tuple[str, int], int] = {}
        self._num_queued = 0
        self._num_open = 0
        self._near_s: float | None = None
        self._evaluates = False
        self._on = cast(
            "dict[type, Callable[[events.Event], None]]",
            {
                events.TurnEnded: self._turn_ended,
                events.ToolEnded: self._tool_ended,
                events.ReplicaChanged: self._replica_changed,
                events.RolloutEnded: self._rollout_ended,
                events.RolloutFailed: self._rollout_left,
                events.RolloutParked: self._rollout_left,
                events.RolloutResumed: self._rollout_resumed,
                events.Scored: self._scored,
                events.PartEnded: self._part_ended,
                events.VersionPublished: self._published,
                events.RunResumed: self._run_resumed,
                events.ReplicaLost: self._is_odd,
                events.ReplicaJoined: self._is_odd,
                events.WorkerLost: self._is_odd,
                events.RolledBack: self._is_odd,
            },
        )

    def feed(self, entry: Handled) -> Cycle | None:
        """Take in one entry; return the cycle that it ends, None for one that says nothing."""
        t, event = entry.t, entry.event
        self._sums.area += len(self._running) * (t - self._now)
        self._now = t
        cycle: Cycle | None = None
        take = self._on.get(type(event))
        if take is not None and not _is_ignored(entry):
            take(event)
        if type(event) is events.StepEnded:
            publishes = any(type(command) is commands.Publish for command in entry.commands)
            self.free_s = None if publishes else t
        for command in entry.commands:
            if type(command) is commands.StartRollout:
                self._start(command)
        for note in entry.notes:
            kind = type(note)
            if kind is notes.RolloutSettled:
                self._settled(cast("notes.RolloutSettled", note))
            elif kind is notes.GroupSettled:
                self._group_settled(cast("notes.GroupSettled", note))
            elif kind is notes.QueueDepth:
                depth = cast("notes.QueueDepth", note)
                self._num_open, self._num_queued = depth.running, depth.queued
            elif kind in (notes.EvalStarted, notes.EvalEnded):
                self._evaluates, self.odd = kind is notes.EvalStarted, True
            elif kind in (notes.RolledBackTo, notes.Stopping, notes.GuardAlarm):
                self.odd = True
        for note in entry.notes:
            if type(note) is notes.BatchReleased:
                cycle = self._released(note)
        return cycle

    def waiting(self) -> Cycle | None:
        """Return the cycle so far, while the trainer waits; None where it says nothing."""
        if self.free_s is None or self._released_s is None or self.odd or self._evaluates:
            return None
        return self._cycle(0, 0, ended=False)

    # --- events

    def _turn_ended(self, event: events.TurnEnded) -> None:
        sums = self._sums
        sums.num_turns += 1
        sums.waiting_s += event.waiting_s
        sums.answering_s += event.waiting_s + event.prefill_s + event.decode_s

    def _tool_ended(self, event: events.ToolEnded) -> None:
        self._sums.tool_s += event.duration_s

    def _replica_changed(self, event: events.ReplicaChanged) -> None:
        key = (event.replica, event.epoch)
        self._sums.num_preemptions += max(0, event.num_preemptions - self._preemptions.get(key, 0))
        self._preemptions[key] = event.num_preemptions
        load = self._sums.loads.setdefault(event.replica, [0.0] * 4)
        for place, value in enumerate((1.0, event.kv_used_fraction, event.num_running, event.num_waiting)):
            load[place] += value

    def _rollout_ended(self, event: events.RolloutEnded) -> None:
        if event.rollout in self._started:
            self.lengths.append(event.num_tokens)
        self._running.discard(event.rollout)

    def _rollout_left(self, event: events.RolloutFailed | events.RolloutParked) -> None:
        self._running.discard(event.rollout)

    def _rollout_resumed(self, event: events.RolloutResumed) -> None:
        if event.rollout in self._started:
            self._running.add(event.rollout)

    def _scored(self, event: events.Scored) -> None:
        found = self._started.get(event.rollout)
        if found is None:
            return
        took_s = self._now - found[0]
        self._members.setdefault(found[1], []).append(took_s)
        weight = _SMOOTHING if self.lifetime_s else 1.0
        self.lifetime_s += weight * (took_s - self.lifetime_s)

    def _part_ended(self, event: events.PartEnded) -> None:
        self._sums.gathered_s += event.compute_s

    def _published(self, _: events.VersionPublished) -> None:
        self.free_s = self._now

    def _run_resumed(self, _: events.RunResumed) -> None:
        self._running.clear()
        self._started.clear()
        self._members.clear()
        self._released_s = self._began_s = self.free_s = None
        self._num_queued = self._num_open = 0
        self._evaluates = False
        self.odd = True

    def _is_odd(self, _: events.Event) -> None:
        self.odd = True

    # --- commands and notes

    def _start(self, command: commands.StartRollout) -> None:
        if command.purpose != "train":
            return
        if self._began_s is None:
            self._began_s = self._now
        self._running.add(command.rollout)
        self._started[command.rollout] = self._now, command.group

    def _settled(self, note: notes.RolloutSettled) -> None:
        if self._started.pop(note.rollout, None) is None:
            return
        self._running.discard(note.rollout)
        sums = self._sums
        sums.num_tokens += note.num_tokens
        sums.num_wasted += note.num_tokens * (note.fate == "cancelled")
        sums.num_stale += note.num_tokens * (note.fate == "stale")

    def _group_settled(self, note: notes.GroupSettled) -> None:
        if note.purpose != "train":
            return
        took = sorted(self._members.pop(note.group, ()))
        if len(took) > 1 and took[-2] > 0:
            self._sums.slow += took[-1] / took[-2]
            self._sums.num_slow += 1
        if note.fate == "queued":
            self._num_queued += 1
            if self._num_queued >= self.near and self._near_s is None:
                self._near_s = self._now

    def _released(self, note: notes.BatchReleased) -> Cycle | None:
        cycle = None
        settled = self._began_s is not None and self._now - self._began_s >= 2.0 * self.lifetime_s
        if self._released_s is not None and not self.odd and not self._evaluates and settled:
            cycle = self._cycle(note.num_rollouts, len(note.groups), ended=True)
        self.odd, self.free_s = False, None
        self._released_s, self._sums = self._now, _Sums()
        self._near_s = self._now if self._num_queued >= self.near else None
        self.num_cycles += cycle is not None
        return cycle

    def _cycle(self, num_rollouts: int, num_groups: int, *, ended: bool) -> Cycle:
        now, sums = self._now, self._sums
        began = self._released_s if self._released_s is not None else now
        free = now if self.free_s is None else self.free_s
        wait_s = max(0.0, now - free - sums.gathered_s)
        near_s = 0.0 if self._near_s is None else now - max(free, self._near_s)
        length_s = now - began
        loads = [(kv / num, running / num, line / num) for num, kv, running, line in sums.loads.values()]
        return Cycle(
            t=now,
            length_s=length_s,
            wait_s=wait_s,
            num_rollouts=num_rollouts,
            num_groups=num_groups,
            num_queued=self._num_queued,
            num_open=self._num_open,
            in_flight=sums.area / length_s if length_s > 0 else 0.0,
            in_flight_now=len(self._running),
            waiting_share=sums.waiting_s / sums.answering_s if sums.answering_s > 0 else 0.0,
            engine_share=sums.answering_s / max(1e-9, sums.answering_s + sums.tool_s),
            num_turns=sums.num_turns,
            num_preemptions=sums.num_preemptions,
            kv_used=max((kv for kv, _, _ in loads), default=0.0),
            at_engine=sum(running + line for _, running, line in loads),
            resident=sum(running for _, running, _ in loads),
            num_tokens=sums.num_tokens,
            num_wasted=sums.num_wasted,
            num_stale=sums.num_stale,
            slow_ratio=sums.slow / sums.num_slow if sums.num_slow else 1.0,
            near_share=near_s / wait_s if wait_s > 0 else 0.0,
            lifetime_s=self.lifetime_s,
            ended=ended,
        )


def _is_ignored(entry: Handled) -> bool:
    """Say whether the event was late or repeated, and changed nothing."""
    kind = type(entry.event).__name__
    return any(type(note) is notes.Ignored and note.event == kind for note in entry.notes)
