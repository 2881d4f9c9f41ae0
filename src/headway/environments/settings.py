"""Settings of the environment, `[environment]` in a config."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """A further task source. Where there is one, train tasks come from these alone, mixed by weight."""

    environment: str = setting(
        "",
        "Its environment, named as in environment.name; empty for that one, with environment.args as the "
        "defaults of args.",
    )
    args: dict[str, Any] = setting(dict, "The environment's own settings; it checks them itself.")
    weight: float = setting(1.0, "Share of the train groups, by the sum of all weights.", ge=0)
    group_size: int = setting(0, "Rollouts per task; 0 for queue.group_size.", ge=0, le=10_000)
    levels: tuple[int, ...] = setting(
        (), "Levels that the curriculum chooses from; empty for curriculum.levels."
    )


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """Which environment, its own arguments, and where it runs."""

    name: str = setting(
        dataclasses.MISSING,
        "A built-in environment (`headway env list`), reasoning-gym:NAME, verifiers:NAME, an import path "
        "`module:Class`, or a .py file (relative to the config file).",
    )
    args: dict[str, Any] = setting(dict, "The environment's own settings; it checks them itself.")
    rollout_timeout_s: float = setting(
        120.0,
        "Seconds in which no answer and no tool call of a rollout ends, after which it is cancelled and "
        "counts as failed; so is one that has not ended after four times as long.",
        gt=0,
    )
    workers: int = setting(1, "Processes that run environments.", ge=1)
    cancel_grace_s: float = setting(
        2.0, "Seconds that a cancelled rollout may take to clean up before it is abandoned.", gt=0
    )
