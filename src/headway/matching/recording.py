"""Reads a run's journal into a flat record of what its rollouts did and what they waited for.

Consumes journal records in order and keeps every attempt, also those that were discarded, cancelled or still
open at the end: what was cut off tells that it would have taken longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core import commands, events, notes
from headway.matching.recorded_run import (
    JournalLike,
    Outcome,
    RecordedAttempt,
    RecordedStep,
    RecordedTurn,
    Recording,
)
from headway.matching.roles import offer
from headway.telemetry.records import Entry

if TYPE_CHECKING:
    from headway.core.commands import RequestTask, StartRollout, Train


def record(journal: JournalLike) -> Recording:
    """Read a journal."""
    reader = _Reader(Recording(journal.header))
    for entry in journal:
        if isinstance(entry, Entry):
            reader.feed(entry)
    return reader.recording


class _Reader:
    """Follows what is open: attempts in flight, sandboxes that are wanted, the batch that is trained."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._open: dict[str, RecordedAttempt] = {}
        self._ended: dict[str, RecordedAttempt] = {}  # newest attempt of each rollout that has a payload
        self._wanted: dict[str, tuple[str, float]] = {}  # sandbox -> (purpose, when)
        self._granted: dict[str, float] = {}  # sandbox that starts -> since when
        self._requests: dict[int, RequestTask] = {}
        self._train: Train | None = None
        self._train_s = self._published_s = 0.0
        self._step = 0

    def feed(self, entry: Entry) -> None:
        """Take the next record in."""
        self.recording.ended_s = max(self.recording.ended_s, entry.t)
        if not entry.is_ignored:
            self._event(entry.t, entry.event)
        for note in entry.notes:
            if isinstance(note, notes.GroupSettled) and note.purpose == "train":
                self.recording.groups.append((self._step, note))
        for command in entry.commands:
            if isinstance(command, commands.StartRollout):
                self._started(entry.t, command)
            elif isinstance(command, commands.Train):
                self._train, self._train_s = command, entry.t
            elif isinstance(command, commands.RequestTask):
                self._requests[command.request] = command
            elif isinstance(command, commands.GrantSandbox):
                self._granted[command.sandbox] = entry.t
            elif isinstance(command, commands.ReleaseSandbox) and command.sandbox in self._granted:
                self.recording.starts_cut.append(entry.t - self._granted.pop(command.sandbox))

    def _started(self, t: float, command: StartRollout) -> None:
        self._close(t, command.rollout, "failed")
        attempt = RecordedAttempt(
            command.rollout, command.attempt, command.group, command.task_id, command.purpose,
            command.replica, self._step, t,
        )  # fmt: skip
        self._open[command.rollout] = attempt
        self.recording.attempts.append(attempt)

    def _event(self, t: float, event: events.Event) -> None:
        found = self.recording
        match event:
            case events.TaskOffered():
                if request := self._requests.pop(event.request, None):
                    found.tasks[event.task_id] = offer(request, event.num_tasks).task_id
                    if request.split == "train":
                        found.num_tasks = max(found.num_tasks, event.num_tasks)
            case events.TurnEnded():
                self._turn_ended(t, event)
            case events.ToolEnded():
                if (attempt := self._attempt(event.rollout, event.attempt)) and attempt.turns:
                    turn = attempt.turns[min(event.turn, len(attempt.turns) - 1)]
                    turn.calls_s += event.duration_s
                    turn.num_calls += 1
            case events.RolloutResumed():
                if attempt := self._attempt(event.rollout, event.attempt):
                    attempt.parked_s += event.parked_s
                    attempt.aside_s += event.parked_s
            case events.SandboxWanted() | events.SandboxReady() | events.SandboxLost():
                self._sandbox(t, event)
            case events.SandboxRefused():
                found.sandbox_refusals += 1
            case events.RolloutEnded():
                self._rollout_ended(t, event)
            case events.RolloutFailed():
                self._rollout_failed(t, event)
            case events.Scored():
                self._scored(event)
            case events.StepEnded():
                self._step_ended(t, event)
            case events.VersionPublished():
                self._published_s = t
                found.publishes.append(event.publish_s)
            case events.VersionApplied():
                found.applies.append((event.replica, t, event.pause_s))
            case events.CheckpointDone():
                found.saves.append(event.duration_s)
            case events.ReplicaJoined():
                found.max_running = max(found.max_running, event.max_running)
                found.num_replicas += event.epoch == 0
            case events.ReplicaChanged():
                found.preemptions[event.replica, event.epoch] = event.num_preemptions
                found.loads.append((event.replica, t, event.kv_used_fraction))
            case events.SettingChanged():
                found.changes.append((event.key, event.value))
            case events.RunResumed() | events.RolledBack():
                self._step = event.step
                self._train = None
                if isinstance(event, events.RunResumed):
                    for name in list(self._open):
                        self._close(t, name, "open")
            case _:
                pass

    def _turn_ended(self, t: float, event: events.TurnEnded) -> None:
        attempt = self._attempt(event.rollout, event.attempt)
        if attempt is None or event.turn != len(attempt.turns):
            return
        inside = event.waiting_s + event.prefill_s + event.decode_s
        if attempt.turns:
            last = attempt.turns[-1]
            last.after_s = max(0.0, t - inside - last.ended_s - attempt.aside_s)
        attempt.aside_s = 0.0
        attempt.turns.append(
            RecordedTurn(
                t, event.replica, sum(span.num_tokens for span in event.spans), event.num_prompt_tokens,
                event.num_resident_tokens, event.waiting_s, event.prefill_s, event.decode_s, event.finish,
            )
        )  # fmt: skip

    def _sandbox(
        self, t: float, event: events.SandboxWanted | events.SandboxReady | events.SandboxLost
    ) -> None:
        attempt = self._attempt(event.rollout, event.attempt)
        if isinstance(event, events.SandboxWanted):
            self._wanted[event.sandbox] = (event.purpose, t)
            if attempt is not None and event.purpose == "rollout":
                attempt.waits_since_s = t
            return
        self._granted.pop(event.sandbox, None)
        purpose, since = self._wanted.pop(event.sandbox, ("", t))
        if isinstance(event, events.SandboxLost):
            self.recording.sandbox_failures += event.failure in ("start", "start_timeout")
        elif purpose == "rollout" and attempt is not None:
            attempt.waits_since_s = None
            attempt.sandbox_start_s = (attempt.sandbox_start_s or 0.0) + event.start_s
            attempt.aside_s += max(event.start_s, t - since)

    def _rollout_ended(self, t: float, event: events.RolloutEnded) -> None:
        attempt = self._attempt(event.rollout, event.attempt)
        if attempt is None:
            return
        self._close(t, event.rollout, "ended")
        attempt.num_tokens, attempt.prompt_tokens = event.num_tokens, event.num_prompt_tokens
        attempt.truncated = event.truncated
        self._ended[event.rollout] = attempt

    def _rollout_failed(self, t: float, event: events.RolloutFailed) -> None:
        attempt = self._attempt(event.rollout, event.attempt)
        if attempt is None:
            return
        self._close(t, event.rollout, "stopped" if event.owner == "scheduler" else "failed")
        attempt.owner, attempt.cause = event.owner, event.cause
        attempt.num_tokens = max(event.num_tokens, attempt.num_answered)

    def _close(self, t: float, rollout: str, outcome: Outcome) -> None:
        """An attempt goes on no more: what it was at lasted at least as long, or exactly if it ended."""
        attempt = self._open.pop(rollout, None)
        if attempt is None:
            return
        attempt.outcome, attempt.over_s = outcome, t
        attempt.num_tokens = attempt.num_answered
        if attempt.turns:
            last = attempt.turns[-1]
            until = t if attempt.waits_since_s is None else attempt.waits_since_s
            last.after_s = max(0.0, until - last.ended_s - attempt.aside_s)
            last.cut_short = outcome != "ended"
            if last.cut_short and last.num_calls and last.after_s > last.calls_s:
                # Its tools were done: the rest was the next answer's, in line or on an engine.
                last.after_s, last.cut_short = last.calls_s, False

    def _scored(self, event: events.Scored) -> None:
        attempt = self._ended.get(event.rollout)
        if attempt is not None and attempt.attempt == event.attempt:
            attempt.reward = event.reward
            attempt.score_s = max(0.0, event.duration_s - event.sandbox_start_s)
            attempt.verifier_start_s = event.sandbox_start_s

    def _step_ended(self, t: float, event: events.StepEnded) -> None:
        train, self._train = self._train, None
        self._step = event.step
        if train is None or train.batch != event.batch:
            return
        rows = [self._ended[row.rollout].context_tokens for row in train.rows if row.rollout in self._ended]
        begun = max(self._train_s, self._published_s)
        load_s = max(0.0, t - begun - (event.compute_s - event.gathered_s))
        squares = float(sum(tokens * tokens for tokens in rows))
        self.recording.steps.append(
            RecordedStep(event.step, len(train.rows), sum(rows), squares, event.compute_s, load_s)
        )

    def _attempt(self, rollout: str, number: int) -> RecordedAttempt | None:
        attempt = self._open.get(rollout)
        return attempt if attempt is not None and attempt.attempt == number else None
