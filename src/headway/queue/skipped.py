"""Skipped steps: the trainer leaves the weights as they are when loss or gradient is not finite.

Each is told of. A run of which every step was skipped has trained nothing, and fails at its end, whatever
ended it in order. The trainer bounds how many it skips in a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.core.events import StepEnded
    from headway.queue.context import Context
    from headway.queue.state import State

_SUSPECTS = "look at rewards, trainer.learning_rate, and an advantage or loss of your own"


def step_ended(ctx: Context, event: StepEnded) -> None:
    """Tell of a skipped step, and remember how far from the beginning they reach."""
    state, before = ctx.state, event.step - 1
    if not event.metrics.get("nonfinite"):
        state.skipped_to = min(state.skipped_to, before)  # it may be a lost step, taken again
        return
    names = [name for name in ("loss", "grad_norm") if name not in event.metrics]  # such a number is left out
    why = f"{' and '.join(names) or 'loss or grad_norm'} {'were' if names[1:] else 'was'} not finite"
    if state.skipped_to == before:
        state.skipped_to, state.skipped_why = event.step, why
    ctx.warn("nonfinite", f"step {event.step} left the weights as they were: {why} ({_SUSPECTS})")


def all_skipped(state: State) -> str:
    """Return what to say of a run of which every step was skipped, "" of any other."""
    if not 0 < state.step <= state.skipped_to:
        return ""
    steps = "the one step" if state.step == 1 else f"each of the {state.step} steps"
    return (
        f"nothing was trained: {steps} was skipped, at step {state.step} because {state.skipped_why} "
        f"({_SUSPECTS})"
    )
