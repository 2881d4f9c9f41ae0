"""What is going on in a run at this moment, beside what RunMetrics adds up.

Consumes the records that RunMetrics was fed with, each right after it; waits for nothing. A record costs
the same however many rollouts are in flight, and so does everything that a frame asks for.

No event tells when an answer or a tool call begins, so where a rollout is follows from what ended last: with
a live sandbox it is at its tools after an answer and generating after a tool call; without one it generates.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, cast

from headway.core import commands, events, notes
from headway.core.records import Purpose
from headway.telemetry.records import Entry, Stat
from headway.telemetry.replica_loads import ReplicaLoads
from headway.telemetry.sandbox_places import SandboxPlaces
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.telemetry.header import JournalHeader
    from headway.telemetry.metrics import RunMetrics
    from headway.telemetry.steps import StepRecord

Where = Literal["generating", "sandbox", "tool", "scoring", "parked"]
WHERE: tuple[Where, ...] = ("generating", "sandbox", "tool", "scoring", "parked")
_RECENT = 512  # rollouts, and groups, that the newest lengths and shares rest on
_RECENT_STEPS = 10


@dataclass(slots=True)
class Flight:
    """A rollout between its start and its score."""

    rollout: str
    attempt: int
    task_id: str
    purpose: Purpose
    since: float  # when this attempt began, seconds
    where: Where = "generating"
    num_turns: int = 0
    in_sandbox: bool = False  # it has a live one


@dataclass(slots=True)
class Evaluation:
    """The evaluation in progress."""

    number: int  # version that is measured
    num_rollouts: int  # asked for
    num_scored: int = 0


class LiveState:
    """The present of a run.

    Attributes:
        metrics: what the run added up to so far; fed by the caller.
        flights: rollouts in flight, oldest attempt first.
        where: how many of them are where.
        started: every worker was there at once in this life.
        life_began: when this life did, seconds.
        trainer: what the trainer does, "" while it waits for a batch; since `trainer_since`.
        evaluation: the evaluation in progress.
        stopping: outcome that the run is ending with, "" before.
        guard_paused: the guard stopped the batches until a person says so.
        lengths: sampled tokens of the newest finished train rollouts, and whether each was cut off.
        solved: whether the newest scored train rollouts solved their task.
        no_signal: whether the newest decided groups had advantages of 0 alone.
    """

    def __init__(self, metrics: RunMetrics, header: JournalHeader) -> None:
        self.metrics = metrics
        self.settings: dict[str, Any] = dict(header.config)  # a change replaces its whole section
        self.flights: dict[str, Flight] = {}
        self.where: dict[Where, int] = dict.fromkeys(WHERE, 0)
        self.num_eval_flights = 0
        self.sandboxes = SandboxPlaces(_RECENT)
        self.replicas = ReplicaLoads()
        self.workers: set[str] = set()  # trainer and environments that joined
        self.started = False
        self.life_began = 0.0
        self.trainer = ""
        self.trainer_since = 0.0
        self.saving: int | None = None  # step of the checkpoint that is being written
        self.evaluation: Evaluation | None = None
        self.stopping = ""
        self.guard_paused = False
        self.limit: int | None = None  # rollouts that may be in flight, where a rule sets it
        self.last_alarm: notes.GuardAlarm | None = None
        self.lengths: deque[tuple[int, bool]] = deque(maxlen=_RECENT)
        self.solved: deque[bool] = deque(maxlen=_RECENT)
        self.no_signal: deque[bool] = deque(maxlen=_RECENT)
        self._groups = (0, 0)  # decided, without signal: totals at the last record
        self._rewards: list[float | None] | None = None
        for change in metrics.settings_changed:  # in earlier lives
            self._change(change["key"], change["value"])

    # --- what a frame asks for

    def setting(self, section: str, name: str, default: Any = None) -> Any:
        """Return a setting as it is now, `default` where the journal's header lacks it."""
        values = self.settings.get(section)
        return cast("dict[str, Any]", values).get(name, default) if isinstance(values, dict) else default

    @property
    def batch_groups(self) -> int:
        """Groups that a batch takes, 0 where it is unknown."""
        size, group = self.setting("queue", "batch_size", 0), self.setting("queue", "group_size", 1)
        return size // max(1, group)

    def slowest(self, num: int) -> list[Flight]:
        """Return the oldest rollouts in flight, the oldest first."""
        return list(islice(self.flights.values(), num))

    def recent_steps(self) -> list[StepRecord]:
        """Return the newest few steps, which rates and shares of the present rest on."""
        return self.metrics.steps.records[-_RECENT_STEPS:]

    def rewards(self) -> list[float | None]:
        """Return the mean reward of each step; made anew once a step."""
        if self._rewards is None:
            self._rewards = [record.reward for record in self.metrics.steps.records]
        return self._rewards

    @property
    def num_workers(self) -> tuple[int, int]:
        """Workers that are ready, and workers that the run has."""
        return len(self.workers) + self.replicas.num_up, self.metrics.facts.num_processes

    # --- what the journal tells

    def feed(self, record: Entry | Stat) -> None:
        """Take the next record in; the metrics have it already."""
        if isinstance(record, Stat):
            return
        t = record.t
        if not record.is_ignored:
            self._event(t, record.event)
        for note in record.notes:
            self._note(note)
        for command in record.commands:
            self._command(t, command)
        groups = self.metrics.groups
        if groups.num_decided > self._groups[0]:
            zero = groups.num_zero - self._groups[1]
            self.no_signal.extend(index < zero for index in range(groups.num_decided - self._groups[0]))
            self._groups = (groups.num_decided, groups.num_zero)

    def _event(self, t: float, event: events.Event) -> None:
        match event:
            case events.TurnEnded():
                if flight := self._flight(event.rollout, event.attempt):
                    flight.num_turns = max(flight.num_turns, event.turn + 1)
                    self._move(flight, "tool" if flight.in_sandbox else "generating")
            case events.ToolEnded() | events.RolloutResumed():
                if isinstance(event, events.ToolEnded) and event.where == "sandbox":
                    self.sandboxes.calls_s.append(event.duration_s)
                if flight := self._flight(event.rollout, event.attempt):
                    self._move(flight, "generating")
            case events.RolloutParked():
                if flight := self._flight(event.rollout, event.attempt):
                    self._move(flight, "parked")
            case events.RolloutEnded():
                if flight := self._flight(event.rollout, event.attempt):
                    self._move(flight, "scoring")
                    if flight.purpose == "train":
                        self.lengths.append((event.num_tokens, event.truncated))
            case events.RolloutFailed():
                if self._flight(event.rollout, event.attempt):
                    self._leave(event.rollout)
            case events.Scored():
                self._scored(event)
            case events.SandboxWanted() | events.SandboxReady():
                self._sandbox(event)
            case events.SandboxRefused():
                self.sandboxes.gone(event.sandbox)
                self.sandboxes.wanted(event.rollout, event.sandbox)
            case events.SandboxReleased() | events.SandboxLost():
                self.sandboxes.gone(event.sandbox)
                if flight := self._flight(event.rollout, event.attempt):
                    flight.in_sandbox = False
            case _:
                self._run_event(t, event)

    def _run_event(self, t: float, event: events.Event) -> None:
        match event:
            case events.RunStarted() | events.RunResumed():
                self._new_life(t)
            case events.WorkerJoined():
                self.workers.add(event.worker)
            case events.WorkerLost():
                self.workers.discard(event.worker)
                if event.role == "trainer":
                    self._trainer(t, "")
            case events.PartEnded():
                if self.trainer.startswith("beginning"):  # else it has the rest of the batch by now
                    self._trainer(t, "")
            case events.StepEnded() | events.VersionPublished() | events.RolledBack():
                self._trainer(t, "")
                self._rewards = None
            case events.CheckpointDone():
                self.saving = None
            case events.SettingChanged():
                self._change(event.key, event.value)
            case _:
                self.replicas.feed(event)
        if not self.started:
            ready, wanted = self.num_workers
            self.started = ready >= wanted

    def _note(self, note: notes.Note) -> None:
        match note:
            case notes.RolloutSettled():
                self._leave(note.rollout)
            case notes.EvalStarted():
                each = self.setting("eval", "rollouts_per_task", 1)
                self.evaluation = Evaluation(note.number, note.num_tasks * each)
            case notes.EvalEnded():
                self.evaluation = None
            case notes.ConcurrencyChanged():
                self.limit = note.limit
            case notes.GuardAlarm():
                self.last_alarm = note
                self.guard_paused = self.guard_paused or note.action == "pause"
            case notes.RolledBackTo():
                self.guard_paused = False
                self._rewards = None
            case notes.Stopping():
                self.stopping = note.outcome
            case _:
                pass

    def _command(self, t: float, command: commands.Command) -> None:
        match command:
            case commands.StartRollout():
                self._start(Flight(command.rollout, command.attempt, command.task_id, command.purpose, t))
            case commands.Score():
                if command.rollout not in self.flights:  # it finished in an earlier life
                    purpose = "train" if command.rollout.startswith("t") else "eval"
                    self._start(Flight(command.rollout, command.attempt, command.task_id, purpose, t))
                self._move(self.flights[command.rollout], "scoring")
            case commands.GrantSandbox():
                self.sandboxes.granted(command.sandbox)
            case commands.TrainPart():
                self._trainer(t, f"beginning step {command.step}")
            case commands.Train():
                self._trainer(t, f"training step {command.step}")
            case commands.Publish():
                self._trainer(t, f"publishing version {command.number}")
            case commands.Rollback():
                self._trainer(t, f"going back to step {command.step}")
            case commands.Checkpoint():
                self.saving = command.step
            case _:
                pass

    def _scored(self, event: events.Scored) -> None:
        flight = self._flight(event.rollout, event.attempt)
        if flight is None:
            return
        if flight.purpose == "train":
            self.solved.append(event.reward >= self.metrics.facts.solved_reward)
        elif self.evaluation is not None:
            self.evaluation.num_scored += 1
        self._leave(event.rollout)

    def _sandbox(self, event: events.SandboxWanted | events.SandboxReady) -> None:
        flight = self._flight(event.rollout, event.attempt)
        if isinstance(event, events.SandboxWanted):
            self.sandboxes.wanted(event.rollout, event.sandbox)
        else:
            self.sandboxes.ready(event.sandbox, event.start_s)
        if flight is not None and flight.where != "scoring":  # a verifier's is no place of the rollout
            flight.in_sandbox = isinstance(event, events.SandboxReady)
            self._move(flight, "tool" if flight.in_sandbox else "sandbox")

    def _change(self, key: str, value: Any) -> None:
        section, _, name = key.partition(".")
        self.settings[section] = {**self.settings.get(section, {}), name: value}
        if key == "guard.paused" and not value:
            self.guard_paused = False

    def _new_life(self, t: float) -> None:
        self.flights.clear()
        self.where = dict.fromkeys(WHERE, 0)
        self.num_eval_flights = 0
        self.sandboxes.clear()
        self.replicas = ReplicaLoads()
        self.workers.clear()
        self.started, self.life_began = False, t
        self.trainer, self.saving, self.evaluation, self.stopping = "", None, None, ""
        self.guard_paused, self._rewards = False, None

    def _trainer(self, t: float, doing: str) -> None:
        self.trainer, self.trainer_since = doing, t

    def _flight(self, rollout: str, attempt: int) -> Flight | None:
        flight = self.flights.get(rollout)
        return flight if flight is not None and flight.attempt == attempt else None

    def _start(self, flight: Flight) -> None:
        self._leave(flight.rollout)
        self.flights[flight.rollout] = flight
        self.where[flight.where] += 1
        self.num_eval_flights += flight.purpose == "eval"

    def _leave(self, rollout: str) -> None:
        flight = self.flights.pop(rollout, None)
        if flight is not None:
            self.where[flight.where] -= 1
            self.num_eval_flights -= flight.purpose == "eval"
        self.sandboxes.forget_wish(rollout)

    def _move(self, flight: Flight, where: Where) -> None:
        self.where[flight.where] -= 1
        self.where[where] += 1
        flight.where = where


def recent_rates(steps: list[StepRecord]) -> tuple[float | None, float | None, float | None]:
    """Return made/s, used/s and the wait fraction over some steps, as the progress lines define them."""
    duration_s = sum(step.duration_s for step in steps)
    compute_s = sum(step.compute_s for step in steps)
    busy_s = compute_s + sum(step.publish_s for step in steps)
    made = ratio(sum(step.num_rollouts for step in steps), duration_s)
    used = ratio(sum(step.num_trained_rollouts for step in steps), compute_s)
    return made, used, max(0.0, 1.0 - busy_s / duration_s) if duration_s else None
