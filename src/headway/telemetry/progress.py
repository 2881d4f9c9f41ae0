"""Progress as plain lines: one a finished step, and one for whatever a person should see meanwhile.

Consumes the entries that RunMetrics was fed with, each right after it; prints nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING

from headway.core import commands, events, notes
from headway.telemetry.eval_progress import EvalProgress
from headway.telemetry.steps import StepRecord
from headway.telemetry.text import figures, number, percent, seconds
from headway.telemetry.visible import visible

if TYPE_CHECKING:
    from headway.telemetry.metrics import RunMetrics
    from headway.telemetry.records import Entry

WIDTH = 120
HEADER_EVERY = 20  # step lines
_FEW = 8  # rollouts; a mean of fewer says little
_RECENT = 10  # steps that the time left is judged by


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    width: int
    cell: Callable[[StepRecord], str]


def _rate(value: float | None) -> str:
    return number(value, 2 if value is None or value < 100 else 1 if value < 1000 else 0)


def _staleness(record: StepRecord) -> str:
    if record.staleness_mean is None or record.staleness_max is None:
        return "-"
    return f"{record.staleness_mean:.1f}/{record.staleness_max}"


def _rests_on_few(record: StepRecord) -> bool:
    """Say whether so few rollouts were scored that their mean is noise; a small batch is not few."""
    return record.reward is not None and record.num_rollouts < min(_FEW, record.num_trained_rollouts or _FEW)


def _reward(record: StepRecord) -> str:
    return f"{number(record.reward, 2)}*" if _rests_on_few(record) else number(record.reward, 3)


_COLUMNS = (
    _Column("reward", 7, _reward),
    _Column("eval", 6, lambda step: number(step.eval, 3)),
    _Column("solved", 7, lambda step: percent(step.solve_rate)),
    _Column("made/s", 9, lambda step: _rate(step.production_per_s)),
    _Column("used/s", 9, lambda step: _rate(step.consumption_per_s)),
    _Column("wait", 5, lambda step: percent(step.wait_fraction)),
    _Column("queue", 6, lambda step: str(step.depth_signal)),
    _Column("stale", 7, _staleness),
    _Column("tokens", 8, lambda step: number(step.mean_tokens, 0)),
    _Column("no-signal", 10, lambda step: percent(step.no_signal_fraction)),
)
_LEFT_OUT = (
    "no-signal",
    "tokens",
    "stale",
    "queue",
    "solved",
    "made/s",
    "used/s",
    "wait",
    "eval",
)  # first to last


class Progress:
    """Turns entries into lines of at most `width()` characters; a longer message takes several.

    Where a step's line is too long for that, the columns of least importance are left out.

    made/s is the rate at which train rollouts are scored, used/s the rate at which the trainer takes them
    while it computes, wait the share of the step in which it did not compute or publish, queue the groups
    left with signal, stale the mean and largest age of the trained tokens, tokens a rollout's mean length,
    no-signal the share of groups whose advantages are all 0. A reward with a * is the mean of a few rollouts,
    with two digits in place of three. eval is the newest one since the last line.
    """

    def __init__(self, metrics: RunMetrics, width: Callable[[], int] = lambda: WIDTH) -> None:
        self._metrics = metrics
        self._width = width
        self._columns: tuple[_Column, ...] = ()  # of the last header
        self._num_lines = 0
        self._few_told = False  # what the * says
        self._starting: tuple[float, set[str]] | None = None  # since when, who is ready
        self._resuming = False  # what changes now, `headway resume` says itself
        self._new_eval: float | None = None
        self._last_warning: dict[str, str] = {}
        self._told = ""  # why the run is stopping
        self._evaluation = EvalProgress() if metrics.facts.only_evaluates else None

    def after(self, entry: Entry) -> list[str]:
        """Return the lines for an entry that the metrics were just fed with."""
        lines: list[str] = []
        lines += self._start(entry)
        if isinstance(entry.event, events.StepEnded) and self._metrics.steps.records:
            lines += self._step(self._metrics.steps.records[-1])
        elif isinstance(entry.event, events.RunResumed):
            self._num_lines = 0
            lines.append(
                f"resumed at step {entry.event.step}, {seconds(entry.event.spent_wall_s)} spent so far"
            )
        elif isinstance(entry.event, events.SettingChanged) and not self._resuming:
            why = f" (control: {entry.event.reason})" if entry.event.by == "control" else ""
            lines.append(f"{entry.event.key} = {entry.event.value!r} from now on{why}")
        elif isinstance(entry.event, events.CheckpointDone):
            lines.append(f"checkpoint of step {entry.event.step} saved in {seconds(entry.event.duration_s)}")
        if self._evaluation is not None:
            lines += self._evaluation.after(entry)
        self._resuming = isinstance(entry.event, events.RunResumed) or (
            self._resuming and isinstance(entry.event, events.SettingChanged)
        )
        by_guard = any(isinstance(note, notes.GuardAlarm) for note in entry.notes)
        for note in entry.notes:
            lines += self._note(note, by_guard)
        for command in entry.commands:
            if isinstance(command, commands.RestartWorker):
                named = (
                    command.worker
                    if command.worker.startswith(command.role)
                    else f"{command.role} {command.worker}"
                )
                lines.append(f"{named} is started anew")
            elif isinstance(command, commands.Finish):
                lines.append(self._finish(command, entry.t))
        return [part for line in lines for part in _wrapped(line, self._width())]

    def _start(self, entry: Entry) -> list[str]:
        """Say that the processes of a life are started, and when the last one is ready."""
        facts = self._metrics.facts
        match entry.event:
            case events.RunStarted() | events.RunResumed():
                self._starting = entry.t, set()
                trainer = "" if facts.only_evaluates else "trainer, "
                return [f"starting: generator, {trainer}environment"]
            case events.WorkerJoined(worker=name) | events.ReplicaJoined(replica=name):
                if self._starting is None:
                    return []
                began, ready = self._starting
                ready.add(name)
                if len(ready) < facts.num_processes:
                    return []
                self._starting = None
                return [f"ready after {seconds(entry.t - began)}"]
            case events.WorkerLost(worker=name) | events.ReplicaLost(replica=name):
                if self._starting is not None:
                    self._starting[1].discard(name)
                return []
            case _:
                return []

    def _finish(self, command: commands.Finish, t: float) -> str:
        """Say that it is over; the command prints a fault's message itself, at the very end."""
        if command.failed:
            return f"failed after {seconds(t)}"
        line = f"finished ({command.outcome}) after {seconds(t)}"
        return line if command.message == self._told else f"{line}: {command.message}"

    def _step(self, record: StepRecord) -> list[str]:
        if self._new_eval is not None and record.eval is None:
            evaluated, self._new_eval = number(self._new_eval, 3), None
        else:
            evaluated = number(record.eval, 3)
        columns = _columns_within(self._width())
        cells = [evaluated if c.title == "eval" else c.cell(record) for c in columns]
        steps = self._metrics.facts.stop_steps
        name = f"{record.step}/{steps}" if steps else str(record.step)
        line = f"{name:>10}" + "".join(
            f" {cell:>{column.width - 1}}" for cell, column in zip(cells, columns, strict=True)
        )
        if columns != self._columns:
            self._columns, self._num_lines = columns, 0
        head = [] if self._num_lines % HEADER_EVERY else [_header(columns)]
        self._num_lines += 1
        lines = [*head, f"{line}{seconds(time_left(self._metrics, self._metrics.now)):>9}"]
        if _rests_on_few(record) and not self._few_told:
            self._few_told = True
            lines.append(f"{'*':>10} the mean of fewer rollouts than {_FEW}: it says little")
        return lines

    def _rolled_back(self, note: notes.RolledBackTo, by_guard: bool) -> str:
        line = f"rolled back to step {note.step}: {note.reason}"
        if not by_guard:
            return line
        metrics, facts = self._metrics, self._metrics.facts
        if facts.learning_rate is not None:
            line += f"; the learning rate is now {figures(facts.learning_rate * metrics.lr_scale)}"
        most = "" if facts.max_rollbacks is None else f" of {facts.max_rollbacks}"
        return f"{line} (rollback {metrics.num_guard_rollbacks}{most})"

    def _note(self, note: notes.Note, by_guard: bool) -> list[str]:
        match note:
            case notes.Warned():
                if self._last_warning.get(note.code) == note.text:
                    return []
                self._last_warning[note.code] = note.text
                return [f"warning: {note.text}"]
            case notes.EvalStarted():
                version = "" if self._evaluation is not None else f" version {note.number}"
                return [f"evaluating{version} on up to {note.num_tasks} tasks"]
            case notes.EvalEnded():
                return [] if self._evaluation is not None and note.num_rollouts else [self._evaluated(note)]
            case notes.RolledBackTo():
                return [self._rolled_back(note, by_guard)]
            case notes.Stopping(outcome="failed"):
                return []
            case notes.Stopping(outcome="evaluated"):
                return []
            case notes.Stopping():
                self._told = note.message
                return [f"stopping ({note.outcome}): {note.message}"]
            case _:
                return []

    def _evaluated(self, note: notes.EvalEnded) -> str:
        failed = f", {note.num_failed} failed and not counted" if note.num_failed else ""
        if not note.num_rollouts:
            return f"evaluation of version {note.number}: no rollout could be scored{failed}"
        self._new_eval = note.mean_reward
        points = self._metrics.steps.evals
        first = points[0].reward if len(points) > 1 else None
        change = "" if first is None else f" ({note.mean_reward - first:+.3f} since version {points[0].step})"
        passed = f"pass@1 {percent(note.pass_at_1)}"
        if note.n > 1:
            passed += f", pass@{note.n} {percent(note.pass_at_n)}"
        return (
            f"evaluation of version {note.number}: {note.mean_reward:.3f}{change}, {passed}, "
            f"{note.num_rollouts} rollouts{failed}"
        )


