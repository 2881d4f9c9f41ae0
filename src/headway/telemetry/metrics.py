"""Every metric of a run, from its journal and from nothing else.

Consumes header, entries and stats in order, live or offline; waits for nothing. A late or repeated event,
one that the scheduler noted as Ignored, changes no metric.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from headway.core import commands, events, notes
from headway.core.records import Latency
from headway.telemetry.depth import Level, QueueDepth
from headway.telemetry.disk import DiskUse, SegmentAges
from headway.telemetry.driver import DriverCost
from headway.telemetry.groups import Groups
from headway.telemetry.ledger import Ledger
from headway.telemetry.partial import Partial
from headway.telemetry.pruning import Pruning
from headway.telemetry.records import Entry, Stat
from headway.telemetry.rollouts import FinishedRollout, Rollouts
from headway.telemetry.run_facts import RunFacts, facts_of
from headway.telemetry.sandboxes import Sandboxes
from headway.telemetry.steps import StepSeries
from headway.telemetry.summary import summary_of
from headway.telemetry.tails import Mean, Tails
from headway.telemetry.tasks import Tasks
from headway.telemetry.window import TrainingWindow

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.telemetry.header import JournalHeader
    from headway.telemetry.journal import Journal

LATENCY_PARTS = tuple(part.name for part in fields(Latency))


class RunMetrics:
    """Accumulates a run. `summary` and `series` may be asked for at any time; they change nothing.

    Attributes:
        facts: what the header says.
        steps: the series of surviving steps, with the evaluations.
        outcome: of Finish; "unfinished" before.
        now: time of the newest record, seconds; of Finish, once there is one.
        when_finished: called with each train rollout that is scored, before anything else follows of it.
    """

    def __init__(self, header: JournalHeader | None = None) -> None:
        self.facts = RunFacts() if header is None else facts_of(header)
        self.steps = StepSeries()
        self.window = TrainingWindow()
        self.ledger = Ledger()
        self.groups = Groups(self.facts.solved_reward)
        self.tasks = Tasks(self.facts.band)
        self.depth = QueueDepth()
        self.pruning = Pruning(self.facts.solved_reward)
        self.partial = Partial()
        self.concurrency = Level()  # how many rollouts may be in flight, from the first note on
        self.limits_concurrency = False
        self.num_hard_trims = 0
        self.preemptions: dict[tuple[str, int], int] = {}  # by replica and epoch
        self.guard_alarms: dict[str, int] = {}  # by metric
        self.lr_scale = 1.0  # of the newest Train, times what the guard's rollbacks since then make of it
        self.num_guard_rollbacks = 0
        self._guard_rolls_back = False  # an alarm of this entry asks for it
        self.driver = DriverCost()
        self.disk = DiskUse()
        self.checkpoints: dict[int, int] = {}  # step of a checkpoint -> bytes
        self.segment_ages = SegmentAges()
        self.outcome = "unfinished"
        self.message = ""
        self.failed = False
        self.now = 0.0
        self.num_rollouts = 0  # train rollouts that were scored
        self.num_solved = 0
        self.num_truncated = 0
        self.lost_compute_s = 0.0  # of steps that a resume took back
        self.lost_flops = 0.0
        self.num_resumes = 0
        self.num_rollbacks = 0  # of the trainer, while the run went on
        self.num_refills = 0
        self.num_superseded = 0
        self.warnings: list[dict[str, Any]] = []
        self.settings_changed: list[dict[str, Any]] = []
        self.failed_attempts: dict[str, int] = {}
        self.latency = {name: Tails() for name in LATENCY_PARTS}
        self.end_to_end, self.tokens, self.turns, self.tool_calls = Tails(), Tails(), Tails(), Tails()
        self.publish_s, self.pause_s = Tails(), Tails()
        self.sandboxes = Sandboxes()
        self.sandbox_steps: dict[int, dict[str, float]] = {}  # at a step's end, by TensorBoard's tags
        self.reward_metrics: dict[str, Mean] = {}  # the environment's own, by name
        self.environment_staleness: dict[int, int] = {}
        self.when_finished: Callable[[FinishedRollout], None] | None = None
        self._rollouts = Rollouts()

    @classmethod
    def of(cls, journal: Journal) -> RunMetrics:
        """Return the metrics of a whole journal."""
        metrics = cls(journal.header)
        for record in journal:
            metrics.feed(record)
        return metrics

    def feed(self, record: Entry | Stat) -> None:
        """Take the next record in."""
        if isinstance(record, Stat):
            if self.outcome == "unfinished":  # else the workers are leaving, and the run is over
                self._advance(record.t)
            self.driver.feed(record)
            self.disk.feed(record, self.steps.steps_ended)
            return
        t = record.t
        if isinstance(record.event, events.RunResumed):
            self._resumed(t, record.event)
        self._advance(t)
        if not record.is_ignored:
            self._event(t, record.event)
        elif isinstance(record.event, (events.SandboxReleased, events.SandboxLost)):
            self.sandboxes.forget(t, record.event.sandbox)
        starts = [command for command in record.commands if isinstance(command, commands.StartRollout)]
        for command in starts:  # one that is stopped at once starts and settles in the same entry
            self._command(t, command)
        for note in record.notes:
            self._note(t, note)
        for command in record.commands:
            if not isinstance(command, commands.StartRollout):
                self._command(t, command)

    def _advance(self, t: float) -> None:
        self.now = max(self.now, t)
        self.window.advance(t)
        self.depth.advance(t)
        self.partial.advance(t)
        self.sandboxes.advance(t)
        if self.limits_concurrency:
            self.concurrency.advance(t)

    def _event(self, t: float, event: events.Event) -> None:
        match event:
            case events.TurnEnded():
                self._rollouts.turn_ended(event)
            case events.ReplicaChanged():
                self.preemptions[event.replica, event.epoch] = event.num_preemptions
            case events.ToolEnded():
                if self._rollouts.tool_ended(event) and event.where == "sandbox":
                    self.sandboxes.called(event)
            case events.RolloutParked():
                self.partial.parked(t, event)
            case events.RolloutResumed():
                self._rollouts.resumed_rollout(event)
                self.partial.resumed(event)
            case events.SandboxWanted():
                self.sandboxes.wanted(t, event)
                self._rollouts.sandbox_wanted(event)
            case events.SandboxReady():
                if self.sandboxes.ready(t, event):
                    self._rollouts.sandbox_ready(event)
            case events.SandboxRefused():
                self.sandboxes.refused(t, event.sandbox)
            case events.SandboxReleased():
                self.sandboxes.released(t, event)
            case events.SandboxLost():
                self.sandboxes.lost(t, event)
            case events.RolloutEnded():
                self._rollouts.ended(event)
                self.sandboxes.rollout_over(t, event.rollout)
                self.partial.ended(event.rollout)
                self.ledger.ended(event.rollout, event.num_tokens)
            case events.RolloutFailed():
                self._rollouts.failed(event.rollout, event.attempt)
                self.sandboxes.rollout_over(t, event.rollout)
            case events.ScoreFailed():
                self.sandboxes.rollout_over(t, event.rollout)
            case events.Scored():
                self.sandboxes.rollout_over(t, event.rollout)
                finished = self._rollouts.scored(t, event)
                if finished is not None and finished.purpose == "train":
                    self._finished(finished)
            case events.GroupSignal():
                self.groups.signalled(event)
            case events.StepEnded():
                self._step_ended(t, event)
                if told := self.sandboxes.now():
                    self.sandbox_steps[event.step] = told
            case events.VersionPublished():
                self.publish_s.add(event.publish_s)
                self.window.published(event.publish_s)
                self.steps.published(event.publish_s)
            case events.VersionApplied():
                self.pause_s.add(event.pause_s)
            case events.CheckpointDone():
                self.window.checkpointed(event.duration_s)
                self.checkpoints[event.step] = event.num_bytes
            case events.WorkerLost():
                self._warn(t, "worker_lost", f"{event.role} {event.worker} ended unasked: {event.cause}")
            case events.ReplicaLost():
                self._warn(t, "replica_lost", f"generator {event.replica} was lost: {event.cause}")
            case events.SettingChanged():
                self.facts = self.facts.changed(event.key, event.value)
                step = self.steps.steps_ended
                change = {"t": t, "step": step, "key": event.key, "value": event.value}
                self.settings_changed.append({**change, "by": event.by, "reason": event.reason})
            case events.CommandRefused():
                self._warn(t, "command_refused", f"{event.command} {event.target}: {event.message}")
            case _:
                pass

    def _note(self, t: float, note: notes.Note) -> None:
        match note:
            case notes.RolloutSettled():
                self.sandboxes.rollout_over(t, note.rollout)
                self.ledger.settled(note)
                self.groups.rollout_settled(note)
                self.pruning.settled(note)
                self.partial.gone(note.rollout, note.fate)
                self.depth.rollout_settled(note.group, note.rollout)
            case notes.RolloutRevived():
                self.ledger.revived(note)
                self.groups.rollout_revived(note)
                self.depth.rollout_revived(note.group, note.rollout)
            case notes.GroupSettled() if note.purpose == "train":
                self._group_settled(note)
            case notes.BatchReleased():
                self.steps.released(note)
                for group in note.groups:
                    self.segment_ages.touch(group, note.step)
                self.partial.released(note.num_masked_tokens)
                self.depth.released(note.groups)
                self.tasks.released(note)
            case notes.EvalEnded():
                self.steps.eval_ended(t, note)
            case notes.AttemptFailed():
                self.failed_attempts[note.owner] = self.failed_attempts.get(note.owner, 0) + 1
            case notes.GroupSplit():
                self.depth.split(note.group, note.into, note.rollouts)
                self.groups.split(note)
            case notes.TaskRetired():
                self.tasks.retired(note)
            case notes.TaskReturned():
                self.tasks.returned(note)
            case notes.TaskRegressed():
                self.tasks.regressed(note)
            case notes.Refilled():
                self.num_refills += 1
            case notes.PruneAudited():
                self.pruning.audited(note)
            case notes.ConcurrencyChanged():
                self.limits_concurrency = True
                self.concurrency.advance(t)
                self.concurrency.set(note.limit)
                self.num_hard_trims += note.reason.startswith("hard")
            case notes.GuardAlarm():
                self._guard_rolls_back = note.action == "rollback"
                self.guard_alarms[note.metric] = self.guard_alarms.get(note.metric, 0) + 1
            case notes.RolledBackTo():
                self._rolled_back(t, note)
            case notes.VersionSuperseded():
                self.num_superseded += 1
            case notes.Stopping():
                self._stopping(t)
            case notes.Warned():
                self._warn(t, note.code, note.text)
                if note.code == "sandbox_timeout":
                    self.sandboxes.failed("deadline", note.text)
            case _:
                pass

    def _command(self, t: float, command: commands.Command) -> None:
        match command:
            case commands.StartRollout():
                self._rollouts.started(t, command)
                self.partial.started(command.rollout, command.partial)
                self.ledger.started(command.rollout, command.purpose)
                if command.purpose == "train":
                    if self.window.opened is None:
                        self.window.train_rollout_started(t)
                        self.steps.window_opened(t)
                    self.depth.started(t, command.group, command.rollout)
            case commands.GrantSandbox():
                self.sandboxes.granted(t, command.sandbox)
            case commands.ReleaseSandbox():
                self.sandboxes.release_asked(t, command.sandbox)
            case commands.Train():
                self.steps.training(command)
                self.lr_scale = command.lr_scale
            case commands.Finish():
                self._stopping(t)
                self.outcome, self.message, self.failed = command.outcome, command.message, command.failed
            case _:
                pass

    def _finished(self, rollout: FinishedRollout) -> None:
        if self.when_finished is not None:
            self.when_finished(rollout)
        solved = rollout.reward >= self.facts.solved_reward
        self.num_rollouts += 1
        self.num_solved += solved
        self.num_truncated += rollout.truncated
        self.window.train_rollout_finished(rollout.t)
        self.steps.finished(rollout, solved)
        self.groups.finished(rollout)
        self.partial.finished(rollout)
        for name, tails in self.latency.items():
            tails.add(getattr(rollout.latency, name))
        self.end_to_end.add(rollout.end_to_end_s)
        self.tokens.add(rollout.num_tokens)
        self.turns.add(rollout.num_turns)
        self.tool_calls.add(rollout.num_tool_calls)
        for name, value in rollout.metrics.items():
            self.reward_metrics.setdefault(name, Mean()).add(value)
        for age in rollout.environment_staleness:
            self.environment_staleness[age] = self.environment_staleness.get(age, 0) + 1

    def _group_settled(self, note: notes.GroupSettled) -> None:
        self.segment_ages.touch(note.group, self.steps.steps_ended)
        decided, zero = self.groups.num_decided, self.groups.num_zero
        self.groups.settled(note)
        self.tasks.settled(note)
        bucket = self.steps.bucket
        bucket.num_decided_groups += self.groups.num_decided - decided
        bucket.num_zero_groups += self.groups.num_zero - zero
        if note.fate == "queued":
            self.depth.queued(note.group)

    def _step_ended(self, t: float, event: events.StepEnded) -> None:
        flops = self.facts.train_flops(event.num_tokens, self.steps.sequence_tokens())
        self.window.step_ended(t, event.compute_s, event.gathered_s)
        self.steps.step_ended(t, event, flops)
        self.depth.step_ended()

    def _stopping(self, t: float) -> None:
        self.window.stopping(t)
        self.depth.stopping()

    def _resumed(self, t: float, event: events.RunResumed) -> None:
        self._lose_steps(event.step)
        self.num_resumes += 1
        self.window.resumed(self.now)
        self.concurrency.skip_to(t)
        self.steps.resumed(event.step)
        self.tasks.took_back(event.step)
        self.depth.resumed(t)
        self.sandboxes.resumed(t)
        self._rollouts.resumed()
        self.outcome, self.message, self.failed = "unfinished", "", False

    def _rolled_back(self, t: float, note: notes.RolledBackTo) -> None:
        self._lose_steps(note.step)
        self.num_rollbacks += 1
        if self._guard_rolls_back:
            self.num_guard_rollbacks += 1
            self.lr_scale *= self.facts.rollback_lr_scale
            self._guard_rolls_back = False
        self.steps.resumed(note.step)
        self.tasks.took_back(note.step)
        self.depth.rolled_back()
        self._warn(t, "rollback", f"training goes on from step {note.step}: {note.reason}")

    def _lose_steps(self, after: int) -> None:
        """Steps are taken back: what they computed is no part of the surviving series."""
        lost = [record for record in self.steps.records if record.step > after]
        self.lost_compute_s += sum(record.compute_s for record in lost)
        self.lost_flops += sum(record.flops or 0.0 for record in lost)

    def _warn(self, t: float, code: str, text: str) -> None:
        self.warnings.append({"t": t, "code": code, "text": text})

    def series(self) -> list[dict[str, Any]]:
        """Return one flat dict per surviving step; keys are StepRecord's fields, and `loss.*`."""
        return [record.row() for record in self.steps.records]

    def summary(self) -> dict[str, Any]:
        """Return every metric under its name; None where the run does not tell it yet."""
        return summary_of(self)
