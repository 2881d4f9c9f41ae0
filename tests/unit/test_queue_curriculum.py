"""The curriculum's choices: which level, which task rests, which comes back."""

from __future__ import annotations

from dataclasses import replace

from headway.core.codec import from_plain, to_plain
from headway.core.notes import TaskRegressed, TaskRetired, TaskReturned
from headway.queue.curriculum import PoolState, choose_level, judge, next_index, observe, offered
from headway.queue.entry_settings import CurriculumSettings

LEVELS = (1, 2, 3, 4)
SETTINGS = CurriculumSettings(levels=LEVELS, explore=0.0, memory_groups=4.0)


def seen(rates: dict[int, float]) -> PoolState:
    pool = PoolState()
    for level, rate in rates.items():
        observe(pool, level, rate, SETTINGS)
    return pool


def choices(pool: PoolState, num: int, settings: CurriculumSettings = SETTINGS) -> list[int]:
    return [choose_level(pool, LEVELS, settings) for _ in range(num)]


def test_it_begins_with_the_easiest_level() -> None:
    assert choices(PoolState(), 3) == [1, 1, 1]


def test_it_steps_up_once_a_level_is_too_easy() -> None:
    assert choices(seen({1: 1.0}), 2) == [2, 2]
    assert choices(seen({1: 1.0, 2: 1.0}), 1) == [3]


def test_it_steps_down_once_a_level_is_too_hard() -> None:
    assert choices(seen({1: 0.7, 2: 0.0}), 2) == [1, 1]


def test_levels_in_the_band_take_turns() -> None:
    assert choices(seen({1: 1.0, 2: 0.7, 3: 0.3, 4: 0.0}), 4) == [2, 3, 2, 3]


def test_without_a_level_in_the_band_the_nearest_is_asked_for() -> None:
    assert choices(seen({1: 0.95, 2: 0.9, 3: 0.15, 4: 0.0}), 2) == [3, 3]


def test_exploration_has_its_exact_share_and_goes_round_the_levels() -> None:
    pool = seen({1: 0.5, 2: 1.0, 3: 1.0, 4: 1.0})
    chosen = choices(pool, 40, replace(SETTINGS, explore=0.25))
    assert chosen.count(1) == 30
    explored = [level for level in chosen if level != 1]
    assert explored[:3] == [2, 3, 4]


def test_an_observation_counts_half_after_so_many_groups() -> None:
    pool = PoolState()
    observe(pool, 1, 1.0, SETTINGS)
    for _ in range(4):
        observe(pool, 1, 0.0, SETTINGS)
    state = pool.levels[1]
    weights = [0.5 ** (k / 4) for k in range(5)]
    assert abs(state.solved - 0.5) < 1e-12
    assert state.rate is not None
    assert abs(state.rate - 0.5 / sum(weights)) < 1e-12


RETIRE = CurriculumSettings(retire_after=2, retire_at=1.0, return_after_steps=10)


def settle(pool: PoolState, index: int, share: float, step: int) -> list:
    return judge(pool, f"train/{index}", 0, index, share, step, "", RETIRE)


def ask(pool: PoolState, num: int, step: int, position: int = 0) -> tuple[list[int], int, list]:
    indices: list[int] = []
    notes: list = []
    for _ in range(num):
        index, position, told = next_index(pool, 0, position, step, "")
        indices.append(index)
        notes += told
    return indices, position, notes


def test_a_task_solved_again_and_again_rests_and_is_asked_for_once_more_later() -> None:
    pool = PoolState()
    offered(pool, 0, 3)
    assert settle(pool, 1, 1.0, 4) == []
    assert settle(pool, 1, 1.0, 5) == [TaskRetired("", "train/1", 0, 5, 15)]
    assert ask(pool, 4, 14) == ([0, 2, 0, 2], 6, [])
    indices, _, notes = ask(pool, 3, 15, position=6)
    assert indices == [1, 0, 1]
    assert notes == [TaskReturned("", "train/1", 0, 15)]
    assert settle(pool, 1, 1.0, 16) == [TaskRetired("", "train/1", 0, 16, 26)]


def test_a_returned_task_that_is_not_solved_any_more_has_regressed() -> None:
    pool = PoolState()
    offered(pool, 0, 3)
    settle(pool, 1, 1.0, 4)
    settle(pool, 1, 1.0, 5)
    ask(pool, 1, 15)
    assert settle(pool, 1, 0.5, 16) == [TaskRegressed("", "train/1", 0, 16, 0.5)]
    assert settle(pool, 1, 1.0, 17) == []  # it begins anew
    assert ask(pool, 3, 17)[0] == [0, 1, 2]


def test_a_streak_is_broken_by_one_group_that_is_not_solved() -> None:
    pool = PoolState()
    offered(pool, 0, 3)
    assert [settle(pool, 0, share, 1) for share in (1.0, 0.875, 1.0)] == [[], [], []]


def test_tasks_of_an_endless_split_are_not_kept() -> None:
    pool = PoolState()
    settle(pool, 7, 1.0, 1)
    assert pool.tasks == {}


def test_where_every_task_rests_they_are_asked_for_all_the_same() -> None:
    pool = PoolState()
    offered(pool, 0, 2)
    for index in (0, 1, 0, 1):
        settle(pool, index, 1.0, 1)
    assert ask(pool, 3, 2)[0] == [0, 1, 2]


def test_it_survives_a_snapshot() -> None:
    pool = seen({1: 1.0, 2: 0.5})
    offered(pool, 0, 2)
    settle(pool, 1, 1.0, 4)
    settle(pool, 1, 1.0, 5)
    assert from_plain(PoolState, to_plain(pool)) == pool
