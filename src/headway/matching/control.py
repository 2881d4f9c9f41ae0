"""Control: settings follow the run so that production and consumption stay matched. Pure.

`feed` takes each entry of the journal, as either driver has it, and returns events: SettingChanged with its
reason, which the driver hands to the scheduler like any other, and Noticed for what a person should know.
It decides when a batch leaves, and once more each time that the trainer has waited for as long as a cycle
takes. In this order:

- engines that preempt get fewer at once, by a factor; waste beyond its limit, or with engines full, is cut;
- a change that has to show its worth is left alone until a rollout's lifetime and some cycles are over, then
  compared: rollouts trained a second before and after. What wastes is taken back where a gain of `min_gain`
  is refuted, depth where it is not proven, for it makes samples older;
- a trainer that waits gets more, one change at a time, each as large as the wait says;
- what several calm cycles did not need is taken back, one notch at a time.

Invariants: every value stays within its bounds. What was of no use, and what was taken back too early, is
tried again only after twice as long each time, so that a stationary run comes to rest. Nothing is integrated
over calm cycles: after however many, the first starved one is answered at once. A key that a person changed
is left alone. The state is a fold of the journal; a decision counts from the moment that its event is in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from typing import TYPE_CHECKING

from headway.core.events import Noticed, RunResumed, SettingChanged
from headway.matching import control_rules as rules
from headway.matching.control_levers import KEYS, LEVERS, Levers
from headway.matching.control_rules import Turn
from headway.matching.control_signals import Cycle, Handled, Signals
from headway.matching.machines import advise_move

if TYPE_CHECKING:
    from headway.config.control import ControlSettings, Lever
    from headway.queue.settings import SchedulerSettings

_REMEMBERED = 12  # newest cycles
_JUDGED = 3  # cycles by which a change is judged
_COMPARED = 4  # cycles before it, at most
_NOISE = 0.1  # of a cycle's rate, where there are too few to tell
_HOLD, _MOST_HOLD = 8, 1024  # cycles that a useless change is not tried again for, first and at most
_WORSE = 0.2  # share of waiting beyond that of the refusal, at which it is tried all the same


@dataclass(slots=True)
class _Hold:
    """A turn that is not tried for a while."""

    length: int
    until: int  # cycle
    wait: float  # share of waiting when it was refused


@dataclass(slots=True)
class _Trial:
    """A change that has to show its worth."""

    turn: Turn
    must_gain: float
    value: float  # the lever's, before
    before: list[Cycle]
    from_s: float  # when a rollout's lifetime is over since
    after: list[Cycle] = field(default_factory=list[Cycle])


class Controller:
    """Folds the journal into decisions.

    Args:
        settings: section [control]; with mode "off" it looks on, for it may be switched on.
        scheduler: what the run's scheduler began with.
    """

    def __init__(self, settings: ControlSettings, scheduler: SchedulerSettings) -> None:
        self.levers = Levers(settings, scheduler)
        queue = scheduler.queue
        self._signals = Signals(max(1, round(queue.batch_groups * queue.batch_wait_share)))
        self._recent: deque[Cycle] = deque(maxlen=_REMEMBERED)
        self._holds: dict[tuple[Lever, bool], _Hold] = {}
        self._last_up: dict[Lever, bool] = {}  # direction of the last turn
        self._proposed: dict[str, Turn] = {}  # by key, until the journal has the event
        self._trial: _Trial | None = None
        self._quiet_until_s = 0.0
        self._look_at_s = 0.0
        self._calm: list[Cycle] = []  # in a row
        self._advice = ""

    def feed(self, entry: Handled) -> list[SettingChanged | Noticed]:
        """Take in what was handled; return what is to be handled next."""
        event = entry.event
        if isinstance(event, SettingChanged):
            return self._changed(entry, event)
        self._proposed.clear()
        if isinstance(event, RunResumed):
            self._forget()
        cycle = self._signals.feed(entry)
        if self.levers.settings.mode == "off":
            return []
        if cycle is None and self._waits_long(entry.t):
            cycle = self._signals.waiting()
        if cycle is None:
            return []
        self._look_at_s = entry.t + self._patience_s()
        turns = list(self._decide(cycle))
        return [*self._propose(turns), *self._say_move(cycle)]

    # --- what the journal says of settings

    def _changed(self, entry: Handled, event: SettingChanged) -> list[SettingChanged | Noticed]:
        turn = self._proposed.pop(event.key, None)
        lever = LEVERS.get(event.key)
        before = self.levers.value(lever) if lever is not None else 0.0
        pinned = self.levers.take(event, entry)
        found: list[SettingChanged | Noticed] = []
        if pinned is not None:
            self._trial = None
            if self.levers.settings.mode == "on":
                text = f"{event.key} was set by hand: control leaves it alone from now on"
                found.append(Noticed("control", text))
        elif lever is not None and turn is not None:
            self._takes_effect(turn, before, entry.t)
        elif event.by == "user":
            self._trial, self._calm = None, []
        if self.levers.settings.mode == "on" and event.by == "user":
            found += self._propose(self._into_bounds(event.key))
        return found

    def _takes_effect(self, turn: Turn, before: float, t: float) -> None:
        """A decision is in the journal: from here on it counts."""
        lever, up = turn.lever, _is_up(turn, before)
        lifetime_s = self._signals.lifetime_s
        self._quiet_until_s = t + lifetime_s
        self._calm = []
        if self._trial is not None and self._trial.turn.lever == lever:
            self._trial = None
        if turn.must_gain is not None:
            self._trial = _Trial(turn, turn.must_gain, before, self._starved(), t + lifetime_s)
        if turn.bars:
            self.levers.barred.add(lever)
        if self._last_up.get(lever, up) != up:
            # What was done before was wrong, or did not last.
            self._hold(lever, up=not up, wait=1.0 if turn.bars else self._wait())
        self._last_up[lever] = up

    def _into_bounds(self, key: str) -> Iterator[Turn]:
        for lever in KEYS:
            value = self.levers.value(lever)
            most = self.levers.high(lever)
            if value > most and self.levers.may(lever):
                yield Turn(lever, most, f"{key} allows no more")

    def _forget(self) -> None:
        """A new life: what was measured says little of it."""
        self._trial, self._calm = None, []
        self._recent.clear()

    # --- decisions

    def _decide(self, cycle: Cycle) -> Iterator[Turn]:
        """Yield what is to be turned now."""
        levers, settings = self.levers, self.levers.settings
        if cycle.ended:
            self._recent.append(cycle)
        calm = cycle.ended and cycle.wait <= settings.wait_low
        self._calm = [*self._calm, cycle][-settings.calm_cycles :] if calm else []
        starved = self._is_starved(cycle)
        quiet = cycle.t < self._quiet_until_s
        if not quiet and cycle.wait > settings.wait_low:
            cuts = self._free(rules.overfull(cycle, levers), up=False)
            if cuts:
                self._trial = None
                yield cuts[0]
                return
        if self._trial is not None:
            verdict = self._judge(self._trial, cycle)
            if verdict is None:
                return
            if verdict.reason:
                yield verdict
                return
        if quiet:
            return
        waste = self._waste()
        if cycle.wait > settings.wait_low or waste > settings.max_waste:
            cuts = list(rules.give_up_waste(cycle, levers, waste))
            if cuts:
                yield cuts[0]
                return
        if starved:
            if rules.has_room(cycle, levers):
                more = rules.make_more(cycle, levers, self._signals, waste)
                yield from self._free(more, up=True)[:1]
        elif len(self._calm) >= settings.calm_cycles:
            least = min(cycle.num_queued for cycle in self._calm)
            yield from self._free(rules.take_back(cycle, levers, least), up=False)[:1]

    def _is_starved(self, cycle: Cycle) -> bool:
        """Whether the trainer waited too long: now, and in the mean of three cycles with the newest."""
        high = self.levers.settings.wait_high
        last = [other.wait for other in list(self._recent)[-3:]]
        if not cycle.ended:
            last = [*last[-2:], cycle.wait]
        return cycle.wait > high and sum(last) > high * 3

    def _judge(self, trial: _Trial, cycle: Cycle) -> Turn | None:
        """Compare; None while it is too early, a turn without a reason when the change stays."""
        if not cycle.ended or cycle.t - cycle.length_s < trial.from_s:
            return None
        trial.after.append(cycle)
        if len(trial.after) < _JUDGED:
            return None
        self._trial = None
        settings, lever = self.levers.settings, trial.turn.lever
        gain, doubt = _gain(trial.before, trial.after)
        sated = all(other.wait <= settings.wait_high for other in trial.after)
        shown = gain - doubt if trial.turn.is_sure else gain + doubt
        if shown >= trial.must_gain or (sated and gain >= 0):
            return Turn(lever, trial.turn.value, "")
        text = f"{KEYS[lever]} = {trial.turn.value:g} changed the rollouts trained a second by {gain:+.1%} "
        text += f"(+- {doubt:.1%}), less than {trial.must_gain:+.1%}"
        return Turn(lever, min(trial.value, self.levers.high(lever)), text)

    def _free(self, turns: Iterable[Turn], *, up: bool) -> list[Turn]:
        """Return the turns that are not held back."""
        return [turn for turn in turns if not self._is_held(turn.lever, up)]

    def _is_held(self, lever: Lever, up: bool) -> bool:
        hold = self._holds.get((lever, up))
        if hold is None or self._signals.num_cycles >= hold.until:
            return False
        return not (up and self._wait() > hold.wait + _WORSE)

    def _hold(self, lever: Lever, *, up: bool, wait: float) -> None:
        """Do not try this again for a while, each time for twice as long; sooner if the wait is much more."""
        before = self._holds.get((lever, up))
        length = min(_MOST_HOLD, 2 * before.length) if before is not None else _HOLD
        self._holds[lever, up] = _Hold(length, self._signals.num_cycles + length, wait)

    def _propose(self, turns: Iterable[Turn]) -> list[SettingChanged | Noticed]:
        found: list[SettingChanged | Noticed] = []
        for turn in turns:
            value: float = turn.value if turn.lever == "batch_wait" else int(turn.value)
            self._proposed[KEYS[turn.lever]] = turn
            found.append(SettingChanged(KEYS[turn.lever], value, reason=turn.reason, by="control"))
        return found

    # --- time and rates

    def _patience_s(self) -> float:
        """Return how long a wait is longer than any wait should be."""
        lengths = [cycle.length_s for cycle in self._recent]
        return max(sum(lengths) / len(lengths), self._signals.lifetime_s) if lengths else 0.0

    def _waits_long(self, t: float) -> bool:
        free_s = self._signals.free_s
        if free_s is None or t < self._look_at_s or len(self._recent) < _JUDGED:
            return False
        return t - free_s > self._patience_s()

    def _starved(self) -> list[Cycle]:
        """Return the newest cycles, as many as were starved in a row."""
        cycles: list[Cycle] = []
        for cycle in reversed(self._recent):
            if (cycles and cycle.wait <= self.levers.settings.wait_high) or len(cycles) == _COMPARED:
                break
            cycles.append(cycle)
        return cycles

    def _wait(self) -> float:
        """Return the share of waiting of the newest cycles."""
        newest = list(self._recent)[-_JUDGED:]
        return sum(cycle.wait for cycle in newest) / len(newest) if newest else 0.0

    def _waste(self) -> float:
        """Return the share that oversampling threw away since the last change.

        While too few cycles tell, that is max_waste where something is thrown away, so that it is neither
        added to nor cut, and 0 elsewhere.
        """
        since = [cycle for cycle in self._recent if cycle.t - cycle.length_s >= self._quiet_until_s]
        tokens = sum(cycle.num_tokens for cycle in since)
        if len(since) < _JUDGED:
            return self.levers.settings.max_waste if self.levers.oversamples else 0.0
        return sum(cycle.num_wasted for cycle in since) / tokens if tokens else 0.0

    def _say_move(self, cycle: Cycle) -> list[Noticed]:
        """Say when machines should move between the two sides, where they share a pool."""
        settings = self.levers.settings
        if not settings.generator_machines or not cycle.ended or len(self._recent) < _REMEMBERED:
            return []
        advice = advise_move(
            list(self._recent), settings.generator_machines, settings.trainer_machines,
            full=rules.is_full(cycle, self.levers) or not rules.has_room(cycle, self.levers),
        )  # fmt: skip
        if advice == self._advice:
            return []
        self._advice = advice
        return [Noticed("machines", advice)] if advice else []


def _gain(before: Sequence[Cycle], after: Sequence[Cycle]) -> tuple[float, float]:
    """Return by what share the rollouts trained a second grew, and the standard error of that.

    Cycles scatter by factors, so that the error is that of a difference of means of logarithms.
    """
    rates: list[float] = []
    squares, freedom = 0.0, 0
    for cycles in (before, after):
        length_s = sum(cycle.length_s for cycle in cycles)
        rates.append(sum(cycle.num_rollouts for cycle in cycles) / length_s if length_s > 0 else 0.0)
        logs = [
            log(cycle.num_rollouts / cycle.length_s)
            for cycle in cycles
            if cycle.num_rollouts and cycle.length_s > 0
        ]
        mean = sum(logs) / max(1, len(logs))
        squares += sum((value - mean) ** 2 for value in logs)
        freedom += max(0, len(logs) - 1)
    if not rates[0] or not rates[1]:
        return 1.0, 0.0
    noise = sqrt(squares / freedom) if freedom > 1 else _NOISE
    return rates[1] / rates[0] - 1.0, noise * sqrt(1.0 / max(1, len(before)) + 1.0 / max(1, len(after)))


def _is_up(turn: Turn, before: float) -> bool:
    """Say whether a turn lets more in flight; 0 is no limit for what may run at once, and for pruning."""
    if turn.lever in ("running", "pruning") and 0 in (turn.value, before):
        return (turn.value == 0) == (turn.lever == "running")
    return turn.value > before
