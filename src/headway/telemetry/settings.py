"""What telemetry must be told, because no event says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.core.settings import setting

SOLVED_REWARD = 1.0 - 1e-9
Choice = Literal["auto", "live", "lines"]


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Section [telemetry]: what the reported metrics rest on, and how a run shows itself."""

    solved_reward: float = setting(
        SOLVED_REWARD, "A rollout counts as solved when its reward is at least this."
    )
    peak_flops_per_s: float | None = setting(
        None,
        "Peak FLOP/s of all the trainer's accelerators together; without it no MFU is reported.",
        gt=0.0,
    )
    view: Choice = setting(
        "auto",
        "How a run shows itself on a terminal. live: a frame that says what goes on, below the lines. lines: "
        "the lines alone. auto: live, but lines in a notebook and where TERM is dumb. What is no terminal "
        "gets lines in any case.",
    )
    tensorboard: bool = setting(
        False,
        "Write scalars for TensorBoard into the run's directory, tensorboard/, while it goes on. Needs the "
        "extra headway[tensorboard].",
    )
