"""A prediction as text for people, and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headway.matching.whatif import METRICS, MIN_SEEDS

if TYPE_CHECKING:
    from headway.matching.whatif import Compared, WhatIf

_SHARES = ("fraction",)  # metrics in per cent
_WIDTH = 100
_LEARNING = (
    "This predicts rates and staleness, never learning: how rewards and lengths would have gone with other "
    "samples is not known."
)


def whatif_text(found: WhatIf, name: str) -> str:
    """Return the answer, then the model's own error, then what it rests on."""
    changes = " ".join(found.changes)
    lines = [f"{name} with {changes}, {found.seeds} seed{'s'[: found.seeds != 1]}", "", _HEAD]
    lines += [_row(one) for one in found.compared if one.measured is not None or one.after is not None]
    lines += ["", *_notes(found)]
    return "\n".join(lines)


def whatif_json(found: WhatIf) -> dict[str, Any]:
    """Return everything as JSON values."""
    return {
        "changes": list(found.changes),
        "seeds": found.seeds,
        "metrics": {one.key: {**asdict(one), "model_error": one.error} for one in found.compared},
        "drawn_fraction": found.drawn,
        "extended_fraction": found.extended,
        "predicts": "rates and staleness, never learning",
        "calibration": found.calibration.plain(),
    }


_HEAD = f"{'':<24}{'measured':>10}{'replayed':>10}{'before':>10}{'after':>10}  difference, 95 %"


def _row(one: Compared) -> str:
    share = one.key.endswith(_SHARES)
    values = (one.measured, one.replayed, one.before, one.after)
    cells = "".join(f"{_number(value, share):>10}" for value in values)
    return f"{METRICS[one.key]:<24}{cells}  {_difference(one, share)}".rstrip()


def _difference(one: Compared, share: bool) -> str:
    if one.difference is None:
        return ""
    if share:
        words = f"{100 * one.difference:+.1f} points"
        low, high = one.low, one.high
        return words if low is None or high is None else f"{words} ({100 * low:+.1f} to {100 * high:+.1f})"
    if one.before and "staleness" not in one.key:
        words = f"{one.difference / one.before:+.1%}"
        if one.low is None or one.high is None:
            return words
        return f"{words} ({one.low / one.before:+.1%} to {one.high / one.before:+.1%})"
    words = f"{one.difference:+.2f}"
    return words if one.low is None or one.high is None else f"{words} ({one.low:+.2f} to {one.high:+.2f})"


def _number(value: float | None, share: bool) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if share else f"{value:.4g}"


def _notes(found: WhatIf) -> list[str]:
    notes = [
        "measured: the run. replayed: its simulation unchanged; the distance of the two is the model's own "
        "error. before, after: means over the seeds, each of which deals the recorded groups anew.",
    ]
    if found.seeds < MIN_SEEDS:
        notes.append(f"No intervals: they take {MIN_SEEDS} seeds or more (--seeds).")
    if found.drawn or found.extended:
        notes.append(
            f"{found.drawn:.0%} of the changed run's rollouts never ran in the recorded one and were drawn "
            f"from the fitted models; {found.extended:.0%} were cut off there and go on as drawn."
        )
    unknown = [one.key for one in found.calibration.parameters if one.key.startswith("timings.")
               and not one.is_identified and one.key != "timings.kv_tokens"]  # fmt: skip
    if unknown:
        notes.append(f"Stand-ins, for the journal does not tell them: {', '.join(unknown)}.")
    notes.append(_LEARNING)
    return [line for note in notes for line in textwrap.wrap(note, _WIDTH)]
