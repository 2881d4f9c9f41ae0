"""The lines that a supervised run prints while it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.telemetry.supervised_report import perplexity
from headway.telemetry.text import UNKNOWN, figures, number, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LINE_EVERY_S = 2.0  # at most
_COLUMNS = (
    ("step", 12),
    ("epoch", 8),
    ("loss", 9),
    ("grad norm", 11),
    ("lr", 10),
    ("tokens/s", 10),
    ("left", 9),
)


class SftProgress:
    """Makes a line of a step, not of every one where they are fast.

    Args:
        num_steps: the step at which the run is complete.
    """

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._began: tuple[int, float] | None = None  # step and time that the time left is judged from
        self._printed_s: float | None = None
        self._tokens, self._spent_s = 0, 0.0  # since the last line
        self._first_eval: tuple[int, float] | None = None

    def after_step(self, step: Mapping[str, Any], now: float, *, last: bool) -> list[str]:
        """Return the lines to print after a step of the record; `last` steps always have one."""
        self._tokens += step["num_tokens"]
        self._spent_s += step["duration_s"]
        lines: list[str] = []
        if self._began is None:
            self._began = step["step"] - 1, now - step["duration_s"]
            lines.append("".join(f"{title:>{width}}" for title, width in _COLUMNS))
        if self._printed_s is not None and now - self._printed_s < LINE_EVERY_S and not last:
            return lines
        rate = self._tokens / self._spent_s if self._spent_s else None
        begun, at = self._began
        left_s = (now - at) / (step["step"] - begun) * (self._num_steps - step["step"])
        cells = (
            f"{step['step']:,}/{self._num_steps:,}",
            number(step["epochs"], 2),
            number(step["loss"], 4),
            figures(step["grad_norm"]),
            UNKNOWN if step["learning_rate"] is None else f"{step['learning_rate']:.2e}",
            number(rate, 0),
            seconds(max(0.0, left_s)),
        )
        self._printed_s, self._tokens, self._spent_s = now, 0, 0.0
        return [*lines, "".join(f"{cell:>{width}}" for cell, (_, width) in zip(cells, _COLUMNS, strict=True))]

    def evaluated(self, step: int, loss: float, num_rows: int) -> str:
        """Return the line of an evaluation; `loss` in nats a token."""
        change = ""
        if self._first_eval is None:
            self._first_eval = step, loss
        else:
            change = f" ({loss - self._first_eval[1]:+.4f} since step {self._first_eval[0]})"
        shown = f"{loss:.4f} nats/token{change}, perplexity {figures(perplexity(loss))}"
        return f"evaluation at step {step}: {shown}, {num_rows} conversations"


def lowest_before_the_end(evals: Sequence[Mapping[str, Any]]) -> str:
    """Return the line that tells of a better evaluation than the last one, "" where there is none.

    Args:
        evals: lines of the record, in order; `loss` in nats a token.
    """
    known = [one for one in evals if one["loss"] is not None]
    if not known or (best := min(known, key=lambda one: one["loss"]))["loss"] >= known[-1]["loss"]:
        return ""
    return f"evaluation was lowest at step {best['step']}: {best['loss']:.4f}; now {known[-1]['loss']:.4f}"
