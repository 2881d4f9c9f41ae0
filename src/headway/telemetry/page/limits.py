"""The lines that the queue's depth is compared with, from the scheduler's settings alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Limits:
    """From a moment on, in groups."""

    t: float
    batch: int  # groups of a full batch
    most: int  # groups that may be on their way at once while the newest version is in use everywhere


def limits_at(t: float, settings: Mapping[str, Any]) -> Limits | None:
    """Return the limits under these settings, None where they do not say.

    Groups are admitted while they would train within the depth, so at most (depth + 1) batches and
    oversampling's extra groups are on their way.
    """
    queue = _section(settings, "queue")
    try:
        batch = max(1, queue["batch_size"] // queue["group_size"])
        depth = queue["bound"] if queue["depth"] < 0 else queue["depth"]
    except KeyError:
        return None
    trajectory = _section(settings, "staleness").get("trajectory_bound", -1)
    if trajectory >= 0:
        depth = min(depth, trajectory)
    extra = _section(settings, "oversampling").get("groups_extra", 0)
    return Limits(t, batch, (depth + 1) * batch + extra)


def _section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = settings.get(name)
    return cast("dict[str, Any]", section) if isinstance(section, dict) else {}
