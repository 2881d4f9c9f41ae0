"""Curriculum: which level the next group is asked for, and which tasks rest.

Levels. Each settled group tells how much of it was solved; a level's solve rate is the mean over its groups,
an observation counting half after `memory_groups` further groups of the level. The next group is of the
level nearest to the band, of several the one longest not asked for. A level never seen counts as in the
band when every easier one is above it, and is left to exploration otherwise. Every 1/explore-th group goes to
the level longest not asked for, so that no estimate stays old for ever.

Tasks. A task that is solved in `retire_after` groups in a row rests; after `return_after_steps` it is asked
for once more, and either rests again or has regressed. Only splits that begin anew have tasks to retire.

Nothing is drawn at random: the same events give the same choices, and all of it is in the snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headway.core.notes import Note, TaskRegressed, TaskRetired, TaskReturned

if TYPE_CHECKING:
    from headway.queue.entry_settings import CurriculumSettings


@dataclass(slots=True)
class LevelState:
    """What was seen of one level of one source."""

    num: float = 0.0  # groups, decayed
    solved: float = 0.0  # their solved shares, decayed alike
    asked: int = -1  # number of the choice that took it last, -1 for never

    @property
    def rate(self) -> float | None:
        """Decayed solve rate, None before the first group."""
        return self.solved / self.num if self.num else None


@dataclass(slots=True)
class TaskState:
    """A task that was solved, or rests."""

    level: int
    index: int  # in its split
    streak: int = 0  # groups in a row that solved it
    due_step: int = -1  # of its return while it rests, -1 while it does not, -2 while it is re-checked


@dataclass(slots=True)
class PoolState:
    """One source's levels and tasks."""

    choices: int = 0
    levels: dict[int, LevelState] = field(default_factory=dict[int, LevelState])
    sizes: dict[int, int] = field(
        default_factory=dict[int, int]
    )  # level -> positions of its split, if finite
    tasks: dict[str, TaskState] = field(default_factory=dict[str, TaskState])  # by task id
    resting: dict[int, dict[int, str]] = field(
        default_factory=dict[int, dict[int, str]]
    )  # level -> index -> id
    returns: list[str] = field(default_factory=list[str])  # ids of resting tasks, soonest return first


def choose_level(pool: PoolState, levels: Sequence[int], settings: CurriculumSettings) -> int:
    """Return the level to ask for, and remember the choice. `levels` are in order of difficulty."""
    number = pool.choices
    pool.choices += 1
    known = [pool.levels.setdefault(level, LevelState()) for level in levels]
    asked = [state.asked for state in known]
    if int((number + 1) * settings.explore + 1e-9) > int(number * settings.explore + 1e-9):
        place = min(range(len(levels)), key=lambda i: (asked[i], i))
    else:
        gaps = _gaps(known, settings)
        place = min(range(len(levels)), key=lambda i: (gaps[i], asked[i], i))
    known[place].asked = number
    return levels[place]


def _gaps(known: Sequence[LevelState], settings: CurriculumSettings) -> list[float]:
    """Return how far each level's solve rate is from the band; 2 for a level that nothing speaks for."""
    gaps: list[float] = []
    all_easy = True  # of the levels before
    for state in known:
        rate = state.rate
        if rate is None:
            gaps.append(0.0 if all_easy else 2.0)
            all_easy = False
            continue
        gaps.append(max(settings.band_low - rate, rate - settings.band_high, 0.0))
        all_easy = all_easy and rate > settings.band_high
    return gaps


def observe(pool: PoolState, level: int, share: float, settings: CurriculumSettings) -> None:
    """A group of this level settled; `share` of its rollouts were solved."""
    state = pool.levels.setdefault(level, LevelState())
    decay = 0.5 ** (1.0 / settings.memory_groups)
    state.num = state.num * decay + 1.0
    state.solved = state.solved * decay + share


def next_index(
    pool: PoolState, level: int, position: int, step: int, source: str
) -> tuple[int, int, list[Note]]:
    """Return the index to ask for, the next position, and what is to be noted.

    A resting task whose time has come is asked for before anything else of its level; others are passed
    over. Where every task of the level rests, the one at `position` is asked for all the same.
    """
    for place, task_id in enumerate(pool.returns):
        task = pool.tasks[task_id]
        if task.due_step > step:
            break
        if task.level == level:
            del pool.returns[place]
            _wake(pool, task)
            task.due_step = -2
            return task.index, position, [TaskReturned(source, task_id, level, step)]
    size, resting = pool.sizes.get(level, 0), pool.resting.get(level, {})
    if not size or len(resting) >= size:
        return position, position + 1, []
    while position % size in resting:
        position += 1
    return position % size, position + 1, []


def offered(pool: PoolState, level: int, num_tasks: int) -> None:
    """The source said how many positions its split has."""
    if num_tasks:
        pool.sizes[level] = num_tasks


def judge(
    pool: PoolState, task_id: str, level: int, index: int, share: float, step: int, source: str,
    settings: CurriculumSettings,
) -> list[Note]:  # fmt: skip
    """A group of this task settled: does the task rest, or has it regressed?"""
    size = pool.sizes.get(level, 0)
    if not settings.retire_after or not size:
        return []
    task = pool.tasks.get(task_id)
    if share < settings.retire_at:
        if task is None:
            return []
        regressed = task.due_step != -1
        if task.due_step >= 0:  # a group that was in flight when the task was retired
            _wake(pool, task)
            if task_id in pool.returns:
                pool.returns.remove(task_id)
        del pool.tasks[task_id]
        return [TaskRegressed(source, task_id, level, step, share)] if regressed else []
    if task is None:
        task = pool.tasks[task_id] = TaskState(level, index % size)
    task.streak += 1
    if task.streak < settings.retire_after or task.due_step >= 0:
        return []
    task.due_step = step + settings.return_after_steps
    pool.resting.setdefault(level, {})[task.index] = task_id
    if settings.return_after_steps:
        pool.returns.append(task_id)
    return [TaskRetired(source, task_id, level, step, task.due_step if settings.return_after_steps else -1)]


def _wake(pool: PoolState, task: TaskState) -> None:
    pool.resting.get(task.level, {}).pop(task.index, None)