def time_left(metrics: RunMetrics, now: float) -> float | None:
    """Seconds until the step or wall limit, whichever is nearer; None when neither is set or known.

    Judged by the mean duration of the last few steps, the one in progress left out.
    """
    facts, records = metrics.facts, metrics.steps.records
    guesses: list[float] = []
    if facts.stop_wall_s is not None:
        guesses.append(facts.stop_wall_s - now)
    if facts.stop_steps is not None and records:
        recent = records[-_RECENT:]
        mean = sum(record.duration_s for record in recent) / len(recent)
        guesses.append(mean * (facts.stop_steps - records[-1].step) - (now - metrics.now))
    return max(0.0, min(guesses)) if guesses else None


def _header(columns: Iterable[_Column]) -> str:
    return f"{'step':>10}" + "".join(f"{c.title:>{c.width}}" for c in columns) + f"{'left':>9}"


def _columns_within(width: int) -> tuple[_Column, ...]:
    """Return the columns of a line that is not longer than `width`, or the one that is left to the end."""
    columns = list(_COLUMNS)
    for title in _LEFT_OUT:
        if 10 + sum(column.width for column in columns) + 9 <= width:
            break
        columns = [column for column in columns if column.title != title]
    return tuple(columns)


def _wrapped(line: str, width: int) -> list[str]:
    """Return a message in full, on as many lines as it takes; what a table's line holds fits."""
    text = visible(line if "\n" not in line else " ".join(line.split()))
    if len(text) <= width:
        return [text]
    text = " ".join(text.split())
    return wrap(text, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
