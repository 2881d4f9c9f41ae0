"""Settings of scoring, `[reward]` in a config."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.settings import setting


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """Limits of scoring one rollout."""

    timeout_s: float = setting(
        30.0, "Seconds in which a rollout must be scored; waiting for a sandbox does not count.", gt=0
    )
    max_tries: int = setting(2, "Tries at scoring one rollout before it counts as a failed reward.", ge=1)
