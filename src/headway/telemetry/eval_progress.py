"""Lines on an evaluation while it goes on, for a run that does nothing else.

Consumes the entries of the run; prints nothing itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.core import notes
from headway.telemetry.text import number, seconds

if TYPE_CHECKING:
    from headway.telemetry.records import Entry

_EVERY_S = 10.0
_TOLD_FROM = 5  # a fifth of the tasks


class EvalProgress:
    """One line each ten seconds: tasks done, what they earned so far, and later the time left."""

    def __init__(self) -> None:
        self._num_tasks = 0
        self._num_done = 0
        self._num_rollouts = 0
        self._sum_reward = 0.0
        self._began_s = self._told_s = 0.0

    def after(self, entry: Entry) -> list[str]:
        """Return the line that is due."""
        for note in entry.notes:
            match note:
                case notes.EvalStarted():
                    self.__init__()
                    self._num_tasks, self._began_s, self._told_s = note.num_tasks, entry.t, entry.t
                case notes.EvalEnded():
                    self._num_tasks = 0
                case notes.GroupSettled(purpose="eval"):
                    self._num_done += 1
                    self._num_rollouts += note.num_rollouts
                    self._sum_reward += note.mean_reward * note.num_rollouts
                case _:
                    pass
        if not self._num_tasks or not self._num_done or entry.t < self._told_s + _EVERY_S:
            return []
        self._told_s = entry.t
        mean = self._sum_reward / self._num_rollouts if self._num_rollouts else None
        line = f"{self._num_done:>6} of {self._num_tasks} tasks, mean reward {number(mean, 3)} so far"
        if _TOLD_FROM * self._num_done < self._num_tasks:  # the first ones say little of the others
            return [line]
        left_s = (entry.t - self._began_s) / self._num_done * (self._num_tasks - self._num_done)
        return [f"{line}, about {seconds(left_s)} left"]
