"""How numbers are written for people. An unknown value is a dash."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

UNKNOWN = "-"
_BARS = "▁▂▃▄▅▆▇█"


def number(value: float | None, digits: int) -> str:
    """Return a number with so many digits after the point."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def figures(value: float | None) -> str:
    """Return a number of any size with three significant digits."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:.3g}"


def percent(value: float | None, digits: int = 0) -> str:
    """Return a share as a percentage."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}%"


def seconds(value: float | None) -> str:
    """Return a duration in its two largest units, such as 12ms, 0.25s, 42.0s, 3m20s, 2h05m."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if 0.0005 <= value < 0.0995:
        return f"{1000 * value:.0f}ms"
    if value < 9.995:
        return f"{value:.2f}s"
    if value < 59.95:
        return f"{value:.1f}s"
    whole = round(value)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def sparkline(values: Sequence[float | None], width: int = 60) -> str:
    """Return the course of a series as bars, neighbours averaged down to `width`; a gap is a space."""
    size = max(1, math.ceil(len(values) / width))
    means: list[float | None] = []
    for start in range(0, len(values), size):
        known = [v for v in values[start : start + size] if v is not None and math.isfinite(v)]
        means.append(sum(known) / len(known) if known else None)
    known = [value for value in means if value is not None]
    if not known:
        return ""
    low, span = min(known), max(known) - min(known)
    top = len(_BARS) - 1
    return "".join(
        " " if value is None else _BARS[round(top * (value - low) / span) if span else top // 2]
        for value in means
    )


def flop_rate(per_s: float) -> str:
    """Return a rate of floating-point operations in the unit that leaves it below a thousand."""
    scaled, unit = per_s, "FLOP/s"
    for prefix in ("k", "M", "G", "T", "P", "E"):
        if abs(scaled) < 1000.0:
            break
        scaled, unit = scaled / 1000.0, f"{prefix}FLOP/s"
    return f"{scaled:,.1f} {unit}"
