"""Splits that cannot overlap, and task ids.

A problem's key is what it asks, without wording, order or level. A hash of the key decides whether it is a
train or an eval problem, so no problem is in both, whatever the wording, the seed or the order of drawing.
The evaluation set does not depend on the seed: runs with different seeds are measured on the same tasks.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from headway.core.errors import EnvironmentSetupError


class Problem(NamedTuple):
    """One problem as it was drawn."""

    key: tuple[str | int, ...]  # what makes it the same problem, however it is worded or ordered
    level: int
    payload: dict[str, Any]  # what the environment needs to pose and score it


Draw = Callable[[random.Random], Problem]

_EVAL_SHARE = 4  # one problem of so many is an eval problem
_MAX_DRAWS = 10_000


def split_of(salt: str, key: tuple[str | int, ...]) -> str:
    """Return "train" or "eval"; `salt` is the environment's name."""
    digest = hashlib.blake2b(repr((salt, *key)).encode(), digest_size=8).digest()
    return "eval" if int.from_bytes(digest, "big") % _EVAL_SHARE == 0 else "train"


def draw_train(salt: str, seed: int, index: int, draw: Draw) -> Problem:
    """Return the train problem at a position."""
    rng = random.Random(f"{salt}/{seed}/train/{index}")
    for _ in range(_MAX_DRAWS):
        problem = draw(rng)
        if split_of(salt, problem.key) == "train":
            return problem
    raise EnvironmentSetupError(
        f"{salt} has no train problems at this level", remedy="Choose other levels or wider arguments"
    )


def draw_eval(salt: str, count: int, draw: Draw) -> list[Problem]:
    """Return up to `count` distinct eval problems, always the same; fewer when there are no more."""
    rng = random.Random(f"{salt}/eval")
    found: dict[tuple[str | int, ...], Problem] = {}
    for _ in range(_MAX_DRAWS):
        if len(found) == count:
            break
        problem = draw(rng)
        if split_of(salt, problem.key) == "eval":
            found.setdefault(problem.key, problem)
    return list(found.values())


def task_id(split: str, index: int, level: int | None) -> str:
    """Return the id of the task at a position, such as "train/17", or "train/17/2" for a level asked for."""
    return f"{split}/{index}" if level is None else f"{split}/{index}/{level}"


def source_of(identifier: str) -> str:
    """Return the task source that an id names, such as "sums" of "sums:train/17"; "" where it names none."""
    return identifier.rpartition(":")[0]


def check_position(split: str, index: int, count: int | None) -> None:
    """Raise EnvironmentSetupError when a split has no task at `index`."""
    if split not in ("train", "eval"):
        raise EnvironmentSetupError("a split is train or eval", value=split, remedy="Name one of the two")
    if index < 0 or (count is not None and index >= count):
        raise EnvironmentSetupError(
            f"split {split} has {count} tasks, so none at this index",
            value=index,
            remedy="Positions begin at 0",
        )


def check_level(level: int | None, levels: range) -> None:
    """Raise EnvironmentSetupError when an environment has no such level."""
    if level is not None and level not in levels:
        raise EnvironmentSetupError(
            f"a level is {levels[0]} to {levels[-1]}", value=level, remedy="Choose one of these"
        )
