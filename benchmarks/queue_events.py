"""What one event costs the scheduler with 100, 1,000, 10,000 and 100,000 rollouts in flight.

The simulated driver plays a steady run (groups of 8, two batches in flight, two turns a rollout); only the
time inside `Scheduler.handle` is counted, over at least one whole step of each size, so that the batch's own
cost is in the mean. The sizes take turns.
"""

from __future__ import annotations

import contextlib
import statistics
import time

from headway.core.events import Event, StepEnded
from headway.matching.roles import SimSettings
from headway.matching.simulate import SimRun, SimulatedDriver
from headway.queue.scheduler import Scheduler
from headway.queue.settings import (
    CheckpointSettings,
    EvalSettings,
    QueueSettings,
    SchedulerSettings,
    StopSettings,
)
from headway.runtime.life import calm_collector

SIZES = (100, 1_000, 10_000, 100_000)
ROUNDS = {100: 5, 1_000: 5, 10_000: 3, 100_000: 1}
GROUP = 8


class Enough(Exception):
    """The window of measurement is over."""


class Timed(SimulatedDriver):
    """Times every call of the scheduler and keeps no journal."""

    spent_s = 0.0
    num_events = 0
    steps = 0
    times: list[float]

    def feed(self, event: Event) -> None:
        """Let an event happen; after the first step it counts."""
        began = time.perf_counter()
        commands, _ = self.run.scheduler.handle(event, self.clock.now())
        took = time.perf_counter() - began
        if self.steps >= 1:
            self.times.append(took)
        if isinstance(event, StepEnded):
            self.steps += 1
            if self.steps >= 3 and len(self.times) >= 20_000:
                raise Enough
        for command in commands:
            self._obey(command)


def settings(in_flight: int) -> SchedulerSettings:
    """Return a run that keeps about so many rollouts in flight."""
    batch = max(1, in_flight // (2 * GROUP)) * GROUP
    return SchedulerSettings(
        queue=QueueSettings(group_size=GROUP, batch_size=batch, bound=1),
        stop=StopSettings(steps=1_000_000),
        eval=EvalSettings(num_tasks=0),
        checkpoint=CheckpointSettings(every_steps=2),
        rollout_timeout_s=1e6,
    )


def measure(in_flight: int) -> tuple[float, float]:
    """Return mean and median seconds an event."""
    sim = SimSettings(
        max_running=in_flight, uses_sandbox=False, tool_s=1.0, tool_sigma=1.0, train_s=1.0, solve_rate=0.5
    )
    driver = Timed(SimRun(Scheduler(settings(in_flight))), sim, seed=0)
    driver.times = []
    with contextlib.suppress(Enough):
        driver.play(max_events=50_000_000)
    return statistics.fmean(driver.times), statistics.median(driver.times)


def scheduler_cost() -> dict[str, float]:
    """Measure all sizes in turns; return microseconds an event and the ratio of the largest to the least."""
    means: dict[int, list[float]] = {size: [] for size in SIZES}
    medians: dict[int, list[float]] = {size: [] for size in SIZES}
    for turn in range(max(ROUNDS.values())):
        for size in SIZES:
            if turn < ROUNDS[size]:
                mean, median = measure(size)
                means[size].append(mean * 1e6)
                medians[size].append(median * 1e6)
                print(
                    f"{size:>7} in flight: mean {mean * 1e6:6.1f} us, median {median * 1e6:6.1f} us",
                    flush=True,
                )
    result: dict[str, float] = {}
    for size in SIZES:
        result[f"scheduler.mean_us.{size}"] = round(statistics.median(means[size]), 2)
        result[f"scheduler.median_us.{size}"] = round(statistics.median(medians[size]), 2)
    result["scheduler.ratio"] = round(
        statistics.median(means[SIZES[-1]]) / statistics.median(means[SIZES[0]]), 3
    )
    return result


if __name__ == "__main__":
    calm_collector()
    print(scheduler_cost())
