"""What a step's metrics say of generator and trainer agreeing, when a person should hear of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.telemetry.mismatch import LARGE, REMEDY
from headway.telemetry.text import figures

if TYPE_CHECKING:
    from collections.abc import Mapping


def disagreement(metrics: Mapping[str, float], *, exact: bool) -> str:
    """Return a warning about a step's mismatch on tokens of the newest version, or nothing."""
    mean, most = metrics.get("mismatch_mean"), metrics.get("mismatch_max")
    if mean is None or most is None:
        return ""
    if exact and most > 0:
        return (
            f"exact numerics did not hold: log-probs of generator and trainer differ by {figures(most)} nats "
            "on tokens of the newest version. This is a fault of Headway or of this machine: "
            "please report it with the first line of journal.jsonl"
        )
    if mean > LARGE:
        return (
            f"log-probs of generator and trainer differ by {figures(mean)} nats on average on tokens of the "
            f"newest version (at most {figures(most)}), more than {LARGE}: {REMEDY}"
        )
    return ""
