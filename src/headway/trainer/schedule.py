"""The learning rate as a function of the step alone: a resumed run needs no schedule state. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headway.trainer.settings import TrainerSettings


def learning_rate(settings: TrainerSettings, step: int) -> float:
    """Return the learning rate of step `step`, the first being 1.

    It rises linearly over steps 1 .. warmup_steps, reaching the peak at warmup_steps, and falls linearly
    from there to 0 at decay_steps under the linear schedule.
    """
    peak, warmup, end = settings.learning_rate, settings.warmup_steps, settings.decay_steps
    if step < warmup:
        return peak * step / warmup
    if settings.schedule == "linear":
        return peak * max(0.0, (end - step) / (end - warmup))
    return peak
