"""The time over which rates and the trainer's shares are taken.

A life of the run opens its window at its first StartRollout of purpose train: before that the workers load,
and an evaluation that runs alone is not the trainer's wait. An evaluation beside training counts. The window
closes at the first Stopping note, or with the last step if that ends later; a final publish, checkpoint or
evaluation is outside. A crash closes it at the last record before the resume. While the run lasts it reaches
to the newest record.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right


class TrainingWindow:
    """Adds up the windows of all lives, and what the trainer did inside them.

    compute + publish + wait is the whole window; checkpoints are a part of the wait.
    """

    def __init__(self) -> None:
        self.compute_s = 0.0
        self.gathered_s = 0.0  # of compute_s, what was done before a batch was complete
        self.publish_s = 0.0
        self.checkpoint_s = 0.0
        self._closed_s = 0.0  # of earlier lives
        self._closed_finished = 0
        self._opened: float | None = None
        self._stopped: float | None = None
        self._last_step = 0.0
        self._now = 0.0
        self._finished = array("d")  # times at which train rollouts were scored, this life

    @property
    def opened(self) -> float | None:
        """When this life's window opened, None before."""
        return self._opened

    def advance(self, t: float) -> None:
        """Time goes on."""
        self._now = max(self._now, t)

    def train_rollout_started(self, t: float) -> None:
        """A train rollout starts."""
        if self._opened is None:
            self._opened = self._last_step = t

    def train_rollout_finished(self, t: float) -> None:
        """A train rollout was scored."""
        self._finished.append(t)

    def step_ended(self, t: float, compute_s: float, gathered_s: float) -> None:
        """The trainer applied a step; its parts are in `compute_s`, and alone in `gathered_s`."""
        self._last_step = t
        self.compute_s += compute_s
        self.gathered_s += gathered_s

    def published(self, publish_s: float) -> None:
        """The trainer published weights."""
        if self._opened is not None and self._stopped is None:
            self.publish_s += publish_s

    def checkpointed(self, duration_s: float) -> None:
        """The trainer saved a checkpoint."""
        if self._opened is not None and self._stopped is None:
            self.checkpoint_s += duration_s

    def stopping(self, t: float) -> None:
        """The run admits nothing more."""
        if self._stopped is None:
            self._stopped = t

    def resumed(self, last_t: float) -> None:
        """A new life begins; the old one's last record was written at `last_t`."""
        self._now = last_t
        self._closed_s += self._life_s()
        self._closed_finished += self._num_finished()
        self._opened = self._stopped = None
        self._finished = array("d")

    def seconds(self) -> float:
        """Length of all windows so far."""
        return self._closed_s + self._life_s()

    def num_finished(self) -> int:
        """Train rollouts scored inside the windows."""
        return self._closed_finished + self._num_finished()

    def shares(self) -> dict[str, float | None]:
        """Return wait, compute, publish (they sum to 1) and checkpoint (a part of wait) as shares."""
        busy = self.compute_s + self.publish_s
        whole = max(self.seconds(), busy)
        if whole <= 0.0:
            return dict.fromkeys(("wait", "compute", "publish", "checkpoint"))
        wait = 1.0 - self.compute_s / whole - self.publish_s / whole
        return {
            "wait": max(0.0, wait),
            "compute": self.compute_s / whole,
            "publish": self.publish_s / whole,
            "checkpoint": self.checkpoint_s / whole,
        }

    def _close(self) -> float:
        return self._now if self._stopped is None else max(self._stopped, self._last_step)

    def _life_s(self) -> float:
        return 0.0 if self._opened is None else max(0.0, self._close() - self._opened)

    def _num_finished(self) -> int:
        return bisect_right(self._finished, self._close())
