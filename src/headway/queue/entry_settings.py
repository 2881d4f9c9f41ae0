"""Settings of what enters the queue: oversampling, acceptance, task sources, curriculum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headway.core.hooks import HookError, load_function
from headway.core.settings import Problem, setting

VERDICT_PARAMETERS = ("rewards", "lengths")


@dataclass(frozen=True, slots=True)
class OversamplingSettings:
    """Section [oversampling]: more rollouts or groups than needed, so that no step waits for the slowest."""

    rollouts_extra: int = setting(
        0, "Rollouts started beyond group_size; the group settles with the first group_size scored.", ge=0
    )
    groups_extra: int = setting(
        0, "Groups in flight beyond those that depth allows; a batch takes the first that are ready.", ge=0
    )
    when_met: Literal["cancel", "park", "finish"] = setting(
        "cancel",
        "What becomes of the rest once a group or a batch has what it needs: cancel ends it; park takes its "
        "engine memory and resumes it for a later batch; finish lets it go on for a later batch. Late "
        "members of a group become a group of their own unless they are cancelled.",
    )


@dataclass(frozen=True, slots=True)
class AcceptanceSettings:
    """Section [acceptance]: which settled groups are trained, beside queue.drop_zero_advantage."""

    band_low: float = setting(0.0, "Drop groups of which a smaller share was solved.", ge=0, le=1)
    band_high: float = setting(1.0, "Drop groups of which a larger share was solved.", ge=0, le=1)
    verdict: str = setting(
        "",
        "Your own function (rewards, lengths) -> bool or (bool, reason) that keeps or drops a group: an "
        "import path module:function, or file.py:function with a path relative to the config file.",
    )

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold; the function is loaded."""
        if self.band_low > self.band_high:
            rule = f"band_low may not exceed band_high ({self.band_high:g}): no group would be kept"
            yield Problem("band_low", self.band_low, rule, "Swap the two.")
        if self.verdict:
            try:
                load_function(self.verdict, VERDICT_PARAMETERS)
            except HookError as error:
                yield Problem("verdict", self.verdict, error.rule, error.remedy)


@dataclass(frozen=True, slots=True)
class Source:
    """A task source as the scheduler knows it; composed by the runtime from a section [source.NAME]."""

    name: str
    weight: float
    group_size: int = 0  # 0 for queue.group_size
    levels: tuple[int, ...] = ()  # that the curriculum chooses from, empty for curriculum.levels


@dataclass(frozen=True, slots=True)
class CurriculumSettings:
    """Section [curriculum]: which difficulty is asked for, judged by the solve rates that are observed."""

    levels: tuple[int, ...] = setting(
        (), "Difficulty levels to choose from, easiest first; empty leaves the choice to the environment."
    )
    band_low: float = setting(0.2, "Levels solved less often are too hard.", ge=0, le=1)
    band_high: float = setting(0.8, "Levels solved more often are too easy.", ge=0, le=1)
    explore: float = setting(
        0.1, "Share of groups that try the level longest not tried, whatever its solve rate.", ge=0, le=1
    )
    memory_groups: float = setting(
        16.0, "Groups of a level after which an observation counts half in its solve rate.", gt=0
    )
    retire_after: int = setting(
        0, "Retire a task once so many of its groups in a row were solved; 0 for never.", ge=0
    )
    retire_at: float = setting(1.0, "A group counts as solved for this when such a share was.", gt=0, le=1)
    return_after_steps: int = setting(
        50, "Ask once more for a retired task after so many steps; 0 for never.", ge=0
    )

    def problems(self) -> Iterator[Problem]:
        """Yield rules between these settings that do not hold."""
        if self.band_low > self.band_high:
            rule = f"band_low may not exceed band_high ({self.band_high:g})"
            yield Problem("band_low", self.band_low, rule, "Swap the two.")
        if len(set(self.levels)) != len(self.levels):
            yield Problem("levels", list(self.levels), "a level may be listed once", "Remove the repetition.")
