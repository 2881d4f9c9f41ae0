"""What the trainer and the generators did at the same time, integrated over the training window.

Consumes entries in order, after the metrics took each in; waits for nothing. The trainer is in one of
three states: it holds a batch (`train`, handing it over included), it publishes (`publish`), or it waits
(`wait`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from headway.core import commands, events, notes
from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from headway.telemetry.records import Entry

State = Literal["wait", "train", "publish"]
STATES: tuple[State, ...] = ("wait", "train", "publish")


@dataclass(slots=True)
class Spent:
    """Sums over a stretch of time, seconds and rollout-seconds."""

    state_s: dict[State, float] = field(default_factory=lambda: dict.fromkeys(STATES, 0.0))
    running: dict[State, float] = field(default_factory=lambda: dict.fromkeys(STATES, 0.0))
    at_limit_s: float = 0.0  # of the wait: as many groups on their way as the depth allows
    eval_s: float = 0.0  # of the wait: an evaluation was running
    handover_s: float = 0.0  # a batch was on its way to the trainer, or loaded
    pause_s: float = 0.0  # replicas stood still for new weights, summed over them

    @property
    def total_s(self) -> float:
        """Length of the stretch."""
        return sum(self.state_s.values())

    @property
    def starved_s(self) -> float:
        """The wait, without evaluations."""
        return max(0.0, self.state_s["wait"] - self.eval_s)

    def mean_running(self, state: State) -> float | None:
        """Rollouts that were being generated, mean over the time in a state."""
        return ratio(self.running[state], self.state_s[state])


@dataclass(slots=True)
class Phases:
    """Follows the trainer's states, and how many train rollouts are being generated.

    Attributes:
        total: over all windows.
        steps: by surviving step, since the step before.
        levels: number of rollouts being generated -> seconds.
    """

    total: Spent = field(default_factory=Spent)
    steps: dict[int, Spent] = field(default_factory=dict[int, Spent])
    levels: dict[int, float] = field(default_factory=dict[int, float])
    num_eval: int = 0
    _current: Spent = field(default_factory=Spent)
    _running: dict[str, bool] = field(default_factory=dict[str, bool])  # train rollout -> it stands parked
    _num_parked: int = 0
    _holds: int = 0  # parts and batches that the trainer has
    _publishing: bool = False
    _evaluating: bool = False
    _trained_since: float = 0.0  # when the batch was handed over
    _t: float | None = None  # open window: time of the last entry

    @property
    def num_running(self) -> int:
        """Train rollouts that are being generated now."""
        return len(self._running) - self._num_parked

    @property
    def waits(self) -> bool:
        """Whether the trainer has nothing to do now."""
        return not self._holds and not self._publishing

    def advance(self, t: float, at_limit: bool) -> None:
        """Account for the time until `t`, at what was before."""
        if self._t is None:
            return
        spent = max(0.0, t - self._t)
        self._t = t
        state: State = "train" if self._holds else "publish" if self._publishing else "wait"
        running = self.num_running
        self.levels[running] = self.levels.get(running, 0.0) + spent
        for sums in (self.total, self._current):
            sums.state_s[state] += spent
            sums.running[state] += running * spent
            if state == "wait":
                sums.eval_s += spent * self._evaluating
                sums.at_limit_s += spent * (at_limit and not self._evaluating)

    def feed(self, entry: Entry) -> None:
        """Take an entry in that changed something."""
        self._event(entry.t, entry.event)
        for command in entry.commands:
            self._command(entry.t, command)
        for note in entry.notes:
            self._note(note)

    def share(self, seconds: float) -> float:
        """Return a part of the whole time."""
        return ratio(seconds, self.total.total_s) or 0.0

    def level(self, quantile: float) -> float:
        """Return how many rollouts were being generated, by time."""
        whole, seen = sum(self.levels.values()), 0.0
        for value, spent in sorted(self.levels.items()):
            seen += spent
            if seen >= quantile * whole:
                return float(value)
        return 0.0

    def _event(self, t: float, event: events.Event) -> None:
        match event:
            case events.RolloutEnded() | events.RolloutFailed():
                self._leave(event.rollout)
            case events.RolloutParked():
                self._park(event.rollout, True)
            case events.RolloutResumed():
                self._park(event.rollout, False)
            case events.PartEnded():
                self._holds = max(0, self._holds - 1)
            case events.StepEnded():
                self._holds = 0
                handover = t - self._trained_since - (event.compute_s - event.gathered_s)
                for sums in (self.total, self._current):
                    sums.handover_s += max(0.0, handover) if self._t is not None else 0.0
                self.steps[event.step], self._current = self._current, Spent()
            case events.VersionPublished():
                self._publishing = False
            case events.VersionApplied() if self._t is not None:
                self.total.pause_s += event.pause_s
                self._current.pause_s += event.pause_s
            case events.RunResumed():
                self._began_anew(event.step)
            case _:
                pass

    def _command(self, t: float, command: commands.Command) -> None:
        match command:
            case commands.StartRollout() if command.purpose == "train":
                self._leave(command.rollout)
                self._running[command.rollout] = False
                if self._t is None:
                    self._t = t
            case commands.TrainPart():
                self._holds += 1
            case commands.Train():
                self._holds, self._trained_since = self._holds + 1, t
            case commands.Publish():
                self._publishing = True
            case commands.Finish():
                self._t = None
            case _:
                pass

    def _note(self, note: notes.Note) -> None:
        match note:
            case notes.RolloutSettled():
                self._leave(note.rollout)
            case notes.EvalStarted():
                self._evaluating = True
                self.num_eval += 1
            case notes.EvalEnded():
                self._evaluating = False
            case notes.RolledBackTo():
                self._forget(note.step)
                self._holds = 0
            case notes.Stopping():
                self._t = None
            case _:
                pass

    def _began_anew(self, step: int) -> None:
        self._forget(step)
        self._running.clear()
        self._num_parked = self._holds = 0
        self._publishing = self._evaluating = False
        self._t = None

    def _forget(self, step: int) -> None:
        self.steps = {number: spent for number, spent in self.steps.items() if number <= step}
        self._current = Spent()

    def _leave(self, rollout: str) -> None:
        self._num_parked -= self._running.pop(rollout, False)

    def _park(self, rollout: str, parked: bool) -> None:
        if rollout in self._running:
            self._num_parked += parked - self._running[rollout]
            self._running[rollout] = parked
