"""Rules between sections. Rules inside one section are that settings class's own `problems`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headway.config.compose import Config


@dataclass(frozen=True, slots=True)
class Clash:
    """Settings that do not go together.

    The error is about the first of `keys`, and the rule says the values of the others. Its place is that
    of the first of them that the user wrote.
    """

    keys: tuple[str, ...]
    rule: str
    remedy: str


GROUP_ESTIMATORS = ("grpo", "dr_grpo", "rloo")


def group_estimator_needs_a_group(config: Config) -> Iterator[Clash]:
    """One rollout has nothing to be compared with: its advantage is 0 and it never carries a signal."""
    if config.queue.group_size == 1 and config.algorithm.advantage in GROUP_ESTIMATORS:
        rule = (
            "group size 1 with a group estimator: must be at least 2 when algorithm.advantage is "
            f'"{config.algorithm.advantage}", which compares the rollouts of a group'
        )
        yield Clash(("queue.group_size", "algorithm.advantage"), rule, "Use queue.group_size = 8")


def periodic_evaluation_needs_tasks(config: Config) -> Iterator[Clash]:
    """An evaluation without tasks has no result."""
    if config.eval.every_steps > 0 and config.eval.num_tasks == 0:
        rule = f"must be at least 1 when eval.every_steps is {config.eval.every_steps}"
        yield Clash(("eval.num_tasks", "eval.every_steps"), rule, "Use 64, or eval.every_steps = 0")


RULES: tuple[Callable[[Config], Iterator[Clash]], ...] = (
    group_estimator_needs_a_group,
    periodic_evaluation_needs_tasks,
)
