"""How many groups were where, weighted by time.

A group is admitted from its first StartRollout and waits with signal from GroupSettled "queued"; a batch or
the settlement of its rollouts takes it away. A batch whose step never ended goes back at a resume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.telemetry.tails import ratio

if TYPE_CHECKING:
    from collections.abc import Iterable


class Level:
    """The time-weighted mean and the maximum of a number that changes in steps.

    A value that no time was spent at is not a maximum.
    """

    def __init__(self) -> None:
        self._value = 0
        self._since: float | None = None
        self._area = 0.0
        self._span_s = 0.0
        self._max = 0

    @property
    def value(self) -> int:
        """The number now."""
        return self._value

    def advance(self, t: float) -> None:
        """Account for the time until `t` at the present value."""
        if self._since is not None and t > self._since:
            self._area += self._value * (t - self._since)
            self._span_s += t - self._since
            self._max = max(self._max, self._value)
        self._since = t if self._since is None else max(self._since, t)

    def skip_to(self, t: float) -> None:
        """Leave the time until `t` out."""
        self._since = t

    def set(self, value: int) -> None:
        """Change the number at the time of the last `advance`."""
        self._value = value

    def summary(self) -> dict[str, float | None]:
        """Return {"mean", "max"}, None before any time has passed."""
        known = self._span_s > 0.0
        return {"mean": ratio(self._area, self._span_s), "max": float(self._max) if known else None}


class QueueDepth:
    """Train groups between admission and trainer. `all` counts running and waiting ones, `signal` the latter.

    A group leaves when a batch takes it or when its last open rollout is settled.
    """

    def __init__(self) -> None:
        self.all = Level()
        self.signal = Level()
        self._open: dict[str, set[str]] = {}  # group -> rollouts that are not settled
        self._queued: set[str] = set()
        self._training: dict[str, set[str]] = {}  # released, step not ended
        self._began = False
        self._over = False

    def advance(self, t: float) -> None:
        """Time goes on; it counts from the first train group until the run stops."""
        if self._began and not self._over:
            self.all.advance(t)
            self.signal.advance(t)

    def started(self, t: float, group: str, rollout: str) -> None:
        """A rollout of a train group starts."""
        if not self._began:
            self._began = True
            self.advance(t)
        self._open.setdefault(group, set()).add(rollout)
        self._changed()

    def queued(self, group: str) -> None:
        """A group waits, with signal."""
        if group in self._open:
            self._queued.add(group)
            self._changed()

    def split(self, group: str, into: str, rollouts: Iterable[str]) -> None:
        """Late members of an oversampled group go on as a group of their own."""
        if group in self._open:
            self._open[group].difference_update(rollouts)
        self._open[into] = set(rollouts)
        self._changed()

    def rollout_settled(self, group: str, rollout: str) -> None:
        """A rollout ended."""
        rollouts = self._open.get(group)
        if rollouts is None:
            return
        rollouts.discard(rollout)
        if not rollouts:
            del self._open[group]
            self._queued.discard(group)
            self._changed()

    def rollout_revived(self, group: str, rollout: str) -> None:
        """A settled rollout waits again, with its group."""
        self._open.setdefault(group, set()).add(rollout)
        self.queued(group)

    def released(self, groups: Iterable[str]) -> None:
        """A batch leaves for the trainer."""
        self._training = {group: self._open.pop(group) for group in groups if group in self._open}
        self._queued.difference_update(self._training)
        self._changed()

    def step_ended(self) -> None:
        """The batch is in the weights."""
        self._training = {}

    def stopping(self) -> None:
        """Nothing more is admitted: from here on the depth says nothing."""
        self._over = True

    def resumed(self, t: float) -> None:
        """A new life at `t`: a batch whose step never ended waits again; the time between is left out."""
        self._over = False
        self.all.skip_to(t)
        self.signal.skip_to(t)
        self.rolled_back()

    def rolled_back(self) -> None:
        """A batch whose step never ended waits again."""
        for group, rollouts in self._training.items():
            self._open[group] = rollouts
            self._queued.add(group)
        self._training = {}
        self._changed()

    def _changed(self) -> None:
        self.all.set(len(self._open))
        self.signal.set(len(self._queued))
