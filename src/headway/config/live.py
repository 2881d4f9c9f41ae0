"""Which settings take effect while a run goes on.

Those that the scheduler and the controller read do; pruning.max_tokens is sent to whoever watches for it. Of
the others each process has its copy, from when it started.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from headway.config.compose import Config
from headway.config.source import COMMAND_LINE, parse_override
from headway.config.stages import FIXED
from headway.core.errors import UserError
from headway.core.schema import keys_of, sections_of
from headway.queue.scheduler import SECTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

LIVE = (*SECTIONS, "control", "generator.temperature", "generator.kv_on_update")
"""Sections and keys that do."""

NOT_LIVE = {
    "acceptance.verdict": "the driver loaded the function when it started",
    "checkpoint.keep": "the trainer learned it when it started",
    "checkpoint.keep_every_steps": "the trainer learned it when it started",
    "checkpoint.keep_best": "the driver learned it when it started",
    "curriculum.levels": "the environment was asked for its levels when it started",
    "pruning.max_repetition": "the environment's process learned it when it started",
    "pruning.repetition_window": "the environment's process learned it when it started",
    "pruning.value_hook": "the environment's process loaded the function when it started",
    "sandbox.max_live": "the pool of each environment worker divided its places when it started",
}
"""Keys in those sections that do not, and why."""


def not_live(overrides: Sequence[str]) -> list[UserError]:
    """Return a problem for every override that would have no effect before the run's next life.

    An override that is wrong in another way is `headway.config.stages.change`'s to refuse.
    """
    known = {
        f"{section}.{name}" for section, settings in sections_of(Config).items() for name in keys_of(settings)
    }
    problems: list[UserError] = []
    for override in overrides:
        with contextlib.suppress(UserError):  # it is no KEY=VALUE
            parts, value = parse_override(override)
            key, section = ".".join(parts[:2]), parts[0]
            live = key in LIVE or (section in LIVE and key not in NOT_LIVE)
            if live or key not in known or any(name in FIXED for name in (key, section)):
                continue
            reason = NOT_LIVE.get(key, "the process that it concerns learned it when it started")
            problems.append(
                UserError(
                    f"takes effect at a resume only: {reason}",
                    value=value,
                    key=key,
                    where=COMMAND_LINE,
                    remedy="Stop the run with `headway stop RUN`, then `headway resume RUN KEY=VALUE`",
                )
            )
    return problems
