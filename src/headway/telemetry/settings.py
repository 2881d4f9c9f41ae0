"""What telemetry must be told, because no event says it."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.settings import setting

SOLVED_REWARD = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """Section [telemetry]: what the reported metrics rest on."""

    solved_reward: float = setting(
        SOLVED_REWARD, "A rollout counts as solved when its reward is at least this."
    )
    peak_flops_per_s: float | None = setting(
        None,
        "Peak FLOP/s of all the trainer's accelerators together; without it no MFU is reported.",
        gt=0.0,
    )
    tensorboard: bool = setting(
        False,
        "Write scalars for TensorBoard into the run's directory, tensorboard/, while it goes on. Needs the "
        "extra headway[tensorboard].",
    )
