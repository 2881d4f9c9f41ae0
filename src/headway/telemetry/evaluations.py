"""Every evaluation of a run, task by task, from its journal.

Consumes the journal's entries in order; a late or repeated event changes nothing. What an evaluation that was
given up had measured is forgotten with it, as the scheduler does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core import events, notes
from headway.core.commands import StartRollout

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway.telemetry.records import Entry


@dataclass(slots=True)
class EvaluatedRollout:
    """One rollout that was scored."""

    rollout: str
    num_tokens: int  # sampled
    num_turns: int
    num_tool_calls: int
    truncated: bool
    reward: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict[str, float])  # the environment's own measures


@dataclass(slots=True)
class EvaluatedTask:
    """One task of an evaluation."""

    task_id: str
    level: int = 0
    source: str = ""
    rollouts: list[EvaluatedRollout] = field(default_factory=list[EvaluatedRollout])
    num_failed: int = 0  # without a score, for no fault of the model

    @property
    def rewards(self) -> list[float]:
        """Of its scored rollouts."""
        return [rollout.reward for rollout in self.rollouts]

    def num_solved(self, solved_reward: float) -> int:
        """Rollouts with at least this reward."""
        return sum(reward >= solved_reward for reward in self.rewards)


@dataclass(slots=True)
class Evaluation:
    """One evaluation of one version."""

    lineage: int
    number: int  # optimizer steps in the version
    began_s: float
    ended_s: float | None = None  # None while it goes on
    n: int = 1  # rollouts asked for each task
    tasks: list[EvaluatedTask] = field(default_factory=list[EvaluatedTask])  # in the order of their start
    failures: dict[str, int] = field(default_factory=dict[str, int])  # cause in words -> rollouts

    @property
    def num_rollouts(self) -> int:
        """Rollouts with a score."""
        return sum(len(task.rollouts) for task in self.tasks)

    @property
    def num_failed(self) -> int:
        """Rollouts without one."""
        return sum(task.num_failed for task in self.tasks)


class Evaluations:
    """Collects evaluations from entries.

    Attributes:
        ended: complete ones in their order, those of lost steps too.
        current: the one that goes on.
    """

    def __init__(self) -> None:
        self.ended: list[Evaluation] = []
        self.current: Evaluation | None = None
        self._tasks: dict[str, EvaluatedTask] = {}  # group -> task
        self._finished: dict[str, EvaluatedRollout] = {}
        self._failed: dict[str, str] = {}  # rollout -> its last failure

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Evaluations:
        """Return the evaluations of a whole journal."""
        found = cls()
        for entry in entries:
            found.feed(entry)
        return found

    def feed(self, entry: Entry) -> None:
        """Take the next entry in."""
        if not entry.is_ignored:
            self._event(entry.event)
        for command in entry.commands:
            if isinstance(command, StartRollout) and command.purpose == "eval":
                self._tasks.setdefault(command.group, EvaluatedTask(command.task_id))
        for note in entry.notes:
            self._note(entry.t, note)

    def _event(self, event: events.Event) -> None:
        match event:
            case events.RolloutEnded() if _group(event.rollout) in self._tasks:
                self._finished[event.rollout] = EvaluatedRollout(
                    event.rollout, event.num_tokens, event.num_turns, event.num_tool_calls, event.truncated
                )
            case events.Scored() if event.rollout in self._finished:
                rollout = self._finished[event.rollout]
                rollout.reward, rollout.metrics = event.reward, event.metrics
            case events.RunResumed():
                self._forget()
            case _:
                pass

    def _note(self, t: float, note: notes.Note) -> None:
        match note:
            case notes.EvalStarted():
                self._forget()
                self.current = Evaluation(note.lineage, note.number, t)
            case notes.AttemptFailed() if _group(note.rollout) in self._tasks:
                self._failed[note.rollout] = f"{note.owner} ({note.cause}): {note.message}"
            case notes.RolloutSettled() if note.group in self._tasks:
                self._settled(self._tasks[note.group], note)
            case notes.GroupSettled(purpose="eval") if note.group in self._tasks:
                task = self._tasks.pop(note.group)
                task.level, task.source = note.level, note.source
                if self.current is not None:
                    self.current.tasks.append(task)
            case notes.EvalEnded() if self.current is not None:
                ended, self.current = self.current, None
                ended.ended_s, ended.n = t, note.n
                ended.tasks.sort(key=lambda task: _position(task.task_id))
                self.ended.append(ended)
                self._forget()
            case _:
                pass

    def _settled(self, task: EvaluatedTask, note: notes.RolloutSettled) -> None:
        rollout = self._finished.pop(note.rollout, None)
        if note.fate == "evaluated" and rollout is not None:
            task.rollouts.append(rollout)
            return
        task.num_failed += 1
        cause = self._failed.pop(note.rollout, note.reason or note.fate)
        if self.current is not None:
            self.current.failures[cause] = self.current.failures.get(cause, 0) + 1

    def _forget(self) -> None:
        self.current = None
        self._tasks.clear()
        self._finished.clear()
        self._failed.clear()


def _group(rollout: str) -> str:
    return rollout.rpartition(".")[0]


def _position(task_id: str) -> tuple[str, int]:
    source, _, place = task_id.rpartition(":")
    index = place.split("/")[1]
    return source, int(index) if index.isdecimal() else 0
