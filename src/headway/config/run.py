"""Settings of a run as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.settings import Problem, setting


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Where a run goes, its seed, and how long its processes wait for one another."""

    name: str = setting(
        "",
        "Name of the run and of its directory. Empty: the config file's name without its ending.",
        pattern=r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,99})?",
        form="of letters, digits, _, . and -, at most 100, the first no . or -",
    )
    dir: str = setting("runs", "Directory that holds the run directories.")
    seed: int = setting(
        0,
        "Seed of tasks, sampling and initial adapters. The same seed gives the same tasks.",
        ge=0,
        le=2**63 - 1,  # of torch and of TOML
    )
    usd_per_hour: float | None = setting(
        None, "Price of the machine in US dollars an hour, for the report's costs. Unset: no costs.", ge=0
    )
    heartbeat_s: float = setting(
        1.0, "How often each process says that it is alive, in seconds.", gt=0, le=10
    )
    lost_after_s: float = setting(
        20.0, "A process that has been silent for so many seconds counts as dead, and the run ends.", gt=0
    )
    exit_timeout_s: float = setting(
        10.0, "How long a process may take to leave at the end before it is killed, in seconds.", gt=0
    )

    def problems(self) -> list[Problem]:
        """A process must get the chance to say more than once that it is alive."""
        if self.lost_after_s >= 2 * self.heartbeat_s:
            return []
        rule = f"must be at least twice run.heartbeat_s ({self.heartbeat_s:g})"
        return [Problem("lost_after_s", self.lost_after_s, rule, f"Use {2 * self.heartbeat_s:g} or more")]
