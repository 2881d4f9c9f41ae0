"""One record a rollout, from the journal.

Consumes entries in order, live or offline; waits for nothing and keeps O(rollouts). A late or repeated
event, one that the scheduler noted as Ignored, changes nothing; neither does a rollout that never started.
Invariant: within the surviving weights, the records whose step is s are the rows of the step s.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from headway.core import commands, events, notes
from headway.core.records import merge_spans
from headway.telemetry.journal import read_journal
from headway.telemetry.records import Entry, Stat
from headway.telemetry.rollout_record import Draft, Failure, RolloutRecord
from headway.telemetry.rollouts import Rollouts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_FIELDS = tuple(item.name for item in fields(RolloutRecord))


def rollout_table(run: Path) -> list[RolloutRecord]:
    """Return a record for each rollout of a run, in the order in which they started.

    Raises RunDirectoryError where there is no journal, JournalError where it is damaged.
    """
    table = RolloutTable()
    for record in read_journal(run):
        table.feed(record)
    return table.records()


class RolloutTable:
    """Follows every rollout. `records` may be asked for at any time; it changes nothing."""

    def __init__(self) -> None:
        self._drafts: dict[str, Draft] = {}
        self._sources: dict[int, str] = {}  # request -> source, not answered yet
        self._tasks: dict[str, tuple[str, int]] = {}  # task -> source, level
        self._timing = Rollouts()
        self._forks: list[int] = []  # lineage -> the step at which the next one left it
        self._sandboxes_ready: set[str] = set()

    def records(self) -> list[RolloutRecord]:
        """Return the records, in the order in which their rollouts started."""
        return [
            RolloutRecord(**{name: getattr(draft, name) for name in _FIELDS})
            for draft in self._drafts.values()
        ]

    def feed(self, record: Entry | Stat) -> None:
        """Take the next record of the journal in."""
        if isinstance(record, Stat):
            return
        t = record.t
        if not record.is_ignored:
            self._event(t, record.event)
        for command in record.commands:  # one that is stopped at once starts and settles in the same entry
            if isinstance(command, commands.StartRollout):
                self._started(t, command)
            elif isinstance(command, commands.RequestTask):
                self._sources[command.request] = command.source
        for note in record.notes:
            self._note(t, note)
        batch = next((note for note in record.notes if isinstance(note, notes.BatchReleased)), None)
        for command in record.commands:
            if isinstance(command, commands.Train):
                self._released(command, batch)

    def _event(self, t: float, event: events.Event) -> None:
        match event:
            case events.TaskOffered():
                self._tasks[event.task_id] = (self._sources.pop(event.request, ""), event.level)
            case events.TurnEnded():
                self._timing.turn_ended(event)
                self._turn_ended(event)
            case events.ToolEnded():
                self._timing.tool_ended(event)
                if draft := self._attempt(event.rollout, event.attempt):
                    draft.num_tool_calls = max(draft.num_tool_calls, event.call + 1)
            case events.RolloutResumed():
                self._timing.resumed_rollout(event)
            case events.SandboxWanted():
                self._timing.sandbox_wanted(event)
            case events.SandboxReady() if event.sandbox not in self._sandboxes_ready:
                self._sandboxes_ready.add(event.sandbox)
                self._timing.sandbox_ready(event)
            case events.SandboxReleased() | events.SandboxLost():
                self._sandboxes_ready.discard(event.sandbox)
            case events.RolloutEnded():
                self._timing.ended(event)
                self._ended(event)
            case events.RolloutFailed():
                self._timing.failed(event.rollout, event.attempt)
                if draft := self._attempt(event.rollout, event.attempt):
                    draft.ended_s = t
                    draft.num_tokens = max(draft.num_tokens, event.num_tokens)
            case events.Scored():
                self._scored(t, event)
            case events.ScoreFailed():
                if draft := self._attempt(event.rollout, event.attempt):
                    draft.ended_s = t
            case events.GroupSignal():
                self._signalled(event)
            case events.RunResumed():
                self._timing.resumed()
                self._took_back(event.step, event.lineage)
            case _:
                pass

    def _note(self, t: float, note: notes.Note) -> None:
        match note:
            case notes.RolloutSettled():
                if draft := self._drafts.get(note.rollout):
                    draft.fate, draft.reason, draft.group = note.fate, note.reason, note.group
                    draft.num_tokens = max(draft.num_tokens, note.num_tokens)
                    draft.ended_s = t if draft.ended_s is None else draft.ended_s
            case notes.RolloutRevived():
                if draft := self._drafts.get(note.rollout):
                    draft.fate, draft.reason, draft.num_revived = None, "", draft.num_revived + 1
            case notes.AttemptFailed():
                if draft := self._drafts.get(note.rollout):
                    failure = Failure(note.attempt, note.owner, note.cause, note.message, note.retried)
                    draft.failures += (failure,)
            case notes.GroupSplit():
                for draft in self._known(note.rollouts):
                    draft.group = note.into
            case notes.PruneAudited():
                if draft := self._drafts.get(note.rollout):
                    draft.audit, draft.audit_wrong = note.source, note.would_have_been_wrong
            case notes.RolledBackTo():
                self._took_back(note.step, note.lineage)
            case _:
                pass

    def _started(self, t: float, command: commands.StartRollout) -> None:
        self._timing.started(t, command)
        before = self._drafts.get(command.rollout)
        source, level = self._tasks.get(command.task_id, ("", 0))
        self._drafts[command.rollout] = Draft(
            command.rollout,
            command.group if before is None else before.group,
            command.task_id,
            level,
            source,
            command.purpose,
            command.attempt,
            t,
            num_revived=0 if before is None else before.num_revived,
            failures=() if before is None else before.failures,
        )

    def _turn_ended(self, event: events.TurnEnded) -> None:
        draft = self._attempt(event.rollout, event.attempt)
        if draft is None or event.turn < draft.num_turns:
            return
        draft.num_turns = event.turn + 1
        draft.spans = tuple(merge_spans([*draft.spans, *event.spans]))
        draft.num_tokens = sum(span.num_tokens for span in draft.spans)

    def _ended(self, event: events.RolloutEnded) -> None:
        draft = self._attempt(event.rollout, event.attempt)
        if draft is None:
            return
        draft.payload, draft.spans, draft.truncated = event.payload, event.spans, event.truncated
        draft.num_turns, draft.num_tool_calls = event.num_turns, event.num_tool_calls
        draft.num_prompt_tokens, draft.num_tokens = event.num_prompt_tokens, event.num_tokens

    def _scored(self, t: float, event: events.Scored) -> None:
        finished = self._timing.scored(t, event)
        draft = self._attempt(event.rollout, event.attempt)
        if draft is None:
            return
        draft.reward, draft.reasons, draft.ended_s = event.reward, event.reasons, t
        draft.reward_metrics, draft.turn_rewards = event.metrics, event.turn_rewards
        if finished is not None:
            draft.latency, draft.end_to_end_s = finished.latency, finished.end_to_end_s
            draft.environment_staleness = max(finished.environment_staleness, default=None)

    def _signalled(self, event: events.GroupSignal) -> None:
        turns = event.turns or ((),) * len(event.advantages)
        for (rollout, advantage), of_turns in zip(event.advantages, turns, strict=True):
            if draft := self._drafts.get(rollout):
                draft.advantage, draft.turn_advantages = advantage, of_turns

    def _released(self, command: commands.Train, batch: notes.BatchReleased | None) -> None:
        for index, row in enumerate(command.rows):
            draft = self._drafts.get(row.rollout)
            if draft is None:
                continue
            draft.step, draft.weight, draft.group = command.step, row.weight, row.group
            draft.advantage, draft.turn_advantages = row.advantage, row.turns
            ages = {span[:2]: self._age(command.step - 1, *span[:2]) for span in draft.spans}
            trained = [age for version, age in ages.items() if version not in row.masked]
            draft.token_staleness = max(trained, default=None)
            draft.trajectory_staleness = next(iter(ages.values()), None)
            draft.masked = row.masked
            draft.num_masked_tokens = sum(s.num_tokens for s in draft.spans if s[:2] in row.masked)
            if batch is not None and batch.environment_staleness:
                draft.environment_staleness = batch.environment_staleness[index]

    def _took_back(self, step: int, lineage: int) -> None:
        """Only the steps up to this one survive, and `lineage` goes on from it."""
        self._forks += [step] * (lineage - len(self._forks))
        for draft in self._drafts.values():
            if draft.step is not None and draft.step > step:
                draft.step = draft.weight = None
                draft.trajectory_staleness = draft.token_staleness = None
                draft.masked, draft.num_masked_tokens = (), 0

    def _age(self, step: int, lineage: int, number: int) -> int:
        """Return the age of a version in the step after `step`, as the glossary's staleness says."""
        ancestor = min([number, *self._forks[lineage:]])
        return (step - ancestor) + (number - ancestor)

    def _attempt(self, rollout: str, number: int) -> Draft | None:
        draft = self._drafts.get(rollout)
        return draft if draft is not None and draft.attempt == number else None

    def _known(self, rollouts: Iterable[str]) -> list[Draft]:
        return [self._drafts[rollout] for rollout in rollouts if rollout in self._drafts]
