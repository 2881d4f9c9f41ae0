"""What the controller may turn: present values, bounds, and what a person has taken from it. Pure."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal

from headway.core.notes import Warned

if TYPE_CHECKING:
    from headway.config.control import ControlSettings, Lever
    from headway.core.events import SettingChanged
    from headway.matching.control_signals import Handled
    from headway.queue.settings import SchedulerSettings

KEYS: dict[Lever, str] = {
    "depth": "queue.depth",
    "running": "queue.max_running_rollouts",
    "groups_extra": "oversampling.groups_extra",
    "rollouts_extra": "oversampling.rollouts_extra",
    "batch_wait": "queue.batch_wait_s",
    "pruning": "pruning.max_tokens",
}
LEVERS: dict[str, Lever] = {key: lever for lever, key in KEYS.items()}


class Levers:
    """The settings as the scheduler has them now.

    Invariant: `low(lever) <= high(lever)`, and a value that the controller proposes lies between.
    """

    def __init__(self, settings: ControlSettings, scheduler: SchedulerSettings) -> None:
        self.settings = settings
        self.now = scheduler
        self.began = scheduler
        self.pinned: set[Lever] = set()
        self.barred: set[Lever] = set()  # that threw too much away once: they go up by one from then on

    def take(self, event: SettingChanged, entry: Handled) -> Lever | None:
        """Follow a changed setting; return the lever that a person takes out of the controller's hands.

        What the scheduler refuses of the controller's own is out of its hands too.
        """
        section, _, name = event.key.partition(".")
        lever = LEVERS.get(event.key)
        refused = any(isinstance(note, Warned) and note.code == "setting" for note in entry.notes)
        if section == "control" and hasattr(self.settings, name):
            self.settings = dataclasses.replace(self.settings, **{name: event.value})
        elif not refused:
            part = getattr(self.now, section, None)
            if dataclasses.is_dataclass(part) and not isinstance(part, type) and hasattr(part, name):
                changed = dataclasses.replace(part, **{name: event.value})
                self.now = dataclasses.replace(self.now, **{section: changed})
        if lever is None or (event.by == "control" and not refused) or lever in self.pinned:
            return None
        self.pinned.add(lever)
        return lever

    def may(self, lever: Lever) -> bool:
        """Say whether the controller may turn a lever."""
        if lever == "running" and self.now.concurrency.mode == "adaptive":
            return False  # the band limits what is in flight
        return lever in self.settings.levers and lever not in self.pinned

    def value(self, lever: Lever) -> float:
        """Return a lever's present value; what 0 or -1 stand for is said where there is a number for it."""
        match lever:
            case "depth":
                return self.now.depth
            case "running":
                return self.now.queue.max_running_rollouts  # 0 for no limit
            case "groups_extra":
                return self.now.oversampling.groups_extra
            case "rollouts_extra":
                return self.now.oversampling.rollouts_extra
            case "batch_wait":
                return self.now.queue.batch_wait_s
            case "pruning":
                return self.now.pruning.max_tokens  # 0 for no limit

    def low(self, lever: Lever) -> float:
        """Return the least value of a lever."""
        queue = self.now.queue
        match lever:
            case "depth":
                return min(self.high("depth"), max(min(1, queue.bound), queue.publish_every - 1))
            case "running":
                return self.settings.min_running or 2 * self.group_size
            case _:
                return 0

    def high(self, lever: Lever) -> float:
        """Return the largest value of a lever."""
        queue, settings = self.now.queue, self.settings
        room = queue.bound if self.now.oversampling.when_met != "cancel" else None
        match lever:
            case "depth":
                limit = self.now.staleness.trajectory_bound
                most = queue.bound if limit < 0 else min(queue.bound, limit)
                if room is None:
                    return most
                extra = math.ceil(self.now.oversampling.groups_extra / queue.batch_groups)
                return max(0, min(most, room - extra))
            case "groups_extra":
                most = settings.max_groups_extra or 2 * queue.batch_groups
                return (
                    most if room is None else max(0, min(most, (room - self.now.depth) * queue.batch_groups))
                )
            case "rollouts_extra":
                return settings.max_rollouts_extra or max(1, queue.group_size // 2)
            case "running":
                return settings.max_running
            case _:
                return math.inf

    def within_waste(self, lever: Literal["groups_extra", "rollouts_extra"]) -> int:
        """Return the value at which oversampling would throw max_waste away, by numbers alone.

        Of n + e that are started, e are thrown away; what they had sampled by then is less.
        """
        queue, extra = self.now.queue, self.now.oversampling
        groups = extra.groups_extra / (queue.batch_groups + extra.groups_extra)
        rollouts = extra.rollouts_extra / (queue.group_size + extra.rollouts_extra)
        num, other = (queue.batch_groups, rollouts) if lever == "groups_extra" else (queue.group_size, groups)
        left = 1.0 - (1.0 - self.settings.max_waste) / (1.0 - other)
        return max(0, math.floor(num * left / (1.0 - left) + 1e-9))

    @property
    def oversamples(self) -> bool:
        """Say whether anything is started that is not needed."""
        extra = self.now.oversampling
        return bool(extra.groups_extra or extra.rollouts_extra)

    @property
    def group_size(self) -> int:
        """Rollouts that a group starts with."""
        return self.now.queue.group_size + self.now.oversampling.rollouts_extra

    @property
    def most_in_flight(self) -> int:
        """Rollouts that depth and extra groups allow in flight."""
        queue = self.now.queue
        groups = (self.now.depth + 1) * queue.batch_groups + self.now.oversampling.groups_extra
        return groups * self.group_size
