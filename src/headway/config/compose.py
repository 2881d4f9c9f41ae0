"""The whole configuration: which section is which settings class. Nothing else composes settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.algorithms.settings import AlgorithmSettings
from headway.config.control import ControlSettings
from headway.config.model import ModelSettings
from headway.config.retention import RetentionSettings
from headway.config.run import RunSettings
from headway.config.sft import SftSettings
from headway.environments.settings import EnvironmentSettings, SourceSettings
from headway.generator.settings import GeneratorSettings
from headway.queue.band import ConcurrencySettings
from headway.queue.entry_settings import AcceptanceSettings, CurriculumSettings, OversamplingSettings
from headway.queue.partial import PartialSettings
from headway.queue.pruning_settings import PruningSettings
from headway.queue.recovery import RecoverySettings
from headway.queue.settings import (
    CheckpointSettings,
    DeadlineSettings,
    EvalSettings,
    QueueSettings,
    StopSettings,
)
from headway.queue.staleness import StalenessSettings
from headway.queue.watch import GuardSettings
from headway.rewards.settings import JudgeSettings, RewardSettings, ShapingSettings
from headway.sandbox.settings import SandboxSettings
from headway.telemetry.settings import TelemetrySettings
from headway.trainer.settings import TrainerSettings


@dataclass(frozen=True, slots=True)
class Config:
    """Every section; a field's name is its section's name in the file. A dict holds named sections."""

    run: RunSettings
    model: ModelSettings
    environment: EnvironmentSettings
    source: dict[str, SourceSettings]  # any number of sections [source.NAME]
    reward: RewardSettings
    judge: JudgeSettings
    shaping: ShapingSettings
    sandbox: SandboxSettings
    generator: GeneratorSettings
    queue: QueueSettings
    oversampling: OversamplingSettings
    acceptance: AcceptanceSettings
    curriculum: CurriculumSettings
    pruning: PruningSettings
    concurrency: ConcurrencySettings
    control: ControlSettings
    guard: GuardSettings
    staleness: StalenessSettings
    partial: PartialSettings
    recovery: RecoverySettings
    algorithm: AlgorithmSettings
    trainer: TrainerSettings
    eval: EvalSettings
    stop: StopSettings
    checkpoint: CheckpointSettings
    retention: RetentionSettings
    deadlines: DeadlineSettings
    telemetry: TelemetrySettings


@dataclass(frozen=True, slots=True)
class SftConfig:
    """The sections of `headway sft`; one file may hold those of `headway train` too."""

    run: RunSettings
    model: ModelSettings
    sft: SftSettings
    trainer: TrainerSettings
    checkpoint: CheckpointSettings


EXAMPLES: dict[str, Any] = {
    "model.path": "smollm2",
    "environment.name": "arithmetic",
    "sft.data": "train.jsonl",
}
"""A value for each key that the user must give, for messages."""
