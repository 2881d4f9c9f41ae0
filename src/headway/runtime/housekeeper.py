"""What a run takes on disk: measured, kept within the policy, and warned of in time.

One thread, away from the driver's event loop. It consumes a Tidy at each checkpoint and measures then and
every EVERY_S seconds; it waits for nothing else, and `stop` ends it after one last measurement. What it found
goes to the driver: a table of `disk.` stats, and a Noticed where a person should know.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.config.retention import RetentionSettings
from headway.core.events import Noticed
from headway.core.storage import free_bytes, size
from headway.runtime import directory, retention
from headway.runtime.job import checkpoint_dir, payload_dir, weights_dir
from headway.runtime.retention import Needs

EVERY_S = 30.0
CHECKPOINTS_AHEAD = 2  # for which there should be room


@dataclass(frozen=True, slots=True)
class Tidy:
    """A checkpoint is done and the journal synced: what the policy gives up may go."""

    needs: Needs
    policy: RetentionSettings
    ages: Mapping[int, int]  # newest step of each payload segment
    checkpoint_bytes: int  # of the newest checkpoint


@dataclass(slots=True)
class Housekeeper:
    """The thread. Create it, `start` it, `stop` it."""

    run_dir: Path
    weights_dir: Path  # where versions are handed over
    checkpoint_bytes: int  # that the next checkpoint is expected to take
    tell: Callable[[dict[str, float] | Noticed], object]  # called in the thread
    _orders: queue.SimpleQueue[Tidy | None] = field(default_factory=queue.SimpleQueue[Tidy | None])
    _thread: threading.Thread | None = None
    _warned: set[str] = field(default_factory=set[str])

    def start(self) -> None:
        """Measure now, then go on."""
        self._thread = threading.Thread(target=self._run, name="housekeeper", daemon=True)
        self._thread.start()

    def tidy(self, order: Tidy) -> None:
        """Ask for a tidying; answered by nothing but the next measurement."""
        self._orders.put(order)

    def stop(self) -> None:
        """Tidy what was asked for, measure once more, and end."""
        self._orders.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        order: Tidy | None = None
        ending = False
        while not ending:
            if order is not None:
                self._tidy(order)
            self._measure()
            try:
                order = self._orders.get(timeout=EVERY_S)
            except queue.Empty:
                order = None
            else:
                ending = order is None
        self._measure(over=True)

    def _tidy(self, order: Tidy) -> None:
        self.checkpoint_bytes = order.checkpoint_bytes or self.checkpoint_bytes
        folder = payload_dir(self.run_dir)
        try:
            retention.remove(retention.spare_segments(folder, order.needs, order.policy, order.ages))
            with retention.spare_snapshots(folder, order.needs) as snapshots:
                retention.remove(snapshots)
        except OSError as error:  # it stays, and takes room
            self._warn("retention", f"what the run needs no longer cannot be removed: {error}")

    def _measure(self, *, over: bool = False) -> None:
        sizes = measure(self.run_dir, self.weights_dir)
        if over:  # the life takes them with it
            sizes["disk.weights_bytes"] = 0.0
        self.tell(sizes)
        free, needed = sizes["disk.free_bytes"], CHECKPOINTS_AHEAD * self.checkpoint_bytes
        if free < needed:
            self._warn(
                "disk_low",
                f"{size(free)} are free where {self.run_dir} is, and the next {CHECKPOINTS_AHEAD} "
                f"checkpoints need {size(needed)}: free room, or lower checkpoint.keep or retention.payloads",
            )

    def _warn(self, code: str, text: str) -> None:
        if code not in self._warned:
            self._warned.add(code)
            self.tell(Noticed(code, text))


def measure(run_dir: Path, handed_over: Path) -> dict[str, float]:
    """Return what a run takes on disk, bytes, under the keys of telemetry's stats."""
    weights = retention.size_on_disk(weights_dir(run_dir))
    if handed_over != weights_dir(run_dir):
        weights += retention.size_on_disk(handed_over)
    sizes = {
        "checkpoints": retention.size_on_disk(checkpoint_dir(run_dir)),
        "payloads": retention.size_on_disk(payload_dir(run_dir)),
        "journal": retention.size_on_disk(run_dir / directory.JOURNAL),
        "weights": weights,
        "free": free_bytes(run_dir),
    }
    return {f"disk.{name}_bytes": float(num_bytes) for name, num_bytes in sizes.items()}
