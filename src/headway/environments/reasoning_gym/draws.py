"""Which items of a dataset are train tasks and which are eval tasks. Pure: items are made by a callable.

An item is known by its level and a number, its draw. Many datasets repeat themselves, or are finite, so
splits go by what is asked: two items with the same key are one problem, and no problem is in both splits.

The eval problems are the first distinct ones of a stream of their own, which does not depend on the run's
seed; train draws that ask one of them are drawn again. Where that stream soon repeats itself there are few
problems, and an eval set so drawn might hold them all: then a hash of the key says of each problem which
split it is in, a quarter of them eval.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headway.core.errors import EnvironmentSetupError, HeadwayError
from headway.environments.reasoning_gym.process import ChildDiedError, ChildOverdueError, LibraryRaisedError
from headway.environments.tasks import split_of

MAX_DRAWS = 2**31
_MAX_TRIES = 400  # at one train task, and for each further eval task
_MAX_FAILURES = 20  # of the library, one after the other
_MAX_OVERDUE = 3  # of these that took too long
_FEW = 0.05  # share of repetitions in the eval stream from which on problems are few


class Drawn(NamedTuple):
    """An item as a problem."""

    level: int
    draw: int
    key: str  # equal for items that ask the same


Make = Callable[[int, int], str]
"""(level, draw) -> the item's key."""


class Splits:
    """The two splits of a dataset.

    Args:
        salt: the environment's name.
        seed: the run's; it decides the order of train tasks.
        levels: of tasks for which none is asked for.
        num_eval: eval tasks at most.
        make: makes an item and returns its key.
    """

    def __init__(self, salt: str, seed: int, levels: Sequence[int], num_eval: int, make: Make) -> None:
        self._salt = salt
        self._seed = seed
        self._levels = tuple(levels)
        self._make = make
        self.few = False
        self.evals = self._draw_evals(num_eval)
        self._eval_keys = {drawn.key for drawn in self.evals}

    def train(self, index: int, level: int | None) -> Drawn:
        """Return the train problem at a position.

        Raises EnvironmentSetupError where every problem of the level is an eval problem.
        """
        rng = random.Random(f"{self._salt}/{self._seed}/train/{index}/{'' if level is None else level}")
        for _ in range(_MAX_TRIES):
            drawn = self._next(rng, self._levels if level is None else (level,))
            if not self._is_eval(drawn.key):
                return drawn
        raise EnvironmentSetupError(
            f"{self._salt} has too few problems at this level: all that are drawn are eval tasks",
            value=level,
            remedy="Choose other levels, or parameters (environment.args.config) that allow more problems",
        )

    def _is_eval(self, key: str) -> bool:
        return key in self._eval_keys or (self.few and split_of(self._salt, (key,)) == "eval")

    def _draw_evals(self, count: int) -> list[Drawn]:
        rng = random.Random(f"{self._salt}/eval")
        found: dict[str, Drawn] = {}
        num_draws = 0
        while len(found) < count and num_draws < count + _MAX_TRIES:
            drawn = self._next(rng, self._levels)
            num_draws += 1
            found.setdefault(drawn.key, drawn)
        if num_draws - len(found) > _FEW * num_draws:
            self.few = True
            found = {key: drawn for key, drawn in found.items() if split_of(self._salt, (key,)) == "eval"}
            tries = 0
            while len(found) < count and tries < _MAX_TRIES:
                drawn = self._next(rng, self._levels)
                tries += 1
                if split_of(self._salt, (drawn.key,)) == "eval":
                    found.setdefault(drawn.key, drawn)
        return list(found.values())

    def _next(self, rng: random.Random, levels: Sequence[int]) -> Drawn:
        """Return the next item that can be made: some datasets fail at some draws, or take for ever."""
        failure: HeadwayError | None = None
        num_overdue = 0
        for _ in range(_MAX_FAILURES):
            level, draw = rng.choice(levels), rng.randrange(MAX_DRAWS)
            try:
                return Drawn(level, draw, self._make(level, draw))
            except LibraryRaisedError as error:
                failure = error
            except (ChildOverdueError, ChildDiedError) as error:
                failure = error
                num_overdue += 1
                if num_overdue == _MAX_OVERDUE:
                    break
        assert failure is not None
        raise EnvironmentSetupError(
            f"{self._salt} must make tasks of the levels {levels}; the library failed: {failure.rule}",
            remedy="Leave the level out, or choose other parameters (environment.args.config) or a longer "
            "task_timeout_s",
            key="environment.args.levels",
        ) from failure
