"""A simulated driver whose events a test may change or add to."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headway.core.events import Event
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.queue.scheduler import Scheduler
from headway.queue.settings import SchedulerSettings

Change = Callable[[Event], Event]
Follow = Callable[[Event], Iterable[Event]]


class ScriptedDriver(SimulatedDriver):
    """Passes each event through `change`, and lets those of `follow` happen right after it."""

    change: Change | None = None
    follow: Follow | None = None

    def feed(self, event: Event) -> None:
        if self.change is not None:
            event = self.change(event)
        super().feed(event)
        if self.follow is not None and self.finish is None:
            for extra in self.follow(event):
                self.later(0.0, extra)


def scripted(
    settings: SchedulerSettings,
    sim: SimSettings,
    seed: int,
    *,
    change: Change | None = None,
    follow: Follow | None = None,
) -> ScriptedDriver:
    """Return a driver that has not been played yet."""
    driver = ScriptedDriver(SimRun(Scheduler(settings)), sim, seed)
    driver.change, driver.follow = change, follow
    return driver


def play(
    settings: SchedulerSettings,
    sim: SimSettings,
    seed: int,
    *,
    change: Change | None = None,
    follow: Follow | None = None,
) -> SimRun:
    """Play a whole run."""
    driver = scripted(settings, sim, seed, change=change, follow=follow)
    driver.play()
    return driver.run
